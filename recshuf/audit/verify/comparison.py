"""Two record sets opened so that equal records hash alike, the reading of each, and how their schemas differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.audit.verify.record_sets import (
    READING_SHARE,
    RecordSet,
    list_files,
    open_record_set,
    options_of_output,
)
from recshuf.audit.verify.type_classes import fill_types, find_difference, find_exact_difference
from recshuf.errors import CheckError, InputError, UsageError
from recshuf.formats import LAST_RESORT, detect_format, keeps_records, load_format, name_written, open_source
from recshuf.formats.csv import suffix_delimiter
from recshuf.formats.folders import NameRules
from recshuf.formats.metadata import compare_written, name_copy
from recshuf.interfaces import SupportsPrefixInference
from recshuf.job.options import find_own
from recshuf.job.plan import Limits, sum_known
from recshuf.job.sizing import (
    PREFIX_BYTES,
    SMALLEST_BLOCK,
    Reading,
    choose_reading,
    fit,
    halve_blocks,
    naming_memory,
)
from recshuf.records.batch import split_ranges
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.records.reader import InputReader, ReadingPlan, whole_inputs
from recshuf.records.word_hashing import HashKey
from recshuf.storage.reading import check_unchanged, leave_out_output
from recshuf.storage.reading.objects import Stores, count_read_bytes
from recshuf.system.memory import release_freed

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.manifest import Manifest
    from recshuf.records.keys import RowRange

    VisitHashes = Callable[[NDArray[np.uint64], int, int], None]
    """Takes hashes of consecutive records, shape ``(n, 2)``, their file's index and the first row; called in threads."""
    VisitBoth = Callable[[pa.RecordBatch, NDArray[np.uint64], int, int], None]
    MarkRecords = Callable[[pa.RecordBatch, int, int], NDArray[np.uint64]]
    """Takes native records, their file's index and the first row; called in threads."""
    VisitTable = Callable[[pa.RecordBatch, int, int], None]
    """The same with a table in place of hashes."""

_DECODING_FACTOR = 4.0
"""Memory of decoding a batch, as a multiple of its size."""
_HASHING_BYTES = 12 << 20
"""What hashing takes in each thread beside the batch."""
_BLOCK_BYTES = 8 << 20
_COLUMN_BYTES = 32 << 10
"""Of a column in a block: a batch takes some 100 us for each."""
_RECORD_COPIES = 8
"""Verify keeps no piles, so it takes longer records than the shuffle that wrote them."""
_SHUFFLED_COPIES = 12
"""The same for the shuffle, which also takes records of a block, whatever their copies."""
_LEAST_SHUFFLED, _MOST_SHUFFLED = 4 << 20, 32 << 20
"""Blocks of a shuffle in several threads."""


