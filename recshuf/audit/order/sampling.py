"""The orders that are checked: of an output's records in terms of its inputs, or by a column: a label, a time, a name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.audit.order.battery import MIN_RECORDS
from recshuf.audit.order.matching import (
    BottomKSample,
    Matching,
    ProvenanceReader,
    invert,
    match_records,
    sort_randomly,
)
from recshuf.audit.verify.comparison import open_comparison, open_tables
from recshuf.audit.verify.record_sets import read_manifest
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.interfaces import TableName
from recshuf.records.arrays import find_value
from recshuf.records.hashing import hash_rows
from recshuf.records.keys import draw_keys
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.records.word_hashing import HashKey
from recshuf.storage.reading.listing import check_unchanged
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.verify.comparison import RecordReader
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.manifest import Manifest


MOST_LABELS = 1000
"""A column of at most so many different values holds labels."""
SEED = 0
"""Seed of priorities and of the order among equal records: checks of the same files give the same result."""


@dataclass(frozen=True, slots=True)
class ValueOrder:
    """The order of records in terms of their sorted values."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the rank of each record's value; equal values are ranked at random."""
    group_sizes: list[int]
    """How many records have each value if there are at most `MOST_LABELS` values, else one group of all records."""
    duplicates: int
    """Number of records whose value is not unique."""
    value_count: int
    """Number of different values."""


def order_by_value(values: pa.Array, rng: np.random.Generator) -> ValueOrder:
    """Return the ranks of values; `rng` ranks equal values.

    If records are in a uniformly random order, the ranks are too, whatever the values.
    """
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    groups = sizes.tolist() if len(sizes) <= MOST_LABELS else [len(codes)]
    order = invert(sort_randomly(codes, rng))
    return ValueOrder(order, groups, int(sizes[sizes > 1].sum()), len(sizes))


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
    comparison = open_comparison(
        _read_only(job, id_column), output, manifest, progress, as_tables=id_column is not None
    )
    if comparison.output is None:
        raise InputError(output, "holds none of the files that its manifest names")
    if id_column is not None:
        for reader in comparison.readers:
            reader.infer_schema()
    elif difference := comparison.compare_schemas():
        raise UsageError(f"the records cannot be compared: schemas: {difference}; give --id COLUMN")
    key = HashKey()
    before, after = (_sample_hashes(reader, job, id_column, key) for reader in comparison.readers)
    check_unchanged(file for reader in comparison.readers for file in reader.record_set.files)
    file_count = len(comparison.inputs.record_set.files)
    return match_records(before, after, file_count, np.random.default_rng(SEED))


def _match_by_provenance(job: Job, progress: Progress) -> Matching:
    reader = open_tables(job, progress, (FILE_COLUMN, ROW_COLUMN))
    sample, provenance = BottomKSample.within(job.memory_bytes), ProvenanceReader()

    def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
        values, priorities = provenance.read(table)
        sample.add(pa.array(values), priorities, file, first_row)

    reader.read_tables(visit)
    check_unchanged(reader.record_set.files)
    return provenance.match_records(sample, job.inputs[0])


def sample_column(job: Job, progress: Progress, column: str, sample_count: int = 1) -> BottomKSample:
    """Return a sample of the values of a column of a job's inputs, one of `sample_count` that share the memory limit."""
    _check_readable(job)
    for name in job.inputs:
        if not isinstance(name, TableName) and Path(name).is_dir():
            with suppress(InputError):  # nothing else of it is wanted
                _warn_of_groups(name, read_manifest(job, name), progress)
    reader = open_tables(_read_only(job, column), progress)
    sample = BottomKSample.within(job.memory_bytes, sample_count)

    def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
        priorities = draw_keys(SEED, [(file, first_row, table.num_rows)])
        sample.add(find_value(table, column), priorities, file, first_row)

    reader.read_tables(visit)
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

    def visit_table(table: pa.RecordBatch, file: int, first_row: int, column: str) -> None:
        ids = pa.RecordBatch.from_arrays([find_value(table, column)], ["id"])
        add(hash_rows(ids, key, is_converted=True), file, first_row)

    if id_column is None:
        reader.read_hashes("read", add)
    else:
        reader.read_tables(partial(visit_table, column=id_column))
    return sample
