"""HDF5 datatypes, and native forms of their values: bytes, lists, packed rows of compounds.

Rows of compounds that have members of variable length are packed into bytes. Members of compounds inside count as members::

    members of a fixed size, one after the other | length of each other member, 4 bytes | their values
"""

from __future__ import annotations

from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5t

from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    _Values = NDArray[Any]


_VLEN_KIND_PLACE = 3
"""Byte of an encoded variable-length type that holds its kind: 0 for arrays, 1 for strings."""
_ADDRESS_BYTES = 8
_REFERENCES = "holds references, which mean nothing in another file"
_LENGTH_BYTES = 4


class Kind(Enum):
    """Native form of the elements of a dataset."""

    FIXED = "fixed"
    """The bytes that HDF5 stores, of a fixed number."""
    STRING = "string"
    """Variable-length strings: their bytes."""
    ARRAY = "array"
    """Variable-length arrays: the bytes of their elements."""
    COMPOUND = "compound"
    """Compounds with members of variable length: packed, see `Packer`."""


def find_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why a type is not supported, or None if it is."""
    if tid.detect_class(h5t.REFERENCE):
        return _REFERENCES
    kind = kind_of(tid)
    if kind is Kind.STRING:
        return None
    if kind is Kind.ARRAY:
        return _find_element_obstacle(tid.get_super())
    if kind is Kind.COMPOUND:
        return find_copy_obstacle(tid)
    if holds_variable_length(tid):
        return "holds variable-length values inside other values"
    return None


def find_copy_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why values that only h5py can read are not written back as they are; None if they are."""
    if tid.detect_class(h5t.REFERENCE):
        return _REFERENCES
    if tid.get_class() == h5t.COMPOUND and holds_variable_length(tid):
        members = [tid.get_member_type(index) for index in range(tid.get_nmembers())]
        parts = [
            each.get_super() if each.get_class() == h5t.ARRAY and not holds_variable_length(each) else each
            for each in members
        ]
    elif _is_array(tid):
        parts = [tid.get_super()]
    else:
        inside = tid.get_class() == h5t.ARRAY and holds_variable_length(tid)
        return "holds arrays of variable-length values" if inside else None
    obstacles = [
        find_copy_obstacle(part) if holds_variable_length(part) else _find_element_obstacle(part)
        for part in parts
    ]
    return next(filter(None, obstacles), None)


def _find_element_obstacle(element: h5t.TypeID) -> str | None:
    if holds_variable_length(element):
        return "holds variable-length values inside other values"
    # Only then does h5py return the stored bytes of the elements.
    dtype = find_dtype(element)
    if (
        dtype is None
        or dtype.kind in "Mm"
        or dtype.subdtype
        or not h5t.py_create(dtype, logical=True).equal(element)
    ):
        return "holds, in or beside variable-length values, a type that h5py would convert"
    return None


def kind_of(tid: h5t.TypeID) -> Kind:
    """Return the native form of elements of a type."""
    if _is_variable_string(tid):
        return Kind.STRING
    if tid.get_class() == h5t.COMPOUND and holds_variable_length(tid):
        return Kind.COMPOUND
    return Kind.ARRAY if _is_array(tid) else Kind.FIXED


def list_members(tid: h5t.TypeID) -> list[tuple[str, h5t.TypeID]]:
    count = range(tid.get_nmembers())
    return [(tid.get_member_name(index).decode(), tid.get_member_type(index)) for index in count]


def find_file_bytes(tid: h5t.TypeID, address_bytes: int = _ADDRESS_BYTES) -> int:
    """Return the size of an element in a file; of a variable-length one, that of its length, address and index."""
    if _is_variable_string(tid) or _is_array(tid):
        return 4 + address_bytes + 4
    if kind_of(tid) is not Kind.COMPOUND:
        return int(tid.get_size())
    return int(tid.get_size()) + sum(_find_growth(member, address_bytes) for _, member in list_members(tid))


def _find_growth(tid: h5t.TypeID, address_bytes: int) -> int:
    return find_file_bytes(tid, address_bytes) - int(tid.get_size())


def list_references(tid: h5t.TypeID, place: int = 0) -> list[tuple[int, int]]:
    """Return, for each value of variable length in an element, where its reference is in a file, and the bytes of an item."""
    if _is_variable_string(tid):
        return [(place, 1)]
    if _is_array(tid):
        return [(place, int(tid.get_super().get_size()))]
    if kind_of(tid) is not Kind.COMPOUND:
        return []
    references: list[tuple[int, int]] = []
    grown = 0
    for index in sorted(range(tid.get_nmembers()), key=tid.get_member_offset):
        member = tid.get_member_type(index)
        references += list_references(member, place + tid.get_member_offset(index) + grown)
        grown += _find_growth(member, _ADDRESS_BYTES)
    return references


def holds_variable_length(tid: h5t.TypeID) -> bool:
    kind = tid.get_class()
    if kind == h5t.COMPOUND:
        return any(holds_variable_length(tid.get_member_type(i)) for i in range(tid.get_nmembers()))
    if kind == h5t.ARRAY:
        return holds_variable_length(tid.get_super())
    return _is_array(tid) or _is_variable_string(tid)


