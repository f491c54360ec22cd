"""Reads and writes the compressed rows of sparse matrices as lists, one for each record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from h5py import h5d, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunk_index import check_chunks
from recshuf.formats.hdf5.contents import check_access
from recshuf.formats.hdf5.opening import read_stamp, reading
from recshuf.formats.hdf5.sparse import SHAPE, Matrix
from recshuf.formats.hdf5.types import (
    Column,
    access_plist,
    find_dtype,
    make_column,
    read_column,
    read_storage,
    select_rows,
)
from recshuf.formats.hdf5.writers import LibraryWriter, RowWriter, TaskQueue
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import h5py
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents


_ANEW = "write the matrix anew"


@dataclass(frozen=True, slots=True)
class Lists:
    """How a file stores the rows of a matrix."""

    matrix: Matrix
    item_count: int
    """Items of all rows."""
    width: int
    """Length of the other axis."""


def list_column(stored: Column) -> Column:
    """Return the column of lists whose items are the rows of a dataset."""
    return make_column(h5t.vlen_create(stored.tid), stored.name, (), stored.arrow_type)


def item_column(column: Column) -> Column:
    """Return the column of the items of lists."""
    return make_column(column.tid.get_super(), column.name, (), column.arrow_type)


def read_lists(contents: Contents, matrix: Matrix) -> Lists:
    """Return how an open file stores the rows of a matrix; `InputError` if its datasets do not fit each other."""
    name, place = contents.name, f"dataset {matrix.pointers!r}"
    dataset = _open_integers(contents, matrix.pointers)
    row_count = len(dataset) - 1
    with reading(name, place):
        first, last = (int(_read_pointers(dataset.id, row, 1)[0]) for row in (0, row_count))
    rows, width = _read_shape(contents, matrix)
    counts = {len(contents.file[part]) for part in matrix.parts}
    if first:
        problem = f"begins with {first}, not 0"
    elif counts != {last}:
        problem = f"ends with {last}, but {' and '.join(matrix.parts)} have {' and '.join(map(str, sorted(counts)))} numbers"
    elif rows != row_count:
        problem = f"has the bounds of {row_count} rows, but by its shape the matrix has {rows}"
    else:
        return Lists(matrix, last, width)
    raise InputError(name, problem, place=place, remedy=_ANEW)


def _open_integers(contents: Contents, path: str) -> h5py.Dataset:
    """Return a dataset of at least one integer, whose storage is checked."""
    with reading(contents.name, f"dataset {path!r}"):
        dataset = contents.file[path]
        check_access(dataset, path, contents.name)
        tid = dataset.id.get_type()
        check_chunks(dataset.id, tid.get_size(), path, contents.name, read_stamp(contents.file).size)
        if tid.get_class() != h5t.INTEGER or not len(dataset):
            raise InputError(contents.name, "holds no integers", place=f"dataset {path!r}", remedy=_ANEW)
        return dataset


def _read_shape(contents: Contents, matrix: Matrix) -> tuple[int, int]:
    """Return the number of rows of a matrix, and the length of the other axis."""
    if matrix.is_10x:
        axes = _open_integers(contents, f"{matrix.path}/{SHAPE}")[()][::-1]
    else:
        with reading(contents.name, f"group {matrix.path!r}"):
            axes = np.asarray(contents.file[matrix.path].attrs.get(SHAPE))
    if axes.dtype.kind not in "iu" or axes.shape != (2,):
        raise InputError(
            contents.name, "has no shape of two axes", place=f"group {matrix.path!r}", remedy=_ANEW
        )
    rows, width = axes.tolist()
    return rows, width


def _read_pointers(dataset: h5d.DatasetID, start: int, count: int) -> NDArray[np.int64]:
    values = np.zeros(count, np.int64)
    dataset.read(*select_rows(dataset, start, count, ()), values, h5t.NATIVE_INT64)
    return values


class PointerReader:
    """Reads where the rows of a matrix begin and end; any thread may use it."""

    def __init__(self, file: h5py.File, lists: Lists, item_bytes: int, name: str) -> None:
        self._path = lists.matrix.pointers
        self._item_count = lists.item_count
        self._item_bytes = item_bytes
        self._name = name
        dataset = file[self._path].id
        plist = access_plist(read_storage(dataset, self._path).chunk_bytes)
        self._dataset = h5d.open(file.id, self._path.encode(), plist)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bounds of rows ``start:stop`` among all items, one more than rows."""
        with reading(self._name, f"rows {start} to {stop} of dataset {self._path!r}"):
            bounds = _read_pointers(self._dataset, start, stop - start + 1)
        is_wrong = (bounds[1:] < bounds[:-1]) | (bounds[1:] > self._item_count) | (bounds[:-1] < 0)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            problem = f"a row that begins at {bounds[row]} of {self._item_count} numbers cannot end at {bounds[row + 1]}"
            place = f"row {start + row} of dataset {self._path!r}"
            raise InputError(self._name, problem, place=place, remedy=_ANEW)
        return bounds

    def measure(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bytes of the items of each of rows ``start:stop``."""
        return np.diff(self.read(start, stop)) * self._item_bytes


class ListWriter(RowWriter):
    """Appends lists to a dataset of their items.

    Parameters
    ----------
    pointers
        Writes where the lists begin and end; None if another one of the same matrix does.
    """

    def __init__(self, items: RowWriter, item_bytes: int, pointers: PointerWriter | None) -> None:
        self._items = items
        self._kind = pa.binary(item_bytes)
        self._pointers = pointers

    def append(self, pieces: Sequence[pa.Array]) -> None:
        flat = [self._flatten(piece) for piece in pieces]
        filled = [items for items in flat if len(items)]
        if filled:
            self._items.append(filled)
        if self._pointers is not None:
            for piece in pieces:
                self._pointers.append(np.diff(view_offsets(piece)) // self._kind.byte_width)

    def finish(self) -> None:
        self._items.finish()
        if self._pointers is not None:
            self._pointers.finish()

    def _flatten(self, lists: pa.LargeBinaryArray) -> pa.Array:
        items = view_bytes(lists)
        count = len(items) // self._kind.byte_width
        return pa.FixedSizeBinaryArray.from_buffers(self._kind, count, [None, pa.py_buffer(items)])


class PointerWriter:
    """Writes where the rows of a matrix begin and end; `file` is a shard without rows."""

    def __init__(self, file: h5py.File, path: str, tasks: TaskQueue) -> None:
        self._file = file
        self._group = path.rpartition("/")[0]
        self._dataset = file[path].id
        column = read_column(self._dataset, path)
        dtype = find_dtype(column.tid)
        assert dtype is not None  # noqa: S101 - `read_lists` takes integers only
        self._dtype, self._kind = dtype, pa.binary(dtype.itemsize)
        self._writer = LibraryWriter(self._dataset, column, tasks)
        self._last = 0
        self._write(np.zeros(1, np.int64))

    @property
    def row_count(self) -> int:
        """Number of rows that the shard has."""
        return int(self._dataset.shape[0]) - 1

    def append(self, lengths: NDArray[Any]) -> None:
        """Append rows of so many items."""
        if len(lengths):
            self._write(self._last + np.cumsum(lengths))

    def finish(self) -> None:
        """Write the shape of the matrix."""
        group, row_count = self._file[self._group], self.row_count
        if SHAPE in group:
            group[SHAPE][1] = row_count
        else:
            group.attrs.modify(SHAPE, [row_count, group.attrs[SHAPE][1]])

    def _write(self, pointers: NDArray[np.int64]) -> None:
        self._last = int(pointers[-1])
        values = pa.py_buffer(pointers.astype(self._dtype))
        self._writer.append([pa.FixedSizeBinaryArray.from_buffers(self._kind, len(pointers), [None, values])])
