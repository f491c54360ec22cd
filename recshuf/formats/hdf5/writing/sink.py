"""Appends native batches to the datasets of a shard."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d

from recshuf.formats.hdf5.file.dataset import access_plist
from recshuf.formats.hdf5.writing.plan import VARIABLE_STEP_BYTES
from recshuf.formats.hdf5.writing.shard_file import ShardFile
from recshuf.formats.hdf5.writing.writers import ChunkWriter, LibraryWriter, RowWriter, TaskQueue
from recshuf.interfaces import Sink
from recshuf.records.arrays.arrow_views import view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.formats.hdf5.writing.plan import DatasetPlan, ShardPlan


class _StepCutter:
    """Cuts a stream of batches at multiples of a number of rows, or when enough variable bytes wait.

    The cuts depend on the records alone.
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
        """Return the row before which the present step ends, if there are enough rows."""
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

    Raises
    ------
    OSError
        When the file exists or cannot be written.
    """

    def __init__(self, path: Path, image: bytes, plan: ShardPlan, threads: int) -> None:
        self._plan = plan
        schema = pa.schema([each.column.field for each in plan.datasets])
        self._cutter = _StepCutter(schema, plan.step_rows, VARIABLE_STEP_BYTES)
        self._rows_written = 0
        self._record_count = 0
        self._path = path
        self._shard: ShardFile | None = ShardFile(path, image)
        self._file: h5py.File | None = None
        self._tasks = TaskQueue(threads)
        try:
            self._file = h5py.File(self._shard, "r+")
            self._datasets = [self._open(self._file, each) for each in plan.datasets]
            self._writers = [
                self._make_writer(dataset, each, self._shard)
                for dataset, each in zip(self._datasets, plan.datasets, strict=True)
            ]
        except BaseException:
            self.abort()
            raise

    def _open(self, file: h5py.File, plan: DatasetPlan) -> h5d.DatasetID:
        return h5d.open(file.id, plan.column.name.encode(), access_plist(self._plan.cache_bytes(plan)))

    def _make_writer(self, dataset: h5d.DatasetID, plan: DatasetPlan, shard: ShardFile) -> RowWriter:
        if plan.pipeline is None:
            return LibraryWriter(dataset, plan.column, self._tasks)
        return ChunkWriter(dataset, plan.column, plan.pipeline, plan.fill, self._tasks, shard)

    @property
    def record_count(self) -> int:
        """Number of records in the shortest dataset."""
        return self._record_count

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of a native batch; they reach the file in steps of fixed size."""
        for pieces in self._cutter.add(batch):
            self._write_step(pieces)

    def close(self) -> None:
        """Write the waiting rows, and complete the file."""
        if self._shard is None or self._file is None:
            return
        try:
            self._write_step(self._cutter.rest())
            with _writing(self._shard, self._path):
                for writer in self._writers:
                    writer.finish()
                self._tasks.drain()
            self._record_count = min((each.shape[0] for each in self._datasets), default=self._rows_written)
            self._datasets, self._writers = [], []
            with _writing(self._shard, self._path):
                self._file.close()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the file as it is."""
        shard, file, self._shard, self._file = self._shard, self._file, None, None
        self._tasks.close()
        self._datasets, self._writers = [], []
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
        for index, (writer, each) in enumerate(zip(self._writers, self._plan.datasets, strict=True)):
            with _writing(self._shard, self._path, f"dataset {each.column.name!r}: "):
                writer.append([piece.column(index) for piece in pieces])
        self._rows_written += row_count


@contextmanager
def _writing(shard: ShardFile, path: Path, place: str = "") -> Iterator[None]:
    """Raise the first error of the file in place of that of HDF5."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        shard.check()
        raise OSError(errno.EIO, f"{place}HDF5 cannot write ({error})", str(path)) from error
    shard.check()
