"""Reads rows of the datasets of one input as native batches; the rows of sparse matrices are lists, and are written as such."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from weakref import finalize

import numpy as np
import pyarrow as pa
from h5py import h5d, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunks import ChunkReader, SizeLimit, ValueGuard
from recshuf.formats.hdf5.contents import check_stamp, close_file, content_of, open_file, reading
from recshuf.formats.hdf5.filters import find_pipeline
from recshuf.formats.hdf5.forms import BadValueError
from recshuf.formats.hdf5.roles import PARTS, POINTERS, SHAPE, WRITE_ANEW, Matrix
from recshuf.formats.hdf5.storage import (
    ChunkChecker,
    Column,
    RowGuard,
    Storage,
    access_plist,
    make_column,
    read_column,
    read_storage,
    select_rows,
)
from recshuf.formats.hdf5.types import Kind, Packer, join_arrays, kind_of, wrap_lists, wrap_rows
from recshuf.formats.hdf5.uniting import Change
from recshuf.formats.hdf5.writers import LibraryWriter, RowWriter, TaskQueue
from recshuf.interfaces import Fragment
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import h5py
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.formats.hdf5.inventory import Inventory


_FIRST_ROWS = 64


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
            self._readers = [
                _DatasetReader(self._file, inventory, index, keeps=keep) for index, keep in enumerate(cached)
            ]

    def count_fitting(self, start: int, stop: int, most_bytes: int, limit: SizeLimit) -> int:
        """Return how many of rows ``start:stop`` have no more bytes in sparse matrices; at least one."""
        byte_count = np.zeros(stop - start, np.int64)
        for reader in self._readers:
            if reader.pointers is not None:
                sizes = reader.pointers.measure(start, stop)
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
        begins = {storage.begin or 0 for storage in self.inventory.storages}
        stored_bytes = sum(storage.stored_bytes for storage in self.inventory.storages)
        if not self.inventory.is_fixed or 0 in begins or 2 * stored_bytes < self.inventory.stamp.size:
            return []
        guards = [reader.row_guard for reader in self._readers]
        if not all(guard is None or guard.seems_ordered() for guard in guards):
            return []
        places = [0, *sorted(begins)[1:], self.inventory.stamp.size]
        return [(begin, end) for begin, end in pairwise(places) if begin < end]


class _DatasetReader:
    """Reads the rows of one dataset of an open file; `keeps` a chunk in memory between reads."""

    value_guard: ValueGuard | None = None
    row_guard: RowGuard | None = None

    def __init__(self, file: h5py.File, inventory: Inventory, index: int, *, keeps: bool) -> None:
        column, storage = inventory.own[index], inventory.storages[index]
        wanted = inventory.columns[index]
        name, stamp = inventory.name, inventory.stamp
        plist = access_plist(storage.chunk_bytes * keeps)
        dataset = h5d.open(file.id, storage.path.encode(), plist)
        self._column = column
        self._dataset = dataset
        lists = inventory.lists.get(column.name)
        self._stored = column if lists is None else item_column(column)
        self.pointers = None if lists is None else PointerReader(file, lists, self._stored.row_bytes, name)
        self._name = name
        self._change = None if wanted.type_code == column.type_code else Change(column, wanted)
        self._packer = Packer(column.tid) if column.kind is Kind.COMPOUND else None
        self._inflater: ChunkReader | None = None
        item_bytes = self._stored.tid.get_size()
        if self._stored.kind is not Kind.FIXED:
            self.value_guard = ValueGuard(file, content_of(file), dataset, column, name)
        elif (pipeline := find_pipeline(dataset, item_bytes)) and pipeline.compresses:
            self._inflater = ChunkReader(dataset, pipeline, keeps=keeps)
        if storage.index_root is not None:
            checker = ChunkChecker(dataset, item_bytes, storage.path, name, stamp.size)
            self.row_guard = RowGuard(content_of(file), storage.index_root, checker)

    def name_rows(self, start: int, stop: int) -> str:
        return f"rows {start} to {stop} of dataset {self._column.name!r}"

    def read(self, start: int, stop: int) -> pa.Array:
        if self.row_guard is not None:
            self.row_guard.check(start, stop)
        rows = self._read_given(start, stop)
        if self._change is None:
            return rows
        try:
            return self._change.apply(rows)
        except BadValueError as error:
            place = f"row {start + error.row} of dataset {self._column.name!r}"
            raise InputError(self._name, error.problem, place=place) from error

    def _read_given(self, start: int, stop: int) -> pa.Array:
        if self.pointers is not None:
            return self._read_lists(self.pointers.read(start, stop))
        if self._column.kind is not Kind.FIXED:
            return self._read_variable(start, stop)
        return wrap_rows(self._read_fixed(start, stop), self._column.native_width)

    def _read_lists(self, bounds: NDArray[np.int64]) -> pa.Array:
        start, stop = int(bounds[0]), int(bounds[-1])
        raw = self._read_fixed(start, stop) if stop > start else np.zeros(0, np.uint8)
        return wrap_lists((bounds - start) * self._stored.row_bytes, raw)

    def _read_fixed(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the stored bytes: reading in the file's own type converts nothing."""
        if self._stored.row_bytes and self._inflater is not None:
            return self._inflater.read(start, stop)
        raw = np.zeros((stop - start) * self._stored.native_width, np.uint8)
        if self._stored.row_bytes:
            in_memory, in_file = select_rows(self._dataset, start, stop - start, self._stored.row_shape)
            self._dataset.read(in_memory, in_file, raw, self._dataset.get_type())
        return raw

    def _read_variable(self, start: int, stop: int) -> pa.Array:
        values = np.zeros(stop - start, self._packer.dtype if self._packer else object)
        if stop > start:
            in_memory, in_file = select_rows(self._dataset, start, stop - start, ())
            self._dataset.read(in_memory, in_file, values, h5t.py_create(self._dataset.dtype))
        if self._column.kind is Kind.STRING:
            return pa.array(values, pa.large_binary())
        if self._packer is not None:
            return self._packer.pack(values)
        return join_arrays(values, self._column.tid.get_super().get_size())


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
        return self._slice_rows() if self._reader.inventory.is_fixed else self._read_steps()

    def _slice_rows(self) -> Iterator[pa.RecordBatch]:
        batch = self._reader.read(self._start, self._stop)
        rows = max(1, self._batch_bytes // self._reader.inventory.fixed_bytes)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def _read_steps(self) -> Iterator[pa.RecordBatch]:
        """Read few rows first, then as many as fill a batch by the size of those."""
        self._reader.check_values(self._start, self._stop, self._limit)
        start, rows = self._start, _FIRST_ROWS
        while start < self._stop:
            stop = min(start + rows, self._stop)
            stop = start + self._reader.count_fitting(start, stop, self._batch_bytes, self._limit)
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
        for column, array in zip(self._reader.inventory.columns, batch.columns, strict=True):
            if column.kind is Kind.FIXED:
                continue
            self._limit.check(np.diff(view_offsets(array)), first_row, column.name, self._reader.name)


class Lists(NamedTuple):
    """How a file stores the rows of a matrix."""

    matrix: Matrix
    item_count: int
    width: int
    """Length of the other axis."""
    pointers: Storage
    most_items: int
    """Largest number that the type of the pointers holds."""


def list_column(stored: Column) -> Column:
    """Return the column of lists whose items are the rows of a dataset."""
    return make_column(h5t.vlen_create(stored.tid), stored.name, (), stored.arrow_type)


def item_column(column: Column) -> Column:
    return make_column(column.tid.get_super(), column.name, (), column.arrow_type)


def read_lists(contents: Contents, matrix: Matrix) -> Lists:
    """Return how an open file stores the rows of a matrix; `InputError` if its datasets do not fit each other."""
    with reading(contents.name, f"group {matrix.path!r}"):
        pointers = contents.open_checked(matrix.pointers)
        axes = np.asarray(contents.file[matrix.path].attrs.get(SHAPE))
        if matrix.is_10x:
            axes = contents.open_checked(f"{matrix.path}/{SHAPE}")[()][::-1]
        parts = [contents.file[part] for part in matrix.parts]
        counts = [len(part) for part in parts]
        if axes.shape != (2,) or axes.dtype.kind not in "iu":
            problem = "has no shape of two axes"
        elif any(kind_of(part.id.get_type()) is not Kind.FIXED for part in parts):
            problem = "holds values of variable length"
        elif pointers.id.get_type().get_class() != h5t.INTEGER or not len(pointers):
            problem = f"holds no integers in {POINTERS}"
        else:
            rows, last_row = int(axes[0]), len(pointers) - 1
            begin, end = (int(_read_pointers(pointers.id, row, 1)[0]) for row in (0, last_row))
            if (begin, end, rows) == (0, counts[0], last_row) and counts[0] == counts[1]:
                storage = read_storage(pointers.id, matrix.pointers)
                return Lists(matrix, end, int(axes[1]), storage, int(np.iinfo(pointers.dtype).max))
            stored = f"{counts[0]} values, {counts[1]} indices, and {last_row} rows from {begin} to {end}"
            problem = f"has {rows} rows by its shape, but {stored}"
    raise InputError(contents.name, problem, place=f"group {matrix.path!r}", remedy=WRITE_ANEW)


def _read_pointers(dataset: h5d.DatasetID, start: int, count: int) -> NDArray[np.int64]:
    values = np.zeros(count, np.int64)
    dataset.read(*select_rows(dataset, start, count, ()), values, h5t.NATIVE_INT64)
    return values


def find_pointers(image: h5py.File, names: Collection[str]) -> dict[str, Storage]:
    """Return the pointers of each part of a matrix among the datasets of the record, by its name."""
    pointers = {}
    for name in names:
        group, _, leaf = name.rpartition("/")
        path = f"{group}/{POINTERS}"
        # A whole matrix beside the records has no part among them, and at least one pointer.
        if group and leaf in PARTS and path not in names and path in image and image[path].shape == (0,):
            pointers[name] = read_storage(image[path].id, path)
    return pointers


class PointerReader:
    """Reads where the rows of a matrix begin and end; any thread may use it."""

    def __init__(self, file: h5py.File, lists: Lists, item_bytes: int, name: str) -> None:
        self.path = lists.matrix.pointers
        self._item_count = lists.item_count
        self._item_bytes = item_bytes
        self._name = name
        plist = access_plist(lists.pointers.chunk_bytes)
        self._dataset = h5d.open(file.id, self.path.encode(), plist)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bounds of rows ``start:stop`` among all items, one more than rows."""
        with reading(self._name, f"rows {start} to {stop} of dataset {self.path!r}"):
            bounds = _read_pointers(self._dataset, start, stop - start + 1)
        is_wrong = (bounds[1:] < bounds[:-1]) | (bounds[1:] > self._item_count) | (bounds[:-1] < 0)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            problem = f"a row that begins at {bounds[row]} of {self._item_count} numbers cannot end at {bounds[row + 1]}"
            place = f"row {start + row} of dataset {self.path!r}"
            raise InputError(self._name, problem, place=place, remedy=WRITE_ANEW)
        return bounds

    def measure(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bytes of the items of each of rows ``start:stop``."""
        return np.diff(self.read(start, stop)) * self._item_bytes


class ListWriter(RowWriter):
    """Appends lists to a dataset of their items; `pointers` writes where they begin, unless another one does."""

    def __init__(self, items: RowWriter, item_bytes: int, pointers: PointerWriter | None = None) -> None:
        self._items = items
        self._item_bytes = item_bytes
        self._pointers = pointers

    def append(self, pieces: Sequence[pa.Array]) -> None:
        flat = [self._flatten(piece) for piece in pieces]
        filled = [items for items in flat if len(items)]
        if filled:
            self._items.append(filled)
        if self._pointers is not None:
            lengths = np.concatenate([np.diff(view_offsets(piece)) for piece in pieces])
            self._pointers.append(lengths // self._item_bytes)

    def finish(self) -> None:
        self._items.finish()
        if self._pointers is not None:
            self._pointers.finish()

    def _flatten(self, lists: pa.LargeBinaryArray) -> pa.Array:
        return wrap_rows(view_bytes(lists), self._item_bytes)


class PointerWriter:
    """Writes where the rows of a matrix begin and end; `file` is a shard without rows."""

    def __init__(self, file: h5py.File, storage: Storage, tasks: TaskQueue) -> None:
        self._group = file[storage.path].parent
        self._dataset = h5d.open(file.id, storage.path.encode(), access_plist(storage.chunk_bytes))
        column = read_column(self._dataset, storage.path)
        self._dtype = column.tid.dtype
        self._writer = LibraryWriter(self._dataset, column, tasks)
        self._last = 0
        self._write(np.zeros(1, np.int64))

    @property
    def row_count(self) -> int:
        return int(self._dataset.shape[0]) - 1

    def append(self, lengths: NDArray[np.int64]) -> None:
        self._write(self._last + np.cumsum(lengths))

    def finish(self) -> None:
        """Write the shape of the matrix."""
        if SHAPE in self._group:
            self._group[SHAPE][1] = self.row_count
        else:
            self._group.attrs.modify(SHAPE, [self.row_count, self._group.attrs[SHAPE][1]])

    def _write(self, pointers: NDArray[np.int64]) -> None:
        self._last = int(pointers[-1])
        self._writer.append([wrap_rows(pointers.astype(self._dtype), self._dtype.itemsize)])
