"""Reading what an order is told by: where the records of an output come from, or the values of a column."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.order.battery import MIN_RECORDS
from recshuf.audit.order.matching import Origins, find_origins
from recshuf.audit.order.provenance_columns import PlaceNames
from recshuf.audit.order.sample import Sample
from recshuf.audit.order.value_ranks import find_value
from recshuf.audit.verify.hashing import HashKey, hash_rows
from recshuf.audit.verify.record_readers import SideReader, compare_schemas, open_pair, open_tables
from recshuf.audit.verify.record_sets import INPUTS, OUTPUT, read_manifest
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.records.keys import draw_keys
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.system.listing import check_unchanged
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.job.job import Job
    from recshuf.job.progress import Progress

LOTS_SEED = 0
"""Lots decide between equal records, the same way for the same files."""


def read_origins(job: Job, progress: Progress, id_column: str | None = None) -> tuple[Origins, int]:
    """Return where the records of a job's output come from in its inputs, and how many there are in the output.

    Parameters
    ----------
    id_column
        A column whose values tell records apart; None compares whole records.

    Raises
    ------
    UsageError
        When there is no such column, or whole records cannot be compared.
    InputError
        When files cannot be read, or have changed meanwhile.
    """
    if job.output is None or not job.inputs or "-" in (*job.inputs, job.output):
        raise UsageError("files are read more than once here; name files, and no -")
    manifest = read_manifest(job.output)
    readers = open_pair(
        _read_only(job, id_column), job.output, manifest, progress, as_tables=id_column is not None
    )
    if len(readers) == 1:
        raise InputError(job.output, "holds none of the files that its manifest names")
    if id_column is None:
        if difference := compare_schemas(readers):
            raise UsageError(f"the records cannot be compared: schemas: {difference}; give --id COLUMN")
        samples = [_sample_hashes(reader, Sample.within(job.memory_bytes)) for reader in readers]
    else:
        for reader in readers:
            reader.learn()
        key = HashKey()
        samples = [_sample_ids(reader, id_column, key, Sample.within(job.memory_bytes)) for reader in readers]
    check_unchanged(file for reader in readers for file in reader.side.files)
    file_count = len(readers[INPUTS].side.files)
    origins = find_origins(samples[INPUTS], samples[OUTPUT], file_count, np.random.default_rng(LOTS_SEED))
    return origins, samples[OUTPUT].records


def read_places(job: Job, progress: Progress) -> tuple[Origins, int]:
    """Return where the records of a job's inputs, the output of a run, say that they come from, and how many there are.

    Raises
    ------
    UsageError
        When they do not say so.
    InputError
        When two say the same, or files cannot be read, or have changed meanwhile.
    """
    reader = _open_order(job, progress, (FILE_COLUMN, ROW_COLUMN))
    sample, names = Sample.within(job.memory_bytes), PlaceNames()

    def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
        places, lots = names.read_places(table)
        sample.add(pa.array(places), lots, file, first_row)

    reader.read_tables("read", visit)
    check_unchanged(reader.side.files)
    return names.find_origins(sample, job.inputs[0]), sample.records


def _open_order(job: Job, progress: Progress, wanted: tuple[str, ...] = ()) -> SideReader:
    """Return a reader of a job's inputs that has learned their types, at least of the columns `wanted`."""
    if not job.inputs or "-" in job.inputs:
        raise UsageError("files are read more than once here; name files, and no -")
    reader = open_tables(job, progress, wanted)
    reader.learn()
    return reader


def read_values(job: Job, progress: Progress, column: str) -> Sample:
    """Return a sample of the values of a column of a job's inputs.

    Raises
    ------
    UsageError
        When there is no such column.
    InputError
        When files cannot be read, or have changed meanwhile.
    MemoryLimitError
        When so few of the values fit the limit that their order says nothing.
    """
    reader, sample = _open_order(_read_only(job, column), progress), Sample.within(job.memory_bytes)

    def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
        lots = draw_keys(LOTS_SEED, [(file, first_row, table.num_rows)])
        sample.add(find_value(table, column), lots, file, first_row)

    reader.read_tables("read", visit)
    check_unchanged(reader.side.files)
    if sample.kept < min(sample.records, MIN_RECORDS):
        raise MemoryLimitError(
            f"{sample.records:,} values are so large that only {sample.kept:,} of them fit the limit of "
            f"{format_size(job.memory_bytes)}, too few to test their order; raise --memory, or choose another column"
        )
    return sample


def _read_only(job: Job, path: str | None) -> Job:
    """Return a job whose files need not be read beyond a field; None for all."""
    return replace(job, read=replace(job.read, field=path))


def _sample_hashes(reader: SideReader, sample: Sample) -> Sample:
    def visit(hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
        _add_hashes(sample, hashes, file, first_row)

    reader.read_hashes("read", visit)
    return sample


def _sample_ids(reader: SideReader, column: str, key: HashKey, sample: Sample) -> Sample:
    def visit(table: pa.RecordBatch, file: int, first_row: int) -> None:
        ids = pa.RecordBatch.from_arrays([find_value(table, column)], ["id"])
        _add_hashes(sample, hash_rows(ids, key, is_converted=True), file, first_row)

    reader.read_tables("read", visit)
    return sample


def _add_hashes(sample: Sample, hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
    first, second = (np.ascontiguousarray(lane) for lane in hashes.T)
    sample.add(pa.array(first), second, file, first_row)
