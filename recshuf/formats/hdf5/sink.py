"""A shard being written: its plan, a pure function of its image, and the sink that appends batches by it."""

from __future__ import annotations

import errno
import io
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

import h5py
import numpy as np
from h5py import h5d

from recshuf.dataclass import dataclass
from recshuf.formats.files import FileSink
from recshuf.formats.hdf5.columns import Column, open_dataset, read_column, select_rows
from recshuf.formats.hdf5.contents import reading
from recshuf.formats.hdf5.filters import Pipeline, find_pipeline
from recshuf.formats.hdf5.inventory import find_pointers
from recshuf.formats.hdf5.roles import ANNDATA, LAYOUT_MARK, PARTS, read_text
from recshuf.formats.hdf5.types import Kind, find_chunk
from recshuf.formats.hdf5.writers import (
    ChunkWriter,
    LibraryWriter,
    ListWriter,
    RowWriter,
    ShardFile,
    task_bytes,
)
from recshuf.interfaces import Sink, Target
from recshuf.records.arrays import view_offsets
from recshuf.system.threads import TaskQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from recshuf.formats.hdf5.columns import Storage
    from recshuf.formats.hdf5.encoder import TableEncoder
    from recshuf.formats.hdf5.template import Layout


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
    stored: Column
    """As in the file; the items of lists that lie there one after the other."""
    pointers: Storage | None
    """The dataset that says where such lists begin."""
    chunk_rows: int
    pipeline: Pipeline | None
    """Filters applied outside of HDF5; None if HDF5 applies them."""
    fill: bytes
    """An element that was never written; used with a pipeline only."""

    @property
    def points(self) -> bool:
        """Whether its lists are those that the pointers are made from."""
        return self.pointers is not None and self.column.name.endswith(f"/{PARTS[0]}")

    @property
    def band_bytes(self) -> int:
        return self.stored.native_width * self.chunk_rows