def _is_array(tid: h5t.TypeID) -> bool:
    """Tell whether a type is of variable-length arrays; an unknown variable-length kind aborts the process."""
    if tid.get_class() != h5t.VLEN:
        return False
    if tid.encode()[_VLEN_KIND_PLACE] & 0xF != 0:
        raise ValueError("a type of variable length is damaged")
    return True


def _is_variable_string(tid: h5t.TypeID) -> bool:
    return isinstance(tid, h5t.TypeStringID) and bool(tid.is_variable_str())


def find_dtype(tid: h5t.TypeID) -> np.dtype[Any] | None:
    """Return the NumPy type with the layout of an HDF5 type, or None if there is none."""
    if tid.get_class() == h5t.BITFIELD:  # h5py reads some of these as numbers
        return None
    try:
        dtype: np.dtype[Any] = tid.dtype
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None
    return dtype if dtype.hasobject or dtype.itemsize == tid.get_size() else None


def describe_type(tid: h5t.TypeID) -> str:
    kind = kind_of(tid)
    if kind is Kind.STRING:
        return "variable-length string"
    if kind is Kind.ARRAY:
        return f"variable-length {describe_type(tid.get_super())}"
    dtype = find_dtype(tid)
    if dtype is None:
        return f"{type(tid).__name__.removeprefix('Type').removesuffix('ID').lower()}{8 * tid.get_size()}"
    enum = h5py.check_enum_dtype(dtype)
    return f"enum {enum}" if enum else str(dtype)


def name_type(tid: h5t.TypeID) -> str:
    """Return the name of a type for messages about types that differ."""
    if isinstance(tid, h5t.TypeStringID) and not tid.is_variable_str():
        return f"{'UTF-8' if tid.get_cset() else 'ASCII'} text of {tid.get_size()} bytes"
    return describe_type(tid)


def find_chunk(dataset: h5d.DatasetID) -> tuple[int, ...] | None:
    """Return the chunk shape of a dataset, or None if it has no chunks."""
    plist = dataset.get_create_plist()
    return tuple(plist.get_chunk()) if plist.get_layout() == h5d.CHUNKED else None


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
        columns = [_join(_get(values, leaf.path), leaf) for leaf in self.variable]
        lengths = [np.diff(view_offsets(column)) for column in columns]
        heads = np.empty((len(values), self._head_bytes), np.uint8)
        fixed = (np.ascontiguousarray(_get(values, leaf.path)) for leaf in self.fixed)
        parts = [
            each.view(np.uint8).reshape(len(values), leaf.tid.get_size())
            for each, leaf in zip(fixed, self.fixed, strict=True)
        ]
        parts += [each.astype("<u4").view(np.uint8).reshape(-1, _LENGTH_BYTES) for each in lengths]
        np.concatenate(parts, axis=1, out=heads)
        offsets = find_bounds(self._head_bytes + sum(lengths))
        data = np.empty(offsets[-1], np.uint8)
        places = offsets[:-1]
        data[places[:, None] + np.arange(self._head_bytes)] = heads
        places = places + self._head_bytes
        for column, sizes in zip(columns, lengths, strict=True):
            data[_spread(places, sizes)] = view_bytes(column)
            places = places + sizes
        return wrap_lists(offsets, data)

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
            columns.append(wrap_lists(find_bounds(lengths), data[_spread(places, lengths)]))
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


def wrap_rows(raw: NDArray[Any], width: int) -> pa.FixedSizeBinaryArray:
    kind, buffers = pa.binary(width), [None, pa.py_buffer(raw)]
    return pa.FixedSizeBinaryArray.from_buffers(kind, raw.nbytes // width, buffers)


def wrap_lists(offsets: NDArray[np.int64], data: NDArray[Any]) -> pa.LargeBinaryArray:
    """Return bytes as native rows of variable length, each between two of the offsets."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def find_bounds(lengths: Any) -> NDArray[np.int64]:
    """Return where values of these lengths begin, and where the last one ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def join_arrays(values: _Values, item_bytes: int) -> pa.LargeBinaryArray:
    offsets = find_bounds(np.fromiter(map(len, values), np.int64, len(values)) * item_bytes)
    # The byte order stated by h5py may be wrong, but the bytes are those of the file. Without its dtype,
    # concatenate would swap the bytes of members.
    data = (
        np.concatenate(values, dtype=values[0].dtype).view(np.uint8) if offsets[-1] else np.empty(0, np.uint8)
    )
    return wrap_lists(offsets, data)


def list_arrays(rows: pa.LargeBinaryArray, tid: h5t.TypeID) -> _Values:
    """Return an object array of NumPy arrays, which share memory with the rows, of a type of variable-length arrays."""
    dtype = tid.get_super().dtype
    offsets = view_offsets(rows)
    parts = np.split(view_bytes(rows).view(dtype), (offsets[1:-1] - offsets[0]) // dtype.itemsize)
    return np.fromiter(parts, object, len(rows))
