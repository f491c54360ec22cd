"""Reads rows of the datasets of one input as native batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np
import pyarrow as pa
from h5py import h5d, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunk_index import ChunkChecker, RowGuard
from recshuf.formats.hdf5.chunks import ChunkReader, SizeLimit, ValueGuard, make_inflater
from recshuf.formats.hdf5.opening import check_stamp, close_file, content_of, open_file, reading
from recshuf.formats.hdf5.types import Column, Kind, Storage, access_plist, select_rows
from recshuf.interfaces import Fragment
from recshuf.records.arrays import view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.formats.hdf5.inventory import Inventory


_FIRST_ROWS = 64


class RowReader:
    """An input held open, from which any thread reads rows.

    Parameters
    ----------
    cached
        For each dataset, whether a chunk is kept in memory between reads.
    """

    def __init__(self, inventory: Inventory, schema: pa.Schema, cached: list[bool]) -> None:
        self.name = inventory.input_file.name
        self.schema = schema
        self.columns = inventory.columns
        self._stamp = inventory.stamp
        self._storages = inventory.storages
        self._is_begun = False
        self._file = open_file(inventory.input_file)
        finalize(self, close_file, self._file)
        check_stamp(self._file, self.name, self._stamp)
        with reading(self.name):
            self._datasets = [
                h5d.open(self._file.id, storage.path.encode(), access_plist(storage.chunk_bytes * keep))
                for storage, keep in zip(inventory.storages, cached, strict=True)
            ]
            self._inflaters: list[ChunkReader | None] = []
            self._guards: list[ValueGuard | None] = []
            for column, dataset, keep in zip(self.columns, self._datasets, cached, strict=True):
                is_fixed = column.kind is Kind.FIXED
                self._inflaters.append(make_inflater(dataset, keeps=keep) if is_fixed else None)
                guard = None if is_fixed else ValueGuard(self._file, dataset, column, self.name, self._stamp)
                self._guards.append(guard)
            self._row_guards = [
                self._guard_rows(*each)
                for each in zip(self._datasets, self.columns, inventory.storages, strict=True)
            ]

    def _guard_rows(self, dataset: h5d.DatasetID, column: Column, storage: Storage) -> RowGuard | None:
        if storage.index_root is None:
            return None
        item_bytes = column.tid.get_size()
        checker = ChunkChecker(dataset, item_bytes, storage.path, self.name, self._stamp.size)
        return RowGuard(content_of(self._file), storage.index_root, checker)

    def check_values(self, start: int, stop: int, limit: SizeLimit) -> None:
        """Check the variable-length values of rows ``start:stop`` without reading them."""
        for column, guard in zip(self.columns, self._guards, strict=True):
            if guard is not None:
                with reading(self.name, f"rows {start} to {stop} of dataset {column.name!r}"):
                    guard.check(start, stop, limit)

    def read(self, start: int, stop: int) -> pa.RecordBatch:
        """Return rows ``start:stop`` as a batch that owns its memory."""
        if not self._is_begun:
            self._is_begun = True
            with reading(self.name):
                content_of(self._file).expect(self._list_expected())
        arrays = [self._read_column(i, start, stop) for i in range(len(self.columns))]
        check_stamp(self._file, self.name, self._stamp)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _list_expected(self) -> list[tuple[int, int]]:
        """Return the bytes ``begin:end`` that are read in order, a range for each dataset.

        Returns
        -------
            Nothing if a dataset may lie in another order, or most of the file is not read.
        """
        begins = {storage.begin or 0 for storage in self._storages}
        stored_bytes = sum(storage.stored_bytes for storage in self._storages)
        is_fixed = all(column.kind is Kind.FIXED for column in self.columns)
        if not is_fixed or 0 in begins or 2 * stored_bytes < self._stamp.size:
            return []
        if not all(guard is None or guard.seems_ordered() for guard in self._row_guards):
            return []
        places = [0, *sorted(begins)[1:], self._stamp.size]
        return [(begin, end) for begin, end in pairwise(places) if begin < end]

    def _read_column(self, index: int, start: int, stop: int) -> pa.Array:
        column, dataset, guard = self.columns[index], self._datasets[index], self._row_guards[index]
        with reading(self.name, f"rows {start} to {stop} of dataset {column.name!r}"):
            if guard is not None:
                guard.check(start, stop)
            if column.kind is Kind.FIXED:
                return _read_fixed(dataset, self._inflaters[index], column, start, stop)
            return _read_variable(dataset, column, start, stop)


def _read_fixed(
    dataset: h5d.DatasetID, inflater: ChunkReader | None, column: Column, start: int, stop: int
) -> pa.Array:
    """Return the stored bytes: reading in the file's own type converts nothing."""
    count, width = stop - start, column.native_width
    if column.row_bytes == 0:
        raw = np.zeros(count * width, np.uint8)
    elif inflater is not None:
        raw = inflater.read(start, stop)
    else:
        raw = np.empty(count * width, np.uint8)
        in_memory, in_file = select_rows(dataset, start, count, column.row_shape)
        dataset.read(in_memory, in_file, raw, dataset.get_type())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(raw)])