@dataclass(frozen=True)  # without slots, so that what sums over all datasets is found once
class ShardPlan:
    """Plan for all datasets of a shard."""

    datasets: tuple[DatasetPlan, ...]
    suffix: str

    @cached_property
    def step_rows(self) -> int:
        """Rows written at once: whole chunks of the heaviest dataset, about 4 MiB of records."""
        record_bytes = sum(each.column.fixed_bytes for each in self.datasets)
        heaviest = max(self.datasets, key=lambda each: each.column.row_bytes)
        rows = min(_STEP_ROWS, _STEP_BYTES // record_bytes)
        return max(1, rows // heaviest.chunk_rows) * heaviest.chunk_rows

    @cached_property
    def has_variable(self) -> bool:
        return any(each.column.kind is not Kind.FIXED for each in self.datasets)

    def waiting_bytes(self, dataset: DatasetPlan) -> int:
        """Return the bytes of partial chunks of a dataset at the end of a step."""
        is_cut = self.has_variable or self.step_rows % dataset.chunk_rows > 0
        return dataset.band_bytes * is_cut

    def memory_bytes(self, threads: int) -> int:
        """Return the peak memory of a sink: waiting rows, twice while they are joined, and chunks."""
        own = [each for each in self.datasets if each.pipeline]
        left = [each for each in self.datasets if not each.pipeline]
        step = self.step_rows * sum(each.column.fixed_bytes for each in self.datasets)
        variable = _VARIABLE_COPIES * VARIABLE_STEP_BYTES if self.has_variable else 0
        columns = _DATASET_BYTES * len(self.datasets)
        columns += sum(
            2 * each.pointers.chunk_bytes for each in self.datasets if each.pointers and each.points
        )
        # HDF5's caches, and the bands that it filters; then chunks filtered outside of it.
        library = sum(map(self.waiting_bytes, left)) + 2 * max((each.band_bytes for each in left), default=0)
        most = max((each.pipeline.chunk_bytes for each in own if each.pipeline), default=0)
        chunks = task_bytes(sum(map(self.waiting_bytes, own)), most, threads) if own else 0
        return 2 * step + variable + columns + library + chunks


def plan_shard(layout: Layout) -> ShardPlan:
    # Writable, since the stored fill value can only be read from a dataset with a row.
    with h5py.File(io.BytesIO(layout.image), "r+") as file:
        pointers = find_pointers(file, layout.names)
        plans = [_plan_dataset(file, name, pointers.get(name), layout.source) for name in layout.names]
        is_anndata = read_text(file["/"], LAYOUT_MARK) == ANNDATA
        return ShardPlan(tuple(plans), ".h5ad" if is_anndata else ".h5")


def _plan_dataset(file: h5py.File, name: str, pointers: Storage | None, source: str) -> DatasetPlan:
    with reading(source, f"dataset {name!r}"):
        dataset = file[name].id
        column = read_column(dataset, name)
        chunk_rows = (find_chunk(dataset) or (1,))[0]
        pipeline = None
        if column.kind is Kind.FIXED and column.row_bytes:
            pipeline = find_pipeline(dataset, column.tid.get_size())
            pipeline = pipeline if pipeline and pipeline.can_encode else None
        fill = _read_fill(dataset, column) if pipeline else b""
        native = column if pointers is None else column.lists
        return DatasetPlan(native, column, pointers, chunk_rows, pipeline, fill)


def _read_fill(dataset: h5d.DatasetID, column: Column) -> bytes:
    dataset.set_extent((1, *column.row_shape))
    in_memory, in_file = select_rows(dataset, 0, 1, tuple(1 for _ in column.row_shape))
    element = np.zeros(column.tid.get_size(), np.uint8)
    if dataset.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_UNDEFINED:
        return element.tobytes()
    dataset.read(in_memory, in_file, element, dataset.get_type())
    return element.tobytes()


class _StepCutter:
    """Cuts a stream of batches at multiples of a number of rows, or when enough variable bytes wait.

    The cuts depend on the records alone.
    """

    def __init__(self, variable: Sequence[int], rows: int, variable_bytes: int) -> None:
        self._variable = variable
        self._rows = rows
        self._most_bytes = variable_bytes
        self._pending: list[pa.RecordBatch] = []
        self._rows_left = rows
        self._bytes_left = variable_bytes

    def add(self, batch: pa.RecordBatch) -> Iterator[list[pa.RecordBatch]]:
        offsets = [view_offsets(batch.column(i)) for i in self._variable]
        ends: np.ndarray = np.sum(offsets, axis=0) if offsets else np.zeros(batch.num_rows + 1, np.int64)
        start = 0
        while start < batch.num_rows:
            by_bytes = int(np.searchsorted(ends, ends[start] + self._bytes_left))
            stop = min(start + self._rows_left, by_bytes)
            is_full = stop <= batch.num_rows
            piece = batch.slice(start, stop - start)
            self._pending.append(piece)
            self._rows_left -= piece.num_rows
            self._bytes_left -= int(ends[start + piece.num_rows] - ends[start])
            start += piece.num_rows
            if is_full:
                yield self.rest()

    def rest(self) -> list[pa.RecordBatch]:
        """Return the pieces that wait, and begin a new step."""
        pieces, self._pending = self._pending, []
        self._rows_left = self._rows_left or self._rows
        self._bytes_left = self._most_bytes
        return pieces


class Hdf5Sink(FileSink):
    """One HDF5 shard being written, in a new file; an encoder turns table form into native batches."""

    def __init__(
        self, path: Path, image: bytes, plan: ShardPlan, threads: int, encoder: TableEncoder | None = None
    ) -> None:
        self._plan = plan
        self._encoder = encoder
        variable = [i for i, each in enumerate(plan.datasets) if each.column.kind is not Kind.FIXED]
        self._cutter = _StepCutter(variable, plan.step_rows, VARIABLE_STEP_BYTES)
        self._path, self._shard, self._tasks = path, ShardFile(path, image), TaskQueue(threads)
        with ExitStack() as files:
            files.callback(self._shard.close)
            self._file = h5py.File(self._shard, "r+")
            files.callback(_discard, self._file)
            files.callback(self._shard.pretend)
            files.callback(self._tasks.close)
            self._writers = [self._make_writer(self._file, each) for each in plan.datasets]
            files.callback(self._writers.clear)
            super().__init__(files)

    def _make_writer(self, file: h5py.File, plan: DatasetPlan) -> RowWriter:
        cache_bytes = 0 if plan.pipeline else self._plan.waiting_bytes(plan)
        dataset = open_dataset(file, plan.column.name, cache_bytes)
        writer: RowWriter = LibraryWriter(dataset, plan.stored, self._tasks)
        if plan.pipeline is not None:
            writer = ChunkWriter(dataset, plan.stored, plan.pipeline, plan.fill, self._tasks)
        if plan.pointers is None:
            return writer
        dataset = open_dataset(file, plan.pointers.path, plan.pointers.chunk_bytes)
        pointers = LibraryWriter(dataset, read_column(dataset, plan.pointers.path), self._tasks)
        group = file[plan.pointers.path].parent if plan.points else None
        return ListWriter(writer, plan.stored.row_bytes, pointers, group)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append records; they reach the file in steps of fixed size."""
        native = batch if self._encoder is None else self._encoder.encode(batch)
        for pieces in self._cutter.add(native):
            self._write_step(pieces)

    def _complete(self) -> None:
        self._write_step(self._cutter.rest())
        with _writing(self._shard, self._path):
            for writer in self._writers:
                writer.finish()
            self._tasks.drain()
        self._count = min(writer.row_count for writer in self._writers)
        self._writers.clear()
        with _writing(self._shard, self._path):
            self._file.close()

    def _write_step(self, pieces: list[pa.RecordBatch]) -> None:
        if not pieces:
            return
        for index, (writer, each) in enumerate(zip(self._writers, self._plan.datasets, strict=True)):
            with _writing(self._shard, self._path, f"dataset {each.column.name!r}: "):
                writer.append([piece.column(index) for piece in pieces])


def _discard(file: h5py.File) -> None:
    with suppress(Exception):  # an abort must not hide the error that led to it
        file.close()


@contextmanager
def _writing(shard: ShardFile, path: Path, place: str = "") -> Iterator[None]:
    """Raise the first error of the file in place of that of HDF5."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        shard.check()
        raise OSError(errno.EIO, f"{place}HDF5 cannot write ({error})", str(path)) from error
    shard.check()


class Hdf5Target(Target):
    """Shards that begin with the image of a layout; an encoder turns table form into native batches."""

    def __init__(self, layout: Layout, encoder: TableEncoder | None = None) -> None:
        self._layout = layout
        self.notes = tuple(layout.notes.values())
        self._plan = plan_shard(layout)
        self.suffix = self._plan.suffix
        self._encoder = encoder

    def sink_bytes(self, threads: int) -> int:
        """Return the memory of rows that wait for a full step, and of chunks being written."""
        return self._plan.memory_bytes(threads) + len(self._layout.image)

    def open(self, path: Path, threads: int) -> Sink:
        return Hdf5Sink(path, self._layout.image, self._plan, threads, self._encoder)
