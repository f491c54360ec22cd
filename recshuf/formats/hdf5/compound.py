"""Rows of compounds that have members of variable length, packed into bytes.

Members of compounds inside count as members. A row is::

    members of a fixed size, one after the other | length of each other member, 4 bytes | their values
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.formats.hdf5.types import Kind, kind_of, list_members
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from h5py import h5t
    from numpy.typing import NDArray

    _Values = NDArray[Any]

_LENGTH_BYTES = 4


class Leaf(NamedTuple):
    """A member that is no compound with such members."""

    path: tuple[str, ...]
    tid: h5t.TypeID

    @property
    def kind(self) -> Kind:
        return kind_of(self.tid)


def list_leaves(tid: h5t.TypeID, path: tuple[str, ...] = ()) -> list[Leaf]:
    """Return the members of a compound, depth first."""
    leaves: list[Leaf] = []
    for name, member in list_members(tid):
        inner = (*path, name)
        leaves += list_leaves(member, inner) if kind_of(member) is Kind.COMPOUND else [Leaf(inner, member)]
    return leaves


class Packer:
    """Packs and unpacks the rows of a compound type."""

    def __init__(self, tid: h5t.TypeID) -> None:
        self.dtype = tid.dtype
        leaves = list_leaves(tid)
        self.fixed = [leaf for leaf in leaves if leaf.kind is Kind.FIXED]
        self.variable = [leaf for leaf in leaves if leaf.kind is not Kind.FIXED]
        self._fixed_bytes = sum(int(leaf.tid.get_size()) for leaf in self.fixed)
        self._head_bytes = self._fixed_bytes + _LENGTH_BYTES * len(self.variable)

    def pack(self, values: _Values) -> pa.LargeBinaryArray:
        """Return rows that h5py has read."""
        columns = [_join(_get(values, leaf.path), leaf) for leaf in self.variable]
        lengths = [np.diff(view_offsets(column)) for column in columns]
        heads = np.empty((len(values), self._head_bytes), np.uint8)
        parts = [_view_fixed(_get(values, leaf.path), leaf) for leaf in self.fixed]
        parts += [each.astype("<u4").view(np.uint8).reshape(-1, _LENGTH_BYTES) for each in lengths]
        np.concatenate(parts, axis=1, out=heads)
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(self._head_bytes + sum(lengths), out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        places = offsets[:-1]
        data[places[:, None] + np.arange(self._head_bytes)] = heads
        places = places + self._head_bytes
        for column, sizes in zip(columns, lengths, strict=True):
            data[_spread(places, sizes)] = view_bytes(column)
            places = places + sizes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)

    def split(self, rows: pa.LargeBinaryArray) -> tuple[list[NDArray[np.uint8]], list[pa.LargeBinaryArray]]:
        """Return the bytes of each member of a fixed size, of shape ``(n, width)``, and the values of each other one."""
        data, offsets = view_bytes(rows), view_offsets(rows)
        places = offsets[:-1] - offsets[0]
        heads = data[places[:, None] + np.arange(self._head_bytes)]
        ends = np.cumsum([leaf.tid.get_size() for leaf in self.fixed]).tolist()
        fixed = np.split(heads[:, : self._fixed_bytes], ends[:-1], axis=1) if self.fixed else []
        sizes = np.ascontiguousarray(heads[:, self._fixed_bytes :]).view("<u4").astype(np.int64)
        places = places + self._head_bytes
        columns = []
        for lengths in sizes.T:
            ends_of_values = np.concatenate(([0], np.cumsum(lengths)))
            buffers = [None, pa.py_buffer(ends_of_values), pa.py_buffer(data[_spread(places, lengths)])]
            columns.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers))
            places = places + lengths
        return fixed, columns

    def unpack(self, rows: pa.LargeBinaryArray) -> _Values:
        """Return rows as h5py writes them; lists share memory with what this makes."""
        values = np.zeros(len(rows), self.dtype)
        fixed, columns = self.split(rows)
        for leaf, raw in zip(self.fixed, fixed, strict=True):
            part = _get(values, leaf.path)
            part[...] = np.ascontiguousarray(raw).view(part.dtype.base).reshape(part.shape)
        for leaf, column in zip(self.variable, columns, strict=True):
            _get(values, leaf.path)[...] = (
                column.to_numpy(zero_copy_only=False)
                if leaf.kind is Kind.STRING
                else list_arrays(column, leaf.tid)
            )
        return values


def _get(values: _Values, path: Sequence[str]) -> _Values:
    return reduce(lambda part, name: part[name], path, values)


def _view_fixed(values: _Values, leaf: Leaf) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), leaf.tid.get_size())


def _join(values: _Values, leaf: Leaf) -> pa.LargeBinaryArray:
    values = np.ascontiguousarray(values)
    if leaf.kind is Kind.STRING:
        return pa.array(values, pa.large_binary())
    return join_arrays(values, leaf.tid.get_super().get_size())


def _spread(places: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of all bytes of values that begin at some places.

    >>> _spread(np.array([5, 20]), np.array([2, 3])).tolist()
    [5, 6, 20, 21, 22]
    """
    begins = np.cumsum(lengths) - lengths
    spread: NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(places - begins, lengths)
    return spread


def join_arrays(values: _Values, item_bytes: int) -> pa.LargeBinaryArray:
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


def list_arrays(rows: pa.LargeBinaryArray, tid: h5t.TypeID) -> _Values:
    """Return an object array of NumPy arrays, which share memory with the rows, of a type of variable-length arrays."""
    dtype = tid.get_super().dtype
    offsets = view_offsets(rows)
    parts = np.split(view_bytes(rows).view(dtype), (offsets[1:-1] - offsets[0]) // dtype.itemsize)
    return np.fromiter(parts, object, len(rows))