def _read_variable(dataset: h5d.DatasetID, column: Column, start: int, stop: int) -> pa.Array:
    values = np.empty(stop - start, object)
    if stop > start:
        in_memory, in_file = select_rows(dataset, start, stop - start, ())
        dataset.read(in_memory, in_file, values, h5t.py_create(dataset.dtype))
    if column.kind is Kind.STRING:
        return pa.array(values, pa.large_binary())
    return _join_arrays(values, column.tid.get_super().get_size())


def _join_arrays(values: np.ndarray, item_bytes: int) -> pa.Array:
    """Return the bytes of NumPy arrays."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) * item_bytes, out=offsets[1:])
    # The byte order stated by h5py may be wrong, but the bytes are those of the file. Without its dtype,
    # concatenate would swap the bytes of members.
    data = (
        np.concatenate(values, dtype=values[0].dtype).view(np.uint8) if offsets[-1] else np.empty(0, np.uint8)
    )
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


class RowFragment(Fragment):
    """Rows ``start:stop`` of one input.

    Parameters
    ----------
    batch_bytes
        Most bytes of a batch of several records.
    limit
        That of variable-length values.
    """

    def __init__(self, reader: RowReader, start: int, stop: int, batch_bytes: int, limit: SizeLimit) -> None:
        self.record_count = stop - start
        self._reader = reader
        self._start = start
        self._stop = stop
        self._batch_bytes = batch_bytes
        self._limit = limit

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order."""
        if all(column.kind is Kind.FIXED for column in self._reader.columns):
            return self._slice_rows()
        return self._read_steps()

    def _slice_rows(self) -> Iterator[pa.RecordBatch]:
        batch = self._reader.read(self._start, self._stop)
        rows = max(1, self._batch_bytes // sum(column.fixed_bytes for column in self._reader.columns))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _read_steps(self) -> Iterator[pa.RecordBatch]:
        """Read few rows first, then as many as fill a batch by the size of those."""
        self._reader.check_values(self._start, self._stop, self._limit)
        start, rows = self._start, _FIRST_ROWS
        while start < self._stop:
            stop = min(start + rows, self._stop)
            batch = self._reader.read(start, stop)
            self._check_lengths(batch, start)
            start += batch.num_rows
            rows = min(2 * rows, max(1, self._batch_bytes * batch.num_rows // max(1, batch.nbytes)))
            yield from self._cut(batch)

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch, halved until each part is small enough."""
        if batch.num_rows <= 1 or batch.nbytes <= self._batch_bytes:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from self._cut(batch.slice(0, half))
            yield from self._cut(batch.slice(half))

    def _check_lengths(self, batch: pa.RecordBatch, first_row: int) -> None:
        for column, array in zip(self._reader.columns, batch.columns, strict=True):
            if column.kind is Kind.FIXED:
                continue
            lengths = np.diff(view_offsets(array))
            if lengths.max() > self._limit.max_bytes:
                row = int(lengths.argmax())
                problem = f"{lengths[row]} bytes are more than the {self._limit.max_bytes} allowed"
                place = f"row {first_row + row} of dataset {column.name!r}"
                raise InputError(
                    self._reader.name, problem, place=place, remedy=f"raise {self._limit.option}"
                )
