"""The inputs and the output of a shuffle, opened side by side so that equal records hash alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.audit.verify.hashing import HashKey
from recshuf.audit.verify.record_sets import (
    INPUTS,
    OUTPUT,
    Side,
    list_files,
    open_side,
    options_of_inputs,
    options_of_output,
)
from recshuf.audit.verify.type_classes import find_difference, find_exact_difference
from recshuf.errors import InputError
from recshuf.formats import detect_format
from recshuf.job.plan import sum_known
from recshuf.job.planner import plan_reading
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.records.reader import InputReader
from recshuf.records.rows import split_ranges
from recshuf.system.listing import leave_out_output

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress
    from recshuf.output.manifest import Manifest
    from recshuf.records.rows import RowRange

    VisitHashes = Callable[[NDArray[np.uint64], int, int], None]
    """Takes hashes of shape ``(n, 2)``, the index of their file, and the first one's row; called in many threads."""

_DECODING_FACTOR = 4.0
"""Memory of decoding a batch, as a multiple of its size."""


class SideReader:
    """One side being read.

    Parameters
    ----------
    key
        The same for both sides.
    """

    def __init__(self, side: Side, key: HashKey, job: Job, progress: Progress) -> None:
        self.side = side
        self._key = key
        self._progress = progress
        self._plan = plan_reading(
            side.source.reading_bytes,
            job.workers,
            job.memory_bytes,
            job.read.max_record_bytes,
            _DECODING_FACTOR if side.decoder else 0.0,
        )

    def learn(self) -> pa.Schema | None:
        """Return the schema of the table form, which may take reading everything; None without a decoder."""
        decoder = self.side.decoder
        if decoder is None:
            return None
        if decoder.schema is None:
            self._read("learn", self.side.observe)
        return decoder.finish()

    def read_hashes(self, verb: str, visit: VisitHashes) -> None:
        """Give the hashes of all records to `visit`; `verb` is what progress calls it."""

        def hash_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(self.side.hash(batch, file, first_row, self._key), file, first_row)

        self._read(verb, hash_and_visit)

    def read_tables(self, verb: str, visit: Callable[[pa.RecordBatch, int, int], None]) -> None:
        """Give all records to `visit` in table form, with the index of their file and the first one's row."""

        def decode_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(self.side.decode(batch, file, first_row), file, first_row)

        self._read(verb, decode_and_visit)

    def _read(self, verb: str, visit: Callable[[pa.RecordBatch, int, int], None]) -> None:
        summaries = self.side.source.inputs
        total = sum_known([one.record_count for one in summaries])
        self._progress.start(f"{verb} {self.side.name}", total, None)

        def visit_and_tell(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
            for part, file, row in split_ranges(batch, ranges):
                visit(part, file, row)
                self._progress.advance(part.num_rows, int(part.nbytes))

        source = self.side.source
        InputReader(source, self._plan, range(len(source.inputs)), visit_and_tell).run("verify")


def open_pair(
    job: Job,
    output: str,
    manifest: Manifest | None,
    progress: Progress,
    files: list[InputFile] | None = None,
    *,
    as_tables: bool = False,
) -> list[SideReader]:
    """Return the readers of inputs and output; of the inputs only, where not one file of the output is there.

    Parameters
    ----------
    files
        The inputs, where it is already known what those of the job stand for.
    as_tables
        Whether both are brought to table form, also where they are of one format.
    """
    if files is None:
        files = leave_out_output(list_files(job.inputs, job.format, progress), job.inputs, output)
    if not files:
        raise InputError(job.inputs[0], "holds no file beside those of the output")
    given_format = job.format or detect_format(files)
    key = HashKey()
    given = open_side("inputs", files, given_format, options_of_inputs(job.read, given_format))
    files = _list_output(output, manifest, job.to, progress)
    made_format = job.to or (manifest.to if manifest else None) or detect_format(files)
    decodes = as_tables or made_format != given_format
    given.decoder = given.source.decoder() if decodes else None
    readers = [SideReader(given, key, job, progress)]
    if files:
        added = (FILE_COLUMN, ROW_COLUMN) if job.provenance else manifest.added if manifest else ()
        schema = _add_fields(readers[0].learn(), added)
        read = options_of_output(job.read, given_format, made_format, schema)
        made = open_side("output", files, made_format, read)
        made.added = added
        made.decoder = made.source.decoder() if decodes else None
        readers.append(SideReader(made, key, job, progress))
    return readers


def _add_fields(schema: pa.Schema | None, added: tuple[str, ...]) -> pa.Schema | None:
    """Return a schema with the columns that say where records were read."""
    if schema is None or not added:
        return schema
    import pyarrow as pa

    kinds = (pa.large_string(), pa.int64())
    return pa.schema([*schema, *map(pa.field, added, kinds)])


def open_tables(job: Job, progress: Progress, wanted: tuple[str, ...] = ()) -> SideReader:
    """Return a reader that brings the inputs of a job to table form; columns that are not `wanted` may be left out."""
    files = list_files(job.inputs, job.format, progress)
    name = job.format or detect_format(files)
    read = options_of_inputs(job.read, name)
    side = open_side("inputs", files, name, read)
    if wanted and name == "parquet" and {*wanted} <= {*side.source.schema.names}:
        side = open_side("inputs", files, name, replace(read, columns=wanted))
    side.decoder = side.source.decoder()
    return SideReader(side, HashKey(), job, progress)


def _list_output(
    output: str, manifest: Manifest | None, name: str | None, progress: Progress
) -> list[InputFile]:
    if not manifest:
        return list_files([output], name, progress)
    present = manifest.find_present()
    return list_files(present, None, progress) if present else []


def _explain_added(difference: str | None, given: pa.Schema, made: pa.Schema) -> str | None:
    """Return a difference of schemas, with how to leave out the columns of a run with --provenance if these are it."""
    is_added = FILE_COLUMN in made.names and FILE_COLUMN not in given.names
    return f"{difference}; if a run added it, give --provenance" if difference and is_added else difference


def compare_schemas(readers: list[SideReader]) -> str | None:
    """Return in what the schemas of both sides differ; None where records can be compared."""
    if len(readers) == 1:
        return None
    given, made = (reader.side for reader in readers)
    if given.decoder is not None:
        is_text = "text" in (given.format, made.format)
        before, after = readers[INPUTS].learn(), readers[OUTPUT].learn()
        if before is None or after is None:
            raise RuntimeError("one side has a decoder, and the other has none")
        after = made.leave_out_added(after)
        return _explain_added(find_difference(before, after, is_text=is_text), before, after)
    headers = [getattr(side.source.layout, "header", b"") for side in (given, made)]
    if all(headers) and headers[0] != headers[1]:
        return "the header lines differ"
    before, after = given.source.schema, made.leave_out_added(made.source.schema)
    return _explain_added(find_exact_difference(before, after), before, after)
