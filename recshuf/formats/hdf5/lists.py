"""Reads and writes the compressed rows of sparse matrices as lists, one for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5d, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.contents import reading
from recshuf.formats.hdf5.roles import PARTS, POINTERS, SHAPE, WRITE_ANEW, Matrix
from recshuf.formats.hdf5.storage import (
    Column,
    Storage,
    access_plist,
    make_column,
    read_column,
    read_storage,
    select_rows,
)
from recshuf.formats.hdf5.types import Kind, kind_of, wrap_rows
from recshuf.formats.hdf5.writers import LibraryWriter, RowWriter, TaskQueue
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import h5py
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents


class Lists(NamedTuple):
    """How a file stores the rows of a matrix."""

    matrix: Matrix
    item_count: int
    """Items of all rows."""
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
