"""Appending native batches to the datasets of a shard."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5t

from recshuf.formats._hdf5_column import Column, access_plist, find_chunk, read_column, select_rows
from recshuf.formats._hdf5_image import Layout, open_image
from recshuf.formats._hdf5_read import view_offsets
from recshuf.formats._hdf5_shard import ShardFile
from recshuf.formats._hdf5_types import Kind
from recshuf.interfaces import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_STEP_BYTES = 4 << 20
_STEP_ROWS = 1 << 16
_VARIABLE_STEP_BYTES = 8 << 20
_VARIABLE_COPIES = 4


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How the datasets of a shard are written: a pure function of its image."""

    columns: tuple[Column, ...]
    chunk_rows: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    """For each column, the bytes of all chunks that share their rows."""

    @property
    def step_rows(self) -> int:
        """Rows written at once: whole chunks of the heaviest dataset, about 4 MiB of records."""
        if not self.columns:
            return 1
        record_bytes = sum(column.fixed_bytes for column in self.columns)
        heaviest = max(range(len(self.columns)), key=lambda i: self.columns[i].row_bytes)
        chunk_rows = self.chunk_rows[heaviest]
        rows = min(_STEP_ROWS, _STEP_BYTES // record_bytes)
        return max(1, rows // chunk_rows) * chunk_rows

    @property
    def has_variable(self) -> bool:
        """Whether a column is of variable length."""
        return any(column.kind is not Kind.FIXED for column in self.columns)

    @property
    def cache_bytes(self) -> tuple[int, ...]:
        """For each column, how much HDF5 may keep of chunks that are not full yet."""
        cut = [self.has_variable or self.step_rows % rows > 0 for rows in self.chunk_rows]
        return tuple(size * is_cut for size, is_cut in zip(self.chunk_bytes, cut, strict=True))

    @property
    def memory_bytes(self) -> int:
        """Most memory of a sink: the rows waiting, twice while they are joined, caches, and a chunk."""
        step = self.step_rows * sum(column.fixed_bytes for column in self.columns)
        variable = _VARIABLE_COPIES * _VARIABLE_STEP_BYTES if self.has_variable else 0
        return 2 * step + variable + sum(self.cache_bytes) + 2 * max(self.chunk_bytes, default=0)


def plan_shard(layout: Layout) -> ShardPlan:
    """Return how shards of a layout are written."""
    with open_image(layout.image) as file:
        datasets = [file[name].id for name in layout.names]
        columns = [read_column(each, name) for each, name in zip(datasets, layout.names, strict=True)]
        chunk_rows = [(find_chunk(each) or (1,))[0] for each in datasets]
    sizes = [column.native_width * rows for column, rows in zip(columns, chunk_rows, strict=True)]
    return ShardPlan(tuple(columns), tuple(chunk_rows), tuple(sizes))


class _StepCutter:
    """Cuts a stream of batches where the rows so far are a multiple of a number, or enough variable bytes wait.

    Where it cuts depends on the records alone.
    """

    def __init__(self, schema: pa.Schema, rows: int, variable_bytes: int) -> None:
        self._variable = [i for i, field in enumerate(schema) if field.type == pa.large_binary()]
        self._rows = rows
        self._most_bytes = variable_bytes
        self._pending: list[pa.RecordBatch] = []
        self._rows_left = rows
        self._bytes_left = variable_bytes

    def add(self, batch: pa.RecordBatch) -> Iterator[list[pa.RecordBatch]]:
        """Take a batch, and yield the pieces of each step that is complete."""
        ends = self._sum_lengths(batch)
        start = 0
        while True:
            stop = self._find_cut(ends, start)
            if stop > batch.num_rows:
                break
            self._keep(batch.slice(start, stop - start), ends, start)
            yield self.rest()
            start = stop
        self._keep(batch.slice(start), ends, start)

    def rest(self) -> list[pa.RecordBatch]:
        """Return the pieces that wait, and begin a new step."""
        pieces, self._pending = self._pending, []
        self._rows_left = self._rows_left or self._rows
        self._bytes_left = self._most_bytes
        return pieces

    def _sum_lengths(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Return the variable bytes of all rows up to each one, n + 1 numbers."""
        if not self._variable or batch.num_rows == 0:
            return None
        offsets = [view_offsets(batch.column(i)) for i in self._variable]
        ends: np.ndarray = np.sum(offsets, axis=0) - sum(int(each[0]) for each in offsets)
        return ends

    def _find_cut(self, ends: np.ndarray | None, start: int) -> int:
        """Return the row before which the present step ends, if there were rows without end."""
        by_rows = start + self._rows_left
        if ends is None:
            return by_rows
        return min(by_rows, int(np.searchsorted(ends, ends[start] + self._bytes_left)))

    def _keep(self, piece: pa.RecordBatch, ends: np.ndarray | None, start: int) -> None:
        if piece.num_rows:
            self._pending.append(piece)
            self._rows_left -= piece.num_rows
            if ends is not None:
                self._bytes_left -= int(ends[start + piece.num_rows] - ends[start])


class Hdf5Sink(Sink):
    """One HDF5 shard being written, from native batches.

    Parameters
    ----------
    path
        The file, which must not exist.
    image
        The file without records.
    plan
        How its datasets are written.

    Raises
    ------
    OSError
        When the file exists or cannot be written.
    """

    def __init__(self, path: Path, image: bytes, plan: ShardPlan) -> None:
        self._plan = plan
        schema = pa.schema([column.field for column in plan.columns])
        self._cutter = _StepCutter(schema, plan.step_rows, _VARIABLE_STEP_BYTES)
        self._rows_written = 0
        self._record_count = 0
        self._path = path
        self._shard: ShardFile | None = ShardFile(path, image)
        self._file: h5py.File | None = None
        try:
            self._file = h5py.File(self._shard, "r+")
            self._datasets = [
                h5d.open(self._file.id, column.name.encode(), access_plist(cache))
                for column, cache in zip(plan.columns, plan.cache_bytes, strict=True)
            ]
        except BaseException:
            self.abort()
            raise

    @property
    def record_count(self) -> int:
        """Number of records in the shortest dataset."""
        return self._record_count

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of a native batch; they reach the file in steps of fixed size."""
        for pieces in self._cutter.add(batch):
            self._write_step(pieces)

    def close(self) -> None:
        """Write what waits, and complete the file."""
        if self._shard is None or self._file is None:
            return
        try:
            self._write_step(self._cutter.rest())
            self._record_count = min((each.shape[0] for each in self._datasets), default=self._rows_written)
            self._datasets = []
            with _writing(self._shard, self._path):
                self._file.close()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the file as it is."""
        shard, file, self._shard, self._file = self._shard, self._file, None, None
        self._datasets = []
        if shard is None:
            return
        shard.pretend()
        try:
            if file is not None:
                file.close()
        except Exception:  # noqa: S110 - an abort must not hide the error that led to it
            pass
        shard.close()

    def _write_step(self, pieces: list[pa.RecordBatch]) -> None:
        """Append joined batches to every dataset, in their order."""
        row_count = sum(piece.num_rows for piece in pieces)
        if row_count == 0 or self._shard is None:
            return
        with _writing(self._shard, self._path):
            for index, (column, dataset) in enumerate(zip(self._plan.columns, self._datasets, strict=True)):
                joined = _join([piece.column(index) for piece in pieces])
                _append_rows(dataset, column, self._rows_written, joined)
        self._rows_written += row_count


@contextmanager
def _writing(shard: ShardFile, path: Path) -> Iterator[None]:
    """Raise the first error of the file, whatever HDF5 made of it."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        shard.check()
        raise OSError(errno.EIO, f"HDF5 cannot write ({error})", str(path)) from error
    shard.check()


def _join(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _append_rows(dataset: h5d.DatasetID, column: Column, start: int, rows: pa.Array) -> None:
    dataset.set_extent((start + len(rows), *column.row_shape))
    if column.row_bytes == 0:
        return
    in_memory, in_file = select_rows(dataset, start, len(rows), column.row_shape)
    if column.kind is Kind.FIXED:
        dataset.write(in_memory, in_file, _view_fixed(rows, column.row_bytes), dataset.get_type())
    else:
        values = _list_strings(rows) if column.kind is Kind.STRING else _list_arrays(rows, column)
        dataset.write(in_memory, in_file, values, h5t.py_create(dataset.dtype))


def _view_fixed(rows: pa.FixedSizeBinaryArray, width: int) -> np.ndarray:
    return np.frombuffer(rows.buffers()[1], np.uint8, len(rows) * width, rows.offset * width)


def _list_strings(rows: pa.LargeBinaryArray) -> np.ndarray:
    """Return an object array of bytes."""
    strings: np.ndarray = rows.to_numpy(zero_copy_only=False)
    return strings


def _list_arrays(rows: pa.LargeBinaryArray, column: Column) -> np.ndarray:
    """Return an object array of NumPy arrays, which share memory with the rows."""
    dtype = column.tid.get_super().dtype
    offsets = view_offsets(rows)
    data = rows.buffers()[2] or b""
    values = np.frombuffer(data, dtype, (offsets[-1] - offsets[0]) // dtype.itemsize, int(offsets[0]))
    parts = np.split(values, (offsets[1:-1] - offsets[0]) // dtype.itemsize)
    return np.fromiter(parts, object, len(rows))
