"""Samples that an order check needs: an output's records matched with the inputs, or values of a column."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.order.battery import MIN_RECORDS
from recshuf.audit.order.matching import Matching, match_records
from recshuf.audit.order.provenance_columns import ProvenanceReader
from recshuf.audit.order.sample import BottomKSample
from recshuf.audit.order.value_ranks import find_value
from recshuf.audit.verify.comparison import open_comparison, open_tables
from recshuf.audit.verify.hashing import hash_rows
from recshuf.audit.verify.record_sets import read_manifest
from recshuf.audit.verify.word_hashing import HashKey
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.records.keys import draw_keys
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.storage.reading.listing import check_unchanged
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.verify.record_readers import RecordReader
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress

SEED = 0
"""Seed of priorities and of the order among equal records: checks of the same files give the same result."""


def match_output(job: Job, progress: Progress, id_column: str | None = None) -> Matching:
    """Match the records of an output with those of its inputs.

    Parameters
    ----------
    job
        Its output and inputs are matched by content. If it has no output, its inputs are the output of a run, matched by
        their columns of provenance.
    id_column
        A column whose values identify records. None: the whole record does.

    Raises
    ------
    UsageError
        When a column is missing, or whole records cannot be compared.
    InputError
        When two records have the same provenance, or files cannot be read, or have changed meanwhile.
    """
    _check_readable(job)
    if job.output is None:
        return _match_by_provenance(job, progress)
    return _match_by_content(job, job.output, progress, id_column)


def _match_by_content(job: Job, output: str, progress: Progress, id_column: str | None) -> Matching:
    manifest = read_manifest(job, output)
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
    given, made = (_sample_hashes(reader, job, id_column, key) for reader in comparison.readers)
    check_unchanged(file for reader in comparison.readers for file in reader.record_set.files)
    file_count = len(comparison.inputs.record_set.files)
    return match_records(given, made, file_count, np.random.default_rng(SEED))


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
    """Return a sample of the values of a column of a job's inputs, one of `sample_count` that share the memory limit.

    Raises
    ------
    UsageError
        When there is no such column.
    InputError
        When files cannot be read, or have changed meanwhile.
    MemoryLimitError
        When too few of the values fit the limit to test their order.
    """
    _check_readable(job)
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
    """Return a sample of hashes of whole records, or of the values of a column, beside another one."""
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
