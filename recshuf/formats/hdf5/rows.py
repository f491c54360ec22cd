"""Reads rows of the datasets of one input as native batches; the rows of sparse matrices are lists."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np
import pyarrow as pa
from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.columns import Change, open_dataset, read_pointers, select_rows
from recshuf.formats.hdf5.contents import check_stamp, close_file, content_of, open_file, reading
from recshuf.formats.hdf5.filters import ChunkReader, find_pipeline
from recshuf.formats.hdf5.guards import ChunkChecker, RowGuard, SizeLimit, ValueGuard
from recshuf.formats.hdf5.roles import WRITE_ANEW
from recshuf.formats.hdf5.types import BadValueError, Kind, wrap_rows, wrap_values
from recshuf.interfaces import BatchLimits, Fragment, cut_batch
from recshuf.records.arrays import wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.inventory import Dataset, Inventory, Lists


_FIRST_ROWS = 64
_MOST_BLOCKS = 4
"""Most blocks of a fragment, to let it begin and end with a chunk."""
_VARIABLE_COPIES = 4
"""Copies of variable-length values: in the library, as Python objects, in Arrow, and one for peaks."""
_CHUNK_COPIES = 3
"""Copies of a chunk: stored, inflated in pieces, and joined."""


class RowReader:
    """An input held open, from which any thread reads rows; of `cached` datasets a chunk stays in memory between reads."""

    def __init__(self, inventory: Inventory, schema: pa.Schema, cached: list[bool]) -> None:
        self.name = inventory.name
        self.schema = schema
        self.inventory = inventory
        self._is_begun = False
        self._file = open_file(inventory.input_file)
        finalize(self, close_file, self._file)
        check_stamp(self._file, self.name, self.inventory.stamp)
        with reading(self.name):
            pairs = zip(inventory.datasets, cached, strict=True)
            self._readers = [_DatasetReader(self._file, self.name, each, keeps=keep) for each, keep in pairs]

    def count_fitting(self, start: int, stop: int, most_bytes: int, limit: SizeLimit) -> int:
        """Return how many of rows ``start:stop`` have no more bytes in sparse matrices; at least one."""
        byte_count = np.zeros(stop - start, np.int64)
        for reader in self._readers:
            if reader.pointers is not None:
                sizes = np.diff(reader.pointers.read(start, stop)) * reader.item_bytes
                limit.check(sizes, start, reader.pointers.path, self.name)
                byte_count += sizes
        return max(1, int(np.searchsorted(np.cumsum(byte_count), most_bytes, side="right")))

    def check_values(self, start: int, stop: int, limit: SizeLimit) -> None:
        """Check the variable-length values of rows ``start:stop`` without reading them."""
        for reader in self._readers:
            if reader.value_guard is not None:
                with reading(self.name, reader.name_rows(start, stop)):
                    reader.value_guard.check(start, stop, limit)

    def read(self, start: int, stop: int) -> pa.RecordBatch:
        """Return rows ``start:stop`` as a batch that owns its memory."""
        if not self._is_begun:
            self._is_begun = True
            with reading(self.name):
                content_of(self._file).expect(self._list_expected())
        arrays = []
        for reader in self._readers:
            with reading(self.name, reader.name_rows(start, stop)):
                arrays.append(reader.read(start, stop))
        check_stamp(self._file, self.name, self.inventory.stamp)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _list_expected(self) -> list[tuple[int, int]]:
        """Return the bytes ``begin:end`` that are read in order, a range for each dataset.

        None if a dataset may lie in another order, or most of the file is not read.
        """
        storages, file_bytes = [each.storage for each in self.inventory.datasets], self.inventory.stamp.size
        begins = {storage.begin or 0 for storage in storages}
        stored_bytes = sum(storage.stored_bytes for storage in storages)
        if not self.inventory.is_fixed or 0 in begins or 2 * stored_bytes < file_bytes:
            return []
        guards = [reader.row_guard for reader in self._readers]
        if not all(guard is None or guard.seems_ordered() for guard in guards):
            return []
        places = [0, *sorted(begins)[1:], file_bytes]
        return [(begin, end) for begin, end in pairwise(places) if begin < end]


class _DatasetReader:
    """Reads the rows of one dataset of an open file; `keeps` a chunk in memory between reads."""

    value_guard: ValueGuard | None = None
    row_guard: RowGuard | None = None
    pointers: _PointerReader | None = None

    def __init__(self, file: h5py.File, name: str, dataset: Dataset, *, keeps: bool) -> None:
        own, storage = dataset.own, dataset.storage
        self._name = name
        self._column = own
        self._dataset = open_dataset(file, storage.path, storage.chunk_bytes * keeps)
        self._stored = own if dataset.lists is None else own.items
        self.item_bytes = self._stored.row_bytes
        if dataset.lists is not None:
            self.pointers = _PointerReader(file, dataset.lists, name)
        self._change = None if own.type_code == dataset.column.type_code else Change(own, dataset.column)
        self._inflater: ChunkReader | None = None
        content = content_of(file)
        if self._stored.kind is not Kind.FIXED:
            self.value_guard = ValueGuard(file, content, self._dataset, own, name)
        else:
            pipeline = find_pipeline(self._dataset, self._stored.tid.get_size())
            if pipeline and pipeline.compresses:
                self._inflater = ChunkReader(self._dataset, pipeline, keeps=keeps)
        if storage.index_root is not None:
            checker = ChunkChecker(self._dataset, storage.path, name, content.stamp.size)
            self.row_guard = RowGuard(content, storage.index_root, checker)

    def name_rows(self, start: int, stop: int) -> str:
        return f"rows {start} to {stop} of dataset {self._column.name!r}"

    def read(self, start: int, stop: int) -> pa.Array:
        if self.row_guard is not None:
            self.row_guard.check(start, stop)
        if self.pointers is not None:
            rows = self._read_lists(self.pointers.read(start, stop))
        elif self._column.kind is Kind.FIXED:
            rows = wrap_rows(self._read_fixed(start, stop), self._column.native_width)
        else:
            rows = self._read_variable(start, stop)
        if self._change is None:
            return rows
        try:
            return self._change.apply(rows)
        except BadValueError as error:
            place = f"row {start + error.row} of dataset {self._column.name!r}"
            raise InputError(
                self._name, error.problem, place=place, remedy="shuffle the files apart"
            ) from error

    def _read_lists(self, bounds: NDArray[np.int64]) -> pa.Array:
        start, stop = int(bounds[0]), int(bounds[-1])
        raw = self._read_fixed(start, stop) if stop > start else np.zeros(0, np.uint8)
        return wrap_bytes(raw, (bounds - start) * self.item_bytes)

    def _read_fixed(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the stored bytes: reading in the file's own type converts nothing."""
        if self.item_bytes and self._inflater is not None:
            return self._inflater.read(start, stop)
        raw = np.zeros((stop - start) * self._stored.native_width, np.uint8)
        if self.item_bytes:
            in_memory, in_file = select_rows(self._dataset, start, stop - start, self._stored.row_shape)
            self._dataset.read(in_memory, in_file, raw, self._dataset.get_type())
        return raw

    def _read_variable(self, start: int, stop: int) -> pa.Array:
        kind, tid = self._column.kind, self._column.tid
        values = np.zeros(stop - start, tid.dtype if kind is Kind.COMPOUND else object)
        if stop > start:
            in_memory, in_file = select_rows(self._dataset, start, stop - start, ())
            self._dataset.read(in_memory, in_file, values, h5t.py_create(self._dataset.dtype))
        return wrap_values(values, kind, tid)


