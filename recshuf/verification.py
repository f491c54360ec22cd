"""Proof from the files alone that an output holds the same multiset of records as the inputs."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf._fingerprints_types import find_difference, find_exact_difference
from recshuf._verify_manifest import Manifest, read_manifest
from recshuf._verify_reading import plan_reading
from recshuf._verify_search import INPUTS, OUTPUT, Found, Place, Search, Tally
from recshuf._verify_sides import (
    Side,
    leave_out,
    list_files,
    open_side,
    options_of_inputs,
    options_of_output,
)
from recshuf.errors import InputError, OutputError, UsageError
from recshuf.fingerprints import HashKey
from recshuf.formats import detect_format
from recshuf.inputs import check_unchanged
from recshuf.reading import Reading
from recshuf.report import FileReport
from recshuf.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from recshuf.interfaces import InputFile
    from recshuf.job import Job
    from recshuf.progress import Progress

_DECODING_FACTOR = 4.0
"""Memory of decoding a batch, as a multiple of its size."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A record that one side has and the other has not."""

    name: str
    """Its file."""
    index: int
    """Its place in the file, from 0."""
    copies: int
    """How many equal ones are missing or extra in all."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison found."""

    format: str
    to: str
    are_compared: bool
    """Whether the records were compared: not where the schemas differ."""
    records: int
    """Records of the inputs."""
    records_written: int
    """Records of the output."""
    missing: int
    """Records of the inputs that the output should hold and does not."""
    extra: int
    """Records of the output that the inputs do not hold, or not as often."""
    missing_places: tuple[RecordPlace, ...]
    """The first few, by file and index."""
    extra_places: tuple[RecordPlace, ...]
    differences: tuple[str, ...]
    """Other differences, each in a sentence: of the schemas, and of the files from the manifest."""
    inputs: tuple[FileReport, ...]
    shards: tuple[FileReport, ...]
    seconds: float

    @property
    def is_equal(self) -> bool:
        """Tell whether the output holds exactly the records of the inputs, or a sample of them if that was asked."""
        return not (self.missing or self.extra or self.differences)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {"equal": self.is_equal} | asdict(self)


def verify_job(job: Job, progress: Progress, files: list[InputFile] | None = None) -> VerifyReport:
    """Compare the records of a job's output with those of its inputs; how it was ordered and cut does not matter.

    `files` are the inputs, where it is already known what those of the job stand for.

    Every file is read once, inputs of JSONL without a schema in a conversion twice; where something differs, once
    more.

    Raises
    ------
    InputError
        When a file of either side cannot be read, or has changed meanwhile.
    RecshufError
        When the comparison cannot be made.
    """
    started = time.perf_counter()
    if job.output is None or not job.inputs or "-" in (*job.inputs, job.output):
        raise UsageError("verify reads its files more than once; name files as inputs and output, and no -")
    manifest = read_manifest(job.output)
    readers = _open_readers(job, job.output, manifest, progress, files)
    given, made = readers[INPUTS].side, readers[OUTPUT].side if len(readers) > 1 else None
    differences = manifest.compare_files() if manifest else []
    if manifest and made:
        differences += manifest.compare_format(made.format)
    tallies, found = [Tally(len(reader.side.stamps)) for reader in readers], Found()
    schema_difference = _compare_schemas(readers)
    if schema_difference:
        differences.append(f"schemas: {schema_difference}")
    else:
        tallies = [reader.tally() for reader in readers]
        found = _find_differing(readers, tallies, job)
        if manifest:
            names = made.names if made else []
            records = tallies[OUTPUT].records if made else []
            differences += manifest.compare_counts(names, records, sum(tallies[INPUTS].records))
    check_unchanged(stamp for reader in readers for stamp in reader.side.stamps)
    return VerifyReport(
        format=given.format,
        to=made.format if made else given.format,
        are_compared=not schema_difference,
        records=sum(tallies[INPUTS].records),
        records_written=sum(tallies[OUTPUT].records) if made else 0,
        missing=found.missing,
        extra=found.extra,
        missing_places=_name_places(readers, found.missing_places),
        extra_places=_name_places(readers, found.extra_places),
        differences=tuple(differences),
        inputs=_report_files(given, tallies[INPUTS]),
        shards=_report_files(made, tallies[OUTPUT]) if made else (),
        seconds=time.perf_counter() - started,
    )


