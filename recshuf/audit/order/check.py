"""Tests on files alone of whether records are in a uniformly random order.

The order is that of an output's records in terms of its inputs, or of the values of a column: a label, a time, a name.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.audit.order.battery import MIN_RECORDS, Score, combine_scores, run_battery
from recshuf.audit.order.matching import (
    BottomKSample,
    Matching,
    invert,
    match_provenance,
    match_records,
    read_provenance,
    sort_randomly,
)
from recshuf.audit.verify.comparison import open_comparison, open_inputs, open_stores, open_tables
from recshuf.audit.verify.record_sets import read_manifest
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.interfaces import TableName
from recshuf.job.report import Report
from recshuf.records.arrays import find_value
from recshuf.records.hashing import hash_rows
from recshuf.records.keys import draw_keys
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.records.word_hashing import HashKey
from recshuf.storage.reading import check_unchanged
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.verify.comparison import RecordReader
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.manifest import Manifest


MOST_LABELS = 1000
"""A column of at most so many different values holds labels."""
SEED = 0
"""Seed of priorities and of the order among equal records: checks of the same files give the same result."""


def order_by_value(sample: BottomKSample, column: str) -> Matching:
    """Return the order of records in terms of the sorted values of a column, equal ones at random; labels stand for files.

    If records are in a uniformly random order, the ranks are too, whatever the values.
    """
    codes = rank_densely(sample.take().values)
    sizes = np.bincount(codes)
    if len(sizes) == 1 and len(codes) >= MIN_RECORDS:
        raise UsageError(
            f"all values of column {column!r} are equal and tell nothing of the order; choose another column"
        )
    labels = sizes.tolist() if len(sizes) <= MOST_LABELS else [len(codes)]
    order = invert(sort_randomly(codes, np.random.default_rng(SEED)))
    repeated = int(sizes[sizes > 1].sum())
    return Matching(order, labels, sample.records, 0.5**sample.level, duplicates=repeated)


def rank_densely(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the dense rank of each value, from 0; nulls come last."""
    try:
        ranks = pc.rank(_simplify(values), sort_keys="ascending", tiebreaker="dense")
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        problem = f"values of type {values.type} have no order"
        raise UsageError(f"{problem}; choose a column of numbers, times or text") from None
    codes: NDArray[np.int64] = ranks.to_numpy().astype(np.int64) - 1
    return codes