class _PointerReader:
    """Reads where the rows of a matrix begin and end; any thread may use it."""

    def __init__(self, file: h5py.File, lists: Lists, name: str) -> None:
        self.path = lists.matrix.pointers
        self._item_count = lists.item_count
        self._name = name
        self._dataset = open_dataset(file, self.path, lists.pointers.chunk_bytes)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bounds of rows ``start:stop`` among all items, one more than rows."""
        with reading(self._name, f"rows {start} to {stop} of dataset {self.path!r}"):
            bounds = read_pointers(self._dataset, start, stop - start + 1)
        is_wrong = (bounds[1:] < bounds[:-1]) | (bounds[1:] > self._item_count) | (bounds[:-1] < 0)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            problem = f"a row that begins at {bounds[row]} of {self._item_count} numbers cannot end at {bounds[row + 1]}"
            place = f"row {start + row} of dataset {self.path!r}"
            raise InputError(self._name, problem, place=place, remedy=WRITE_ANEW)
        return bounds


class RowFragment(Fragment):
    """Rows ``start:stop`` of one input; `batch_bytes` are the most of a batch of several records, `limit` is for values."""

    def __init__(self, reader: RowReader, start: int, stop: int, batch_bytes: int, limit: SizeLimit) -> None:
        self.record_count = stop - start
        self._reader = reader
        self._start = start
        self._stop = stop
        self._batch_bytes = batch_bytes
        self._limit = limit

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield fixed rows in slices of one read; of others few first, then as many as fill a batch by the size of those."""
        inventory = self._reader.inventory
        if inventory.is_fixed:
            batch = self._reader.read(self._start, self._stop)
            rows = max(1, self._batch_bytes // inventory.fixed_bytes)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
            return
        self._reader.check_values(self._start, self._stop, self._limit)
        start, rows = self._start, _FIRST_ROWS
        limits = BatchLimits(self._batch_bytes, self._limit.max_bytes, f"raise {self._limit.option}")
        while start < self._stop:
            stop = min(start + rows, self._stop)
            stop = start + self._reader.count_fitting(start, stop, self._batch_bytes, self._limit)
            batch = self._reader.read(start, stop)
            yield from cut_batch(batch, self._reader.name, start, limits)
            start += batch.num_rows
            rows = min(2 * rows, max(1, self._batch_bytes * batch.num_rows // max(1, batch.nbytes)))


def list_fragments(
    inventory: Inventory, schema: pa.Schema, block_bytes: int, limit: SizeLimit
) -> Iterator[RowFragment]:
    if inventory.row_count == 0:
        return
    _check_limits(inventory, limit)
    rows = _rows_of_fragment(inventory, block_bytes)
    reader = RowReader(inventory, schema, _find_cached(inventory, rows))
    for start in range(0, inventory.row_count, rows):
        yield RowFragment(reader, start, min(start + rows, inventory.row_count), block_bytes, limit)


def _check_limits(inventory: Inventory, limit: SizeLimit) -> None:
    sizes = [("row 0", "record", inventory.fixed_bytes)]
    storages = [*(each.storage for each in inventory.datasets), *inventory.pointers]
    sizes += [(f"dataset {each.path!r}", "chunk", each.chunk_bytes) for each in storages]
    for place, what, byte_count in sizes:
        if byte_count > limit.max_bytes:
            problem = f"a {what} has {byte_count} bytes, more than the {limit.max_bytes} allowed"
            remedy = f"raise {limit.option}"
            raise InputError(inventory.name, problem, place=place, remedy=remedy, record_bytes=byte_count)


def _rows_of_fragment(inventory: Inventory, block_bytes: int) -> int:
    """Return the rows of a fragment.

    Fragments end with a chunk of the heaviest dataset, so that its chunks are inflated once. If such a chunk is far larger
    than a block, they do not, and the chunk is kept between reads.
    """
    # Or the average if it varies.
    record_bytes = max(1, inventory.native_bytes // max(1, inventory.row_count))
    rows = max(1, block_bytes // record_bytes)
    _, chunk_rows = max((each.column.row_bytes, each.storage.chunk_rows or 1) for each in inventory.datasets)
    if chunk_rows * record_bytes > _MOST_BLOCKS * block_bytes:
        return rows
    return max(1, rows // chunk_rows) * chunk_rows


def _find_cached(inventory: Inventory, rows: int) -> list[bool]:
    """Tell for which datasets a chunk is kept between reads: those whose chunks span fragments."""
    chunk_rows = [each.storage.chunk_rows for each in inventory.datasets]
    return [each is not None and (not inventory.is_fixed or rows % each > 0) for each in chunk_rows]


def count_reading_bytes(inventory: Inventory, block_bytes: int) -> int:
    rows = _rows_of_fragment(inventory, block_bytes)
    fixed = rows * (inventory.fixed_bytes + 2 * inventory.changed_bytes)
    variable = _VARIABLE_COPIES * block_bytes if inventory.variable_bytes else 0
    chunks = [each.storage.chunk_bytes for each in inventory.datasets]
    kept = sum(size for size, keep in zip(chunks, _find_cached(inventory, rows), strict=True) if keep)
    kept += sum(each.chunk_bytes for each in inventory.pointers)
    return fixed + variable + kept + _CHUNK_COPIES * max(chunks)