class RecordReader:
    """Reads all records of a set in many threads, as often as asked; sets that are compared have one key."""

    def __init__(self, record_set: RecordSet, key: HashKey, job: Job, progress: Progress) -> None:
        self.record_set = record_set
        self._key = key
        self._progress = progress
        self.mark: MarkRecords | None = None
        """Returns by what the second words of the hashes of a batch are multiplied, odd numbers; None for nothing."""
        copies = 1 + (_DECODING_FACTOR if record_set.decoder else 0)

        def worker_bytes(block: int) -> int:
            return record_set.source.reading_bytes(block) + int(copies * block) + _HASHING_BYTES

        are_objects = any(file.opener for file in record_set.files)
        self._worker_bytes = worker_bytes
        self._limits = Limits(
            job.memory_bytes,
            job.workers,
            job.read.max_record_bytes,
            count_reserved_bytes=lambda memory: count_read_bytes(memory, job.workers) if are_objects else 0,
        )
        self.plan = self._choose_plan(self._limits)

    def _choose_plan(self, limits: Limits) -> Reading:
        worker_bytes = self._worker_bytes

        def plan_within(tried: Limits) -> Reading:
            small = [SMALLEST_BLOCK]
            return choose_reading(worker_bytes, tried, small, READING_SHARE, 0, "reading", _RECORD_COPIES)

        plan = fit(plan_within, limits)
        if plan.max_record_bytes < _LEAST_SHUFFLED:
            plan = fit(plan_within, replace(limits, workers=1))
        # Small blocks leave memory to long records, and records must not be shorter than those of a shuffle.
        enough = min(plan.max_record_bytes, max(_MOST_SHUFFLED, limits.room_bytes // _SHUFFLED_COPIES))
        of_columns = _COLUMN_BYTES * len(self.record_set.source.schema)
        plans: list[Reading] = []
        for power in range(plan.workers.bit_length()):
            workers = plan.workers >> power
            for block in halve_blocks(max(_BLOCK_BYTES, of_columns)):
                needed = workers * worker_bytes(block)
                longest = min(limits.max_record_bytes, (limits.room_bytes - needed) // _RECORD_COPIES)
                if needed <= READING_SHARE * limits.room_bytes and longest >= enough:
                    plans.append(Reading(workers, block, longest))
                    break
            # Each halving of a block adds what a column takes beside its values; below a half, fewer threads are faster.
            if plans and plans[-1].block_bytes >= of_columns // 2:
                break
        return max(plans, key=lambda one: one.block_bytes, default=plan)

    def infer_schema(self) -> pa.Schema | None:
        """Return the schema of the tables; if no file states it, reads as many records as the set wants. None without a decoder."""
        decoder = self.record_set.decoder
        if decoder is None:
            return None
        if decoder.schema is None:
            if self.record_set.wants_prefix and isinstance(decoder, SupportsPrefixInference):
                self.record_set.is_from_prefix = not self._observe_first()
                if self.record_set.is_from_prefix:
                    decoder.infer_from_prefix(0)
            else:
                self._read("learn", self.record_set.observe)
        return decoder.finish()

    def _observe_first(self) -> bool:
        """Let the decoder observe the first records; tell whether these are all."""
        source, seen = self.record_set.source, 0
        for index in range(len(source.inputs)):
            row = 0
            for fragment in source.fragments(index, self.plan.block_bytes, self.plan.max_record_bytes):
                for batch in fragment.batches():
                    if seen > PREFIX_BYTES:
                        return False
                    self.record_set.observe(batch, index, row)
                    row += batch.num_rows
                    seen += batch.nbytes
        return True

    def read_hashes(self, verb: str, visit: VisitHashes) -> None:
        """Call `visit` with the hashes of all records; `verb` names the pass for progress."""
        self.read_both(verb, lambda _, *hashed: visit(*hashed))

    def read_both(self, verb: str, visit: VisitBoth) -> None:
        """Do what `read_hashes` does, and give the native records, too."""

        def hash_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            hashes = self.record_set.hash(batch, file, first_row, self._key)
            if self.mark is not None:
                hashes[:, 1] *= self.mark(batch, file, first_row)
            visit(batch, hashes, file, first_row)

        self._read(verb, hash_and_visit)

    def read_tables(self, visit: VisitTable) -> None:
        self.infer_schema()

        def decode_and_visit(batch: pa.RecordBatch, file: int, first_row: int) -> None:
            visit(self.record_set.decode(batch, file, first_row), file, first_row)

        self._read("read", decode_and_visit)

    def _read(self, verb: str, visit: VisitTable) -> None:
        source = self.record_set.source
        total = sum_known([file.record_count for file in source.inputs])
        self._progress.start(f"{verb} {self.record_set.name}", total, None)

        def visit_parts(batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
            for part, file, row in split_ranges(batch, ranges):
                visit(part, file, row)
                self._progress.advance(part.num_rows, int(part.nbytes))

        release_freed()  # what matching, statistics or another reading left behind
        limits = self._limits

        def find_longest(memory_bytes: int) -> int:
            return self._choose_plan(replace(limits, memory_bytes=memory_bytes)).max_record_bytes

        with naming_memory(limits.memory_bytes, limits.max_record_bytes, find_longest):
            try:
                InputReader(source, ReadingPlan(*self.plan), whole_inputs(source), visit_parts).run("verify")
            except CheckError:
                check_unchanged(self.record_set.files)
                raise
        release_freed()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two record sets that are compared."""

    inputs: RecordReader
    output: RecordReader | None
    """None if no file of the output exists."""

    @property
    def readers(self) -> list[RecordReader]:
        """Those that exist, inputs first."""
        return [self.inputs, self.output] if self.output else [self.inputs]

    def compare_schemas(self) -> str | None:
        """Return how the schemas differ so that records cannot be compared; None if they can."""
        if self.output is None:
            return None
        inputs, output = self.inputs.record_set, self.output.record_set
        if inputs.decoder is not None:
            before, after = self.inputs.infer_schema(), self.output.infer_schema()
            if before is None or after is None:
                raise RuntimeError("only one of the record sets has a decoder")
            after = output.list_compared(after)
            has_names = inputs.traits.has_columns and output.traits.has_columns
            difference = find_difference(before, after, has_names=has_names)
            if difference is None:
                inputs.filled = fill_types(before, after, has_names=has_names)
                output.filled = fill_types(after, before, has_names=has_names)
        else:
            headers = [each.find_header() for each in (inputs, output)]
            if all(headers) and headers[0] != headers[1]:
                return f"the header lines differ{_suggest_columns(inputs)}"
            before, after = inputs.source.schema, output.list_compared(output.source.schema)
            difference = find_exact_difference(before, after)
        if difference and FILE_COLUMN in after.names and FILE_COLUMN not in before.names:
            return f"{difference}; if a run added it, give --provenance"
        if difference and {*after.names} < {*before.names}:
            return difference + _suggest_columns(inputs)
        return difference

    def compare_beside(self) -> list[str]:
        """Return how what the output has beside its records differs from what the inputs give, a sentence each."""
        if self.output is None or self.inputs.record_set.format != self.output.record_set.format:
            return []
        before, after = (reader.record_set.source for reader in self.readers)
        differences = [
            f"{name_copy(self.inputs.record_set.format, name)}, which every shard repeats, differs"
            for name in sorted(before.repeated.keys() | after.repeated.keys())
            if before.repeated.get(name) != after.repeated.get(name)
        ]
        if before.metadata is not None and after.metadata is not None:
            differences += compare_written(before.metadata, after.metadata)
        return differences


def _suggest_columns(inputs: RecordSet) -> str:
    """Return what to do about columns that only the inputs have, as the end of a sentence; empty if there is nothing."""
    known = inputs.traits.read_options | {option.name for option in inputs.traits.options}
    option = next((name for name in ("columns", "datasets") if name in known), None)
    return f"; if a run chose columns, give --{option}" if option else ""


def open_comparison(
    job: Job,
    path: str,
    manifest: Manifest | None,
    progress: Progress,
    inputs: RecordSet,
    stores: Stores,
    *,
    as_tables: bool = False,
    keeps_blank_end: bool = False,
    key: HashKey | None = None,
) -> Comparison:
    """Open the output of a job, to be compared with its inputs.

    Parameters
    ----------
    as_tables
        Whether both are decoded even if of one format.
    keeps_blank_end
        Whether blank lines at the end of JSONL of the output are records.
    key
        That of the hashes. Default: a random one.
    """
    source, key = inputs.source, key or HashKey()
    files = _list_output(path, manifest, job, stores, progress)
    to = job.options["to"] or (manifest.to if manifest else None)
    to = to or name_written(files, inputs.format, job.read)
    is_same, nan_as_null = keeps_records(inputs.format, to), "nan_as_null" in dict(job.read.own)
    # What was found in the inputs holds for an output of their format, which may show too few records to find it.
    read = (source.options if is_same else None) or job.read
    read = replace(read, max_record_bytes=job.read.max_record_bytes)
    own = dict(read.own)
    named = suffix_delimiter(files[0].name) if files else None
    delimiter = named or dict(job.read.own).get("delimiter")  # that of a gather is of the output
    is_rewritten = is_same and "delimiter" in own and delimiter not in (None, own["delimiter"])
    if is_rewritten:
        read = replace(read, own=tuple((own | {"delimiter": delimiter}).items()))
    if is_same and read.columns is not None and not inputs.traits.native_is_table:
        is_rewritten = True
    if nan_as_null and (is_same or "nan_as_null" not in {one.name for one in load_format(to).traits.options}):
        formats = " or ".join(find_own(["nan_as_null"])["nan_as_null"].owners)
        raise UsageError(f"--nan-as-null: for a conversion to {formats} only; leave it out")
    decodes = as_tables or not is_same or is_rewritten
    inputs.decoder, inputs.nan_as_null = source.decoder() if decodes else None, nan_as_null
    reader = RecordReader(inputs, key, job, progress)
    if not files:
        return Comparison(reader, None)
    added = (FILE_COLUMN, ROW_COLUMN) if job.options["provenance"] else manifest.added if manifest else ()
    schema = reader.infer_schema()
    if schema is not None and added:
        schema = pa.schema([*schema, *map(pa.field, added, (pa.large_string(), pa.int64()))])
    read = options_of_output(read, inputs.format, to, schema)
    output = open_record_set("output", files, to, read)
    if keeps_blank_end:
        output.source = open_source(LAST_RESORT, files, read)
    try:
        output.decoder = output.source.decoder() if decodes else None
    except (
        UsageError
    ):  # its columns are not those of the schema, and the comparison of schemas says how they differ
        output = open_record_set("output", files, to, replace(read, schema=None))
        output.decoder = output.source.decoder()
    output.added = added
    if "datasets" in dict((source.options or job.read).own):
        output.order = tuple(source.schema.names)  # the datasets of a file have no order
    # A difference of types alone, which the format of the output forces, leaves the values to compare.
    if inputs.is_from_program and find_exact_difference(
        source.schema, output.list_compared(output.source.schema)
    ):
        inputs.decoder, output.decoder = source.decoder(), output.source.decoder()
    return Comparison(reader, RecordReader(output, key, job, progress))


def open_stores(job: Job, progress: Progress) -> Stores:
    """Return the object stores of a job. The files of both record sets share them, and the memory of what is fetched."""
    return Stores(job.storage, job.memory_bytes, job.workers, progress.warn)


def open_inputs(job: Job, stores: Stores, progress: Progress, output: str | None = None) -> RecordSet:
    """Open the inputs of a job, without the files of its output among them."""
    files = list_files(
        job.inputs, NameRules(job.options["format"], job.options["schema"], job.read), stores, progress
    )
    if output is not None:
        files = leave_out_output(files, job.inputs, output)
        if not files:
            raise InputError(job.inputs[0], "holds no file beside those of the output")
    name = job.options["format"] or detect_format(files, job.read)
    return open_record_set("inputs", files, name, job.read)


def open_tables(job: Job, progress: Progress, wanted: tuple[str, ...] = ()) -> RecordReader:
    """Open the inputs of a job as tables; columns other than those `wanted` may be missing."""
    record_set = open_inputs(job, open_stores(job, progress), progress)
    name = record_set.format
    has_wanted = {*wanted} <= {*record_set.source.schema.names}
    if wanted and has_wanted and "columns" in record_set.traits.read_options:
        read = replace(job.read, columns=wanted)
        record_set = open_record_set("inputs", record_set.files, name, read)
    record_set.decoder = record_set.source.decoder()
    return RecordReader(record_set, HashKey(), job, progress)


def _list_output(
    output: str, manifest: Manifest | None, job: Job, stores: Stores, progress: Progress
) -> list[InputFile]:
    if not manifest:
        parts = [f"{output.rstrip('/')}/{name}/" for name in job.part_names]
        rules = NameRules(job.options["to"])
        return list_files(parts or [output], rules, stores, progress, mixes_splits=True)
    present = manifest.find_present()
    return list_files(present, NameRules(None), stores, progress, mixes_splits=True) if present else []
