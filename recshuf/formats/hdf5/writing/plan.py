"""Plan for writing the datasets of a shard, a pure function of its image."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import h5py
import numpy as np
from h5py import h5d

from recshuf.formats.hdf5.file.dataset import Column, find_chunk, read_column, select_rows
from recshuf.formats.hdf5.file.opening import reading
from recshuf.formats.hdf5.file.types import Kind
from recshuf.formats.hdf5.filters.pipeline import Pipeline, find_pipeline
from recshuf.formats.hdf5.writing.writers import task_bytes

if TYPE_CHECKING:
    from recshuf.formats.hdf5.writing.template import Layout

_STEP_BYTES = 4 << 20
_STEP_ROWS = 1 << 16
VARIABLE_STEP_BYTES = 8 << 20
_VARIABLE_COPIES = 4
_DATASET_BYTES = 36 << 10
"""Memory of each dataset until it is written: 4,000 to 50,000 columns of Parquet took 37 KB each, read and written."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """Plan for one dataset of a shard."""

    column: Column
    chunk_rows: int
    pipeline: Pipeline | None
    """Filters applied outside of HDF5; None if HDF5 applies them."""
    fill: bytes
    """An element that was never written; used with a pipeline only."""

    @property
    def band_bytes(self) -> int:
        """Bytes of all chunks of the same rows."""
        return self.column.native_width * self.chunk_rows


@dataclass(frozen=True)  # without slots, so that what sums over all datasets is found once
class ShardPlan:
    """Plan for all datasets of a shard."""

    datasets: tuple[DatasetPlan, ...]

    @cached_property
    def step_rows(self) -> int:
        """Rows written at once: whole chunks of the heaviest dataset, about 4 MiB of records."""
        if not self.datasets:
            return 1
        record_bytes = sum(each.column.fixed_bytes for each in self.datasets)
        heaviest = max(self.datasets, key=lambda each: each.column.row_bytes)
        rows = min(_STEP_ROWS, _STEP_BYTES // record_bytes)
        return max(1, rows // heaviest.chunk_rows) * heaviest.chunk_rows

    @cached_property
    def has_variable(self) -> bool:
        """Whether a column is of variable length."""
        return any(each.column.kind is not Kind.FIXED for each in self.datasets)

    def waiting_bytes(self, dataset: DatasetPlan) -> int:
        """Return the bytes of partial chunks of a dataset at the end of a step."""
        is_cut = self.has_variable or self.step_rows % dataset.chunk_rows > 0
        return dataset.band_bytes * is_cut

    def cache_bytes(self, dataset: DatasetPlan) -> int:
        """Return the HDF5 cache bytes for partial chunks of a dataset."""
        return 0 if dataset.pipeline else self.waiting_bytes(dataset)

    def memory_bytes(self, threads: int) -> int:
        """Return the peak memory of a sink: waiting rows, twice while they are joined, and chunks."""
        step = self.step_rows * sum(each.column.fixed_bytes for each in self.datasets)
        variable = _VARIABLE_COPIES * VARIABLE_STEP_BYTES if self.has_variable else 0
        columns = _DATASET_BYTES * len(self.datasets)
        return 2 * step + variable + columns + self._library_bytes() + self._chunk_bytes(threads)

    def _library_bytes(self) -> int:
        """Return the memory of HDF5's caches and of the bands that it filters."""
        left = [each for each in self.datasets if each.pipeline is None]
        largest = max((each.band_bytes for each in left), default=0)
        return sum(map(self.waiting_bytes, left)) + 2 * largest

    def _chunk_bytes(self, threads: int) -> int:
        """Return the memory of chunks filtered outside of HDF5."""
        own = [each for each in self.datasets if each.pipeline is not None]
        sizes = [each.pipeline.chunk_bytes for each in own if each.pipeline]
        return task_bytes(sum(map(self.waiting_bytes, own)), max(sizes), threads) if sizes else 0


def plan_shard(layout: Layout) -> ShardPlan:
    """Return the plan for shards of a layout."""
    # Writable, since the stored fill value can only be read from a dataset with a row.
    with h5py.File(io.BytesIO(layout.image), "r+") as file:
        return ShardPlan(tuple(_plan_dataset(file, name, layout.source) for name in layout.names))


def _plan_dataset(file: h5py.File, name: str, source: str) -> DatasetPlan:
    with reading(source, f"dataset {name!r}"):
        dataset = file[name].id
        column = read_column(dataset, name)
        chunk_rows = (find_chunk(dataset) or (1,))[0]
        pipeline = None
        if column.kind is Kind.FIXED and column.row_bytes:
            pipeline = find_pipeline(dataset, column.tid.get_size())
        fill = _read_fill(dataset, column) if pipeline else b""
        return DatasetPlan(column, chunk_rows, pipeline, fill)


def _read_fill(dataset: h5d.DatasetID, column: Column) -> bytes:
    """Return an element that was never written, of an empty dataset."""
    dataset.set_extent((1, *column.row_shape))
    in_memory, in_file = select_rows(dataset, 0, 1, tuple(1 for _ in column.row_shape))
    element = np.zeros(column.tid.get_size(), np.uint8)
    if dataset.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_UNDEFINED:
        return element.tobytes()
    dataset.read(in_memory, in_file, element, dataset.get_type())
    return element.tobytes()