class _Reader:
    """One side being read.

    Parameters
    ----------
    number
        `INPUTS` or `OUTPUT`.
    key
        The same for both sides.
    """

    def __init__(self, side: Side, number: int, key: HashKey, job: Job, progress: Progress) -> None:
        self.side = side
        self._number = number
        self._key = key
        self._progress = progress
        self._plan = plan_reading(
            side.source,
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

    def tally(self) -> Tally:
        """Return numbers and sums of hashes of all records."""
        tally = Tally(len(self.side.stamps))
        lock = threading.Lock()

        def visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            own = Tally(len(self.side.stamps))
            own.add(self.side.hash(batch, file, first_row, self._key), file)
            with lock:
                tally.merge(own)

        self._read("read", visit)
        return tally

    def search(self, search: Search) -> None:
        """Give the hashes of all records to a search."""

        def visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            hashes = self.side.hash(batch, file, first_row, self._key)
            search.add(hashes, self._number, file, first_row)

        self._read("search", visit)

    def _read(self, verb: str, visit: Callable[[pa.RecordBatch, int, int], None]) -> None:
        summaries = self.side.source.inputs
        counts = [one.record_count for one in summaries]
        total = None if None in counts else sum(count or 0 for count in counts)
        self._progress.start(f"{verb} {self.side.name}", total, None)

        def visit_and_tell(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(batch, file, first_row)
            self._progress.advance(batch.num_rows, int(batch.nbytes))

        source = self.side.source
        Reading(source, self._plan, range(len(source.inputs)), visit_and_tell).run("verify")


def _open_readers(
    job: Job, output: str, manifest: Manifest | None, progress: Progress, files: list[InputFile] | None
) -> list[_Reader]:
    """Return the readers of inputs and output; of the inputs only, where not one file of the output is there."""
    if files is None:
        files = leave_out(list_files(job.inputs, job.format, progress), job.inputs, output)
    if not files:
        raise InputError(job.inputs[0], "holds no file beside those of the output")
    given_format = job.format or detect_format(files)
    key = HashKey()
    given = open_side("inputs", files, given_format, options_of_inputs(job.read, given_format))
    files = _list_output(output, manifest, job.to, progress)
    made_format = job.to or (manifest.to if manifest else None) or detect_format(files)
    if made_format != given_format:
        given.decoder = given.source.decoder()
    readers = [_Reader(given, INPUTS, key, job, progress)]
    if files:
        read = options_of_output(job.read, given_format, made_format, readers[0].learn())
        made = open_side("output", files, made_format, read)
        if made_format != given_format:
            made.decoder = made.source.decoder()
        readers.append(_Reader(made, OUTPUT, key, job, progress))
    return readers


def _list_output(
    output: str, manifest: Manifest | None, name: str | None, progress: Progress
) -> list[InputFile]:
    if not manifest:
        return list_files([output], name, progress)
    present = manifest.find_present()
    return list_files(present, None, progress) if present else []


def _compare_schemas(readers: list[_Reader]) -> str | None:
    """Return in what the schemas of both sides differ; None where records can be compared."""
    if len(readers) == 1:
        return None
    given, made = (reader.side for reader in readers)
    if given.decoder is not None:
        is_text = "text" in (given.format, made.format)
        return find_difference(readers[INPUTS].learn(), readers[OUTPUT].learn(), is_text=is_text)
    headers = [getattr(side.source.layout, "header", b"") for side in (given, made)]
    if all(headers) and headers[0] != headers[1]:
        return "the header lines differ"
    return find_exact_difference(given.source.schema, made.source.schema)


def _find_differing(readers: list[_Reader], tallies: list[Tally], job: Job) -> Found:
    """Return which records differ; read once more only if any do."""
    both = [*tallies, Tally(0)][: OUTPUT + 1]
    differing = both[INPUTS].find_differing(both[OUTPUT])
    if not differing.any():
        return Found()
    expected = sum(int(tally.counts[differing].sum()) for tally in both)
    scratch = Scratch(_choose_scratch_parent(job.temp_dir))
    with closing(scratch), closing(Search(differing, expected, scratch, job.memory_bytes)) as search:
        for reader in readers:
            reader.search(search)
        found = search.run()
    if job.head_count is None:
        return found
    total = sum(both[INPUTS].records)
    return found.without_missing(total - min(total, job.head_count))


def _choose_scratch_parent(temp_dir: Path | None) -> Path:
    if temp_dir is None:
        return Path(tempfile.gettempdir() if os.environ.get("TMPDIR") else "/var/tmp")  # noqa: S108 - nameless files
    if not temp_dir.is_dir():
        raise OutputError(f"{temp_dir}: no such directory; create it, or choose another --temp-dir")
    return temp_dir


def _name_places(readers: list[_Reader], places: Sequence[Place]) -> tuple[RecordPlace, ...]:
    names = [reader.side.names for reader in readers]
    return tuple(RecordPlace(names[one.side][one.file], one.row, one.copies) for one in places)


def _report_files(side: Side, tally: Tally) -> tuple[FileReport, ...]:
    files = zip(side.source.inputs, tally.records, strict=True)
    return tuple(FileReport(one.name, records, one.file_bytes) for one, records in files)
