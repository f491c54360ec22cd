"""All values of attributes and datasets, copied or hashed in pieces."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from h5py import h5a, h5d, h5s, h5t

from recshuf.formats.hdf5.file.dataset import find_chunk, select_rows
from recshuf.formats.hdf5.file.types import holds_variable_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    _Array = NDArray[Any]

_PIECE_BYTES = 8 << 20
_VARIABLE_ROWS = 4096
"""Rows of a piece with variable-length values."""


def copy_values(
    source: h5a.AttrID | h5d.DatasetID, target: h5a.AttrID | h5d.DatasetID, tid: h5t.TypeID
) -> None:
    """Copy all values of an attribute or a dataset to one of the same type and shape."""
    if isinstance(source, h5a.AttrID):
        if _count_values(source):
            values, memory_type = _make_buffer(source.shape, tid)
            source.read(values, memory_type)
            target.write(values, memory_type)
        return
    for part, values, memory_type in _read_pieces(source, tid):
        target.write(*part, values, memory_type)


class ValueHash:
    """Hash of all values of a dataset; the chunks and filters of its storage do not matter."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self.byte_count = 0
        """Bytes of the values so far."""

    def add_pieces(self, dataset: h5d.DatasetID) -> Iterator[None]:
        """Add all values; yields after every piece."""
        for _, values, _ in _read_pieces(dataset, dataset.get_type()):
            self._add(values)
            yield

    def hexdigest(self) -> str:
        """Return the hash as text."""
        return self._hash.hexdigest()

    def _add(self, values: _Array) -> None:
        if not values.dtype.hasobject:
            self._add_bytes(np.ascontiguousarray(values).data)
        elif values.dtype.names:
            for name in values.dtype.names:
                self._add(values[name])
        else:
            self._add_objects(values.ravel().tolist())

    def _add_objects(self, values: list[Any]) -> None:
        self._add_bytes(np.fromiter(map(len, values), np.int64, len(values)).data)
        if values and isinstance(values[0], bytes):
            self._add_bytes(b"".join(values))
        elif values:
            self._add(np.concatenate(values))

    def _add_bytes(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.byte_count += memoryview(data).nbytes


def _read_pieces(
    source: h5d.DatasetID, tid: h5t.TypeID
) -> Iterator[tuple[tuple[h5s.SpaceID, h5s.SpaceID], _Array, h5t.TypeID]]:
    """Yield all values in pieces: the dataspaces in memory and file, the values, and their type in memory."""
    if not _count_values(source):
        return
    for part, shape in _cut_dataset(source, tid):
        values, memory_type = _make_buffer(shape, tid)
        source.read(*part, values, memory_type)
        yield part, values, memory_type


def _cut_dataset(
    dataset: h5d.DatasetID, tid: h5t.TypeID
) -> Iterator[tuple[tuple[h5s.SpaceID, h5s.SpaceID], tuple[int, ...]]]:
    """Yield dataspaces in memory and file, and the shape, of each piece: whole chunks, if they are not too large."""
    if not dataset.shape:
        yield (h5s.ALL, h5s.ALL), ()
        return
    row_count, *row_shape = dataset.shape
    rows = max(1, _PIECE_BYTES // max(1, prod(row_shape) * tid.get_size()))
    if holds_variable_length(tid):
        rows = min(rows, _VARIABLE_ROWS)
    chunk_rows = (find_chunk(dataset) or (1,))[0]
    rows = max(1, rows // chunk_rows) * chunk_rows
    for start in range(0, row_count, rows):
        shape = (min(rows, row_count - start), *row_shape)
        yield select_rows(dataset, start, shape[0], tuple(row_shape)), shape


def _count_values(one: h5a.AttrID | h5d.DatasetID) -> int:
    space = one.get_space()
    return 0 if space.get_simple_extent_type() == h5s.NULL else space.get_simple_extent_npoints()


def _make_buffer(shape: tuple[int, ...], tid: h5t.TypeID) -> tuple[_Array, h5t.TypeID]:
    """Return an array for values, and their type in it: the stored bytes, or objects of h5py if the length varies."""
    if holds_variable_length(tid):
        values = np.zeros(shape, tid.dtype)
        return values, h5t.py_create(values.dtype)
    return np.zeros(prod(shape) * tid.get_size(), np.uint8), tid