def _simplify(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return values of the same order in a type that Arrow can sort, if there is one."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_simplify(chunk) for chunk in values.chunks])
    if isinstance(kind, pa.BaseExtensionType):
        return _simplify(values.storage)
    if pt.is_fixed_size_list(kind) and kind.list_size == 1:
        return _simplify(pc.list_element(values, 0))
    if pt.is_dictionary(kind):
        return values.dictionary_decode()
    narrow = {pa.bool_(): pa.int8(), pa.float16(): pa.float32()}
    return values.cast(narrow[kind]) if kind in narrow else values


def name_codes(values: pa.ChunkedArray, codes: NDArray[np.int64]) -> list[str]:
    _, rows = np.unique(codes, return_index=True)
    return [_name(value) for value in values.take(pa.array(rows)).to_pylist()]


def _name(value: object) -> str:
    if value is None:
        return "no value"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def match_output(job: Job, progress: Progress, id_column: str | None = None) -> Matching:
    """Match the records of a job's output with those of its inputs: whole records, or the values of `id_column`.

    If the job has no output, its inputs are the output of a run, matched by their columns of provenance.
    """
    _check_readable(job)
    if job.output is None:
        return _match_by_provenance(job, progress)
    return _match_by_content(job, job.output, progress, id_column)


def _warn_of_groups(output: str, manifest: Manifest | None, progress: Progress) -> None:
    """Say why the order of an output whose records are in groups is not uniform."""
    if manifest is not None and (groups := manifest.features.get("group_by")):
        fields = ", ".join(groups["fields"])
        progress.warn(
            f"{output}: its records are in groups by {fields}; these are in random order, but the test looks at single records"
        )


def _match_by_content(job: Job, output: str, progress: Progress, id_column: str | None) -> Matching:
    manifest = read_manifest(job, output)
    _warn_of_groups(output, manifest, progress)
    job_of_id = _read_only(job, id_column)
    stores = open_stores(job_of_id, progress)
    inputs = open_inputs(job_of_id, stores, progress, output)
    key, as_tables = HashKey(), id_column is not None

    def match() -> Matching:
        comparison = open_comparison(
            job_of_id, output, manifest, progress, inputs, stores, as_tables=as_tables
        )
        if comparison.output is None:
            raise InputError(output, "holds none of the files that its manifest names")
        difference = None if as_tables else comparison.compare_schemas()
        if difference:
            raise UsageError(f"the records cannot be compared: schemas: {difference}; give --id COLUMN")
        before, after = (_sample_hashes(reader, job, id_column, key) for reader in comparison.readers)
        check_unchanged(file for reader in comparison.readers for file in reader.record_set.files)
        return match_records(before, after, len(inputs.files), np.random.default_rng(SEED))

    return inputs.try_prefix(match)


def _match_by_provenance(job: Job, progress: Progress) -> Matching:
    reader = open_tables(job, progress, (FILE_COLUMN, ROW_COLUMN))

    def match() -> Matching:
        sample = BottomKSample.within(job.memory_bytes)

        def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
            sample.add(*read_provenance(table), file, first_row)

        reader.read_tables(visit)
        check_unchanged(reader.record_set.files)
        return match_provenance(sample, job.inputs[0])

    return reader.record_set.try_prefix(match)


def sample_column(job: Job, progress: Progress, column: str, sample_count: int = 1) -> BottomKSample:
    """Return a sample of the values of a column of a job's inputs, one of `sample_count` that share the memory limit."""
    _check_readable(job)
    for name in job.inputs:
        if not isinstance(name, TableName) and Path(name).is_dir():
            with suppress(InputError):  # nothing else of it is wanted
                _warn_of_groups(name, read_manifest(job, name), progress)
    reader = open_tables(_read_only(job, column), progress)

    def read() -> BottomKSample:
        sample = BottomKSample.within(job.memory_bytes, sample_count)

        def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
            priorities = draw_keys(SEED, [(file, first_row, table.num_rows)])
            sample.add(find_value(table, column), priorities, file, first_row)

        reader.read_tables(visit)
        return sample

    sample = reader.record_set.try_prefix(read)
    check_unchanged(reader.record_set.files)
    if sample.kept < min(sample.records, MIN_RECORDS):
        raise MemoryLimitError(
            f"{sample.records:,} values are so large that only {sample.kept:,} of them fit the limit of "
            f"{format_size(job.memory_bytes)}, too few to test their order; raise --memory, or choose another column"
        )
    return sample


def _check_readable(job: Job) -> None:
    if not job.inputs or "-" in (*job.inputs, job.output):
        raise UsageError("files are read more than once here; name files, and no -")


def _read_only(job: Job, path: str | None) -> Job:
    """Return the job with its read options limited to one field; None keeps all fields."""
    return replace(job, read=replace(job.read, field=path))


def _sample_hashes(reader: RecordReader, job: Job, id_column: str | None, key: HashKey) -> BottomKSample:
    sample = BottomKSample.within(job.memory_bytes, 2)

    def add(hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
        values, priorities = (np.ascontiguousarray(half) for half in hashes.T)
        sample.add(pa.array(values), priorities, file, first_row)

    def visit_table(table: pa.RecordBatch, file: int, first_row: int) -> None:
        ids = pa.RecordBatch.from_arrays([find_value(table, str(id_column))], ["id"])
        add(hash_rows(ids, key, is_converted=True), file, first_row)

    if id_column is None:
        reader.read_hashes("read", add)
    else:
        reader.read_tables(visit_table)
    return sample


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Report):
    """The result of a check.

    Attributes
    ----------
    basis
        What the order was tested by: ``origins``, the records' positions in the inputs, or the name of a column.
    records
        Number of records, sampled or not.
    tested
        Number of records whose order was tested.
    share
        Share of the records that was sampled, 0 to 1.
    missing
        Number of sampled records of the inputs that are not in the output; what parts of a split lack is not counted.
    extra
        Number of sampled records of the output that are not in the inputs, or not as often.
    duplicates
        Number of tested records that equal another one, or with `column` have the same value; they were told apart at
        random.
    mean_move
        How far records moved on average, as a share of all records; 1/3 in a uniformly random order.
    scores
        The statistics: `name`, `statistic`, `expectation`, `deviation`, `z`, `is_flagged`, `meaning`.
    seconds
        Wall time.
    warnings
        What the check warned of, a sentence each.
    """

    basis: str
    records: int
    tested: int
    share: float
    missing: int
    extra: int
    duplicates: int
    mean_move: float
    scores: tuple[Score, ...]
    seconds: float
    warnings: tuple[str, ...] = ()

    def summarize(self) -> Iterator[str]:
        """Yield the verdict, and the statistics that speak against the order."""
        verdict = "uniformly random" if self.is_uniform else "not uniformly random"
        yield f"{verdict}, {self.tested:,} of {count_of(self.records, 'record')} tested by {self.basis}"
        yield from (f"{score.name}: {score.z:+.1f} deviations" for score in self.scores if score.is_flagged)

    @property
    def is_uniform(self) -> bool:
        """Whether no statistic speaks against a uniformly random order."""
        return not any(score.is_flagged for score in self.scores)

    def __bool__(self) -> bool:
        """Return `is_uniform`."""
        return self.is_uniform

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        scores = [
            {name: getattr(score, name) for name in ("name", "statistic", "expectation", "deviation", "z")}
            | {"flagged": score.is_flagged, "meaning": score.meaning if score.is_flagged else None}
            for score in self.scores
        ]
        return {"uniform": self.is_uniform} | asdict(self) | {"scores": scores}


def check_order(
    jobs: Sequence[Job],
    progress: Progress,
    column: str | None,
    id_column: str | None,
    show: Callable[[Matching | BottomKSample], None] = lambda _: None,
) -> CheckReport:
    """Test the order of outputs by the positions of their records in the inputs; arguments as for `match_output`.

    The jobs are shuffles of the same inputs with different seeds, tested together, so that small biases add up. With a column,
    the order of its values in the inputs of the only job is tested. `show` gets the sample of the column, or the first matching.
    """
    started = time.perf_counter()
    if column is not None:
        sample = sample_column(jobs[0], progress, column)
        report = score_matching(order_by_value(sample, column), started, column)
        show(sample)
        return report
    matchings = _match_orders(jobs, progress, id_column)
    first = next(matchings)
    reports = [score_matching(first, started)]
    show(first)
    del first
    # Not by a loop, whose variable would keep one matching in memory while the next is made.
    reports += map(partial(score_matching, started=started), matchings)
    return combine_reports(reports, started)


def _match_orders(jobs: Sequence[Job], progress: Progress, id_column: str | None) -> Iterator[Matching]:
    """Yield the matching of each order in the outputs of jobs, made when it is asked for."""
    for job in jobs:
        parts = _list_parts(job)
        for part in parts:
            # What a part lacks may be in the others.
            yield replace(match_output(part, progress, id_column), missing=0)
        if not parts:
            yield match_output(job, progress, id_column)


def _list_parts(job: Job) -> list[Job]:
    """Return a job for each part of a split that is large enough to be tested; none if the output has no parts."""
    manifest = None if job.output is None else read_manifest(job, job.output)
    if job.output is None or manifest is None or manifest.split is None:
        return []
    large = [part["name"] for part in manifest.split["parts"] if part["records"] >= MIN_RECORDS]
    if not large:
        raise UsageError(
            f"no part of {job.output} has the {MIN_RECORDS:,} records that it takes to test an order"
        )
    folder = job.output.rstrip("/")
    return [replace(job, output=f"{folder}/{name}/", feature=None) for name in large]


def score_matching(matching: Matching, started: float, column: str | None = None) -> CheckReport:
    """Return the scores of an order, by default of an output; the check began at `started` of `time.perf_counter`."""
    order, count = matching.order, len(matching.order)
    if count < MIN_RECORDS and matching.missing and matching.extra:
        raise UsageError(
            f"only {count:,} records of an output are in the inputs, too few to test their order; "
            "recshuf verify tells what differs"
        )
    scores = run_battery(order, matching.file_sizes, "file" if column is None else "label")
    return CheckReport(
        basis="origins" if column is None else column,
        records=matching.records,
        tested=count,
        share=matching.share,
        missing=matching.missing,
        extra=matching.extra,
        duplicates=matching.duplicates,
        mean_move=float(np.abs(order - np.arange(count)).mean() / count),
        scores=tuple(scores),
        seconds=time.perf_counter() - started,
    )


def combine_reports(reports: Sequence[CheckReport], started: float) -> CheckReport:
    """Return the reports of several outputs as one; `started` as for `score_matching`."""
    return CheckReport(
        basis=reports[0].basis,
        records=sum(report.records for report in reports),
        tested=sum(report.tested for report in reports),
        share=min(report.share for report in reports),
        missing=sum(report.missing for report in reports),
        extra=sum(report.extra for report in reports),
        duplicates=sum(report.duplicates for report in reports),
        mean_move=float(np.mean([report.mean_move for report in reports])),
        scores=tuple(combine_scores([report.scores for report in reports])),
        seconds=time.perf_counter() - started,
    )
