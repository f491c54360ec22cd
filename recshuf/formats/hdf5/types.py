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

from recshuf.records.arrays import view_bytes, view_offsets, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    _Values = NDArray[Any]


ADDRESS_BYTES = 8
_LENGTH_BYTES = 4
_BFLOAT16 = (16, 8, 7, 127)
"""Its bits, those of exponent and fraction, and the bias of the exponent."""
_VLEN_KIND_PLACE = 3
"""Byte of an encoded variable-length type that holds its kind: 0 for arrays, 1 for strings."""


_PADDINGS = {h5t.STR_NULLTERM: " ended by NUL", h5t.STR_NULLPAD: "", h5t.STR_SPACEPAD: " padded with spaces"}


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


class BadValueError(ValueError):
    """A value that cannot be turned into another form, `row` rows after the first of the array."""

    def __init__(self, row: int, problem: str) -> None:
        self.row = row
        self.problem = problem
        super().__init__(problem)


def kind_of(tid: h5t.TypeID) -> Kind:
    if isinstance(tid, h5t.TypeStringID) and tid.is_variable_str():
        return Kind.STRING
    if tid.get_class() == h5t.VLEN:
        if tid.encode()[_VLEN_KIND_PLACE] & 0xF:  # an unknown one aborts the process
            raise ValueError("a type of variable length is damaged")
        return Kind.ARRAY
    is_packed = tid.get_class() == h5t.COMPOUND and holds_variable_length(tid)
    return Kind.COMPOUND if is_packed else Kind.FIXED


def holds_variable_length(tid: h5t.TypeID) -> bool:
    if tid.get_class() == h5t.COMPOUND:
        return any(holds_variable_length(tid.get_member_type(i)) for i in range(tid.get_nmembers()))
    if tid.get_class() == h5t.ARRAY:
        return holds_variable_length(tid.get_super())
    return kind_of(tid) is not Kind.FIXED


def list_charsets(tid: h5t.TypeID) -> list[int]:
    """Return the character sets of strings of variable length, those of members included: HDF5 compares types without them."""
    if tid.get_class() == h5t.COMPOUND:
        return [each for _, member in _list_members(tid) for each in list_charsets(member)]
    return [tid.get_cset()] if kind_of(tid) is Kind.STRING else []


def with_charsets(tid: h5t.TypeID, charsets: Iterator[int]) -> h5t.TypeID:
    """Return a type with the next of these character sets for each string of variable length."""
    changed = tid.copy()
    if tid.get_class() == h5t.COMPOUND:
        changed = h5t.create(h5t.COMPOUND, tid.get_size())
        for index in range(tid.get_nmembers()):
            member = with_charsets(tid.get_member_type(index), charsets)
            changed.insert(tid.get_member_name(index), tid.get_member_offset(index), member)
    elif kind_of(tid) is Kind.STRING:
        changed.set_cset(next(charsets))
    return changed


def find_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why a type is not one of records, or None if it is."""
    inner = tid.get_super() if kind_of(tid) is Kind.ARRAY else tid
    if kind_of(tid) in (Kind.ARRAY, Kind.FIXED) and holds_variable_length(inner):
        return "holds variable-length values inside other values"
    return find_copy_obstacle(tid)


def find_copy_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why values are not written back as they are; None if they are."""
    if tid.detect_class(h5t.REFERENCE):
        return "holds references, which mean nothing in another file"
    kind = kind_of(tid)
    if kind is Kind.FIXED:
        return "holds arrays of variable-length values" if holds_variable_length(tid) else None
    parts = [tid.get_super()] if kind is Kind.ARRAY else []
    if kind is Kind.COMPOUND:
        members = [member for _, member in _list_members(tid)]
        parts = [
            each.get_super() if each.get_class() == h5t.ARRAY and not holds_variable_length(each) else each
            for each in members
        ]
    for part in parts:
        if holds_variable_length(part):
            if obstacle := find_copy_obstacle(part):
                return obstacle
        elif _is_converted(part):
            return "holds, in or beside variable-length values, a type that h5py would convert"
    return None


def _is_converted(element: h5t.TypeID) -> bool:
    """Tell whether h5py does not return the stored bytes of elements beside values of variable length."""
    dtype = find_dtype(element)
    if dtype is None or dtype.kind in "Mm" or dtype.subdtype:
        return True
    return not h5t.py_create(dtype, logical=True).equal(element)


def _list_members(tid: h5t.TypeID) -> list[tuple[str, h5t.TypeID]]:
    count = range(tid.get_nmembers())
    return [(tid.get_member_name(index).decode(), tid.get_member_type(index)) for index in count]


def measure_element(
    tid: h5t.TypeID, address_bytes: int = ADDRESS_BYTES, place: int = 0
) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of an element in a file, and for each value of variable length where its reference is, and the bytes of an item.

    A reference is a length, an address and an index.
    """
    kind = kind_of(tid)
    if kind in (Kind.STRING, Kind.ARRAY):
        return 4 + address_bytes + 4, [(place, 1 if kind is Kind.STRING else tid.get_super().get_size())]
    grown, references = 0, list[tuple[int, int]]()
    if kind is Kind.COMPOUND:
        for index in sorted(range(tid.get_nmembers()), key=tid.get_member_offset):
            member = tid.get_member_type(index)
            start = place + tid.get_member_offset(index) + grown
            size, inner = measure_element(member, address_bytes, start)
            grown += size - member.get_size()
            references += inner
    return int(tid.get_size()) + grown, references


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
    dtype = find_dtype(tid)
    if isinstance(tid, h5t.TypeStringID):
        size = f"{tid.get_size()} bytes{_PADDINGS.get(tid.get_strpad(), ' padded by no known rule')}"
        charset = "UTF-8" if tid.get_cset() else "ASCII"
        return f"{charset} text of {'any length' if tid.is_variable_str() else size}"
    if dtype is not None and dtype.names:
        return f"compound({', '.join(f'{name}: {name_type(each)}' for name, each in _list_members(tid))})"
    if not isinstance(tid, h5t.TypeFloatID) or dtype is not None:
        return describe_type(tid)
    _, _, exponent_bits, _, fraction_bits = tid.get_fields()
    bits, bias = 8 * tid.get_size(), tid.get_ebias()
    if (bits, exponent_bits, fraction_bits, bias) == _BFLOAT16:
        return "bfloat16"
    return f"a float of {bits} bits with an exponent of {exponent_bits} bits and bias {bias}"


def find_chunk(dataset: h5d.DatasetID) -> tuple[int, ...] | None:
    plist = dataset.get_create_plist()
    return tuple(plist.get_chunk()) if plist.get_layout() == h5d.CHUNKED else None


class Member(NamedTuple):
    """A member of a compound, or of one inside, that is no compound with values of variable length."""

    path: tuple[str, ...]
    kind: Kind
    tid: h5t.TypeID


def list_members(tid: h5t.TypeID, path: tuple[str, ...] = ()) -> list[Member]:
    members: list[Member] = []
    for name, member in _list_members(tid):
        inner, kind = (*path, name), kind_of(member)
        members += list_members(member, inner) if kind is Kind.COMPOUND else [Member(inner, kind, member)]
    return members


class Packer:
    """Packs and unpacks the rows of a compound type."""

    def __init__(self, tid: h5t.TypeID) -> None:
        self.dtype = tid.dtype
        members = list_members(tid)
        self.fixed = [member for member in members if member.kind is Kind.FIXED]
        self.variable = [member for member in members if member.kind is not Kind.FIXED]

    def pack(self, values: _Values) -> pa.LargeBinaryArray:
        import pyarrow.compute as pc  # late: few files have such compounds

        fixed = [np.ascontiguousarray(_get(values, member.path)) for member in self.fixed]
        columns = [wrap_values(_get(values, each.path), each.kind, each.tid) for each in self.variable]
        lengths = [np.diff(view_offsets(column)).astype("<u4") for column in columns]
        sizes = [*(member.tid.get_size() for member in self.fixed), *(_LENGTH_BYTES for _ in lengths)]
        pairs = zip((*fixed, *lengths), sizes, strict=True)
        heads = np.concatenate([part.view(np.uint8).reshape(-1, size) for part, size in pairs], axis=1)
        head = wrap_rows(heads, sum(sizes)).cast(pa.large_binary())
        return pc.binary_join_element_wise(head, *columns, pa.scalar(b"", pa.large_binary()))

    def split(self, rows: pa.LargeBinaryArray) -> tuple[list[NDArray[np.uint8]], list[pa.LargeBinaryArray]]:
        """Return the bytes of each member of a fixed size, of shape ``(n, width)``, and the values of each other one."""
        data, offsets = view_bytes(rows), view_offsets(rows)
        ends = np.cumsum([0, *(member.tid.get_size() for member in self.fixed)])
        head_bytes = ends[-1] + _LENGTH_BYTES * len(self.variable)
        places = offsets[:-1] - offsets[0]
        heads = data[places[:, None] + np.arange(head_bytes)]
        *fixed, sizes = np.split(heads, ends[1:], axis=1)
        places = places + head_bytes
        columns = []
        for lengths in np.ascontiguousarray(sizes).view("<u4").astype(np.int64).T:
            columns.append(wrap_bytes(data[_spread(places, lengths)], np.append(0, np.cumsum(lengths))))
            places = places + lengths
        return fixed, columns

    def unpack(self, rows: pa.LargeBinaryArray) -> _Values:
        """Return rows as h5py writes them; lists share memory with what this makes."""
        values = np.zeros(len(rows), self.dtype)
        fixed, columns = self.split(rows)
        for member, raw in zip(self.fixed, fixed, strict=True):
            part = _get(values, member.path)
            part[...] = np.ascontiguousarray(raw).view(part.dtype.base).reshape(part.shape)
        for member, column in zip(self.variable, columns, strict=True):
            _get(values, member.path)[...] = unwrap_values(column, member.kind, member.tid)
        return values


def _get(values: _Values, path: Sequence[str]) -> _Values:
    return reduce(lambda part, name: part[name], path, values)


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


def wrap_values(values: _Values, kind: Kind, tid: h5t.TypeID) -> pa.LargeBinaryArray:
    """Return values of variable length, as h5py reads them, as native rows."""
    if kind is Kind.COMPOUND:
        return Packer(tid).pack(values)
    if kind is Kind.STRING:
        return pa.array(np.ascontiguousarray(values), pa.large_binary())
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    offsets = np.append(0, np.cumsum(lengths)) * tid.get_super().get_size()
    # The byte order stated by h5py may be wrong, but the bytes are those of the file. Without its dtype,
    # concatenate would swap the bytes of members.
    data = np.concatenate(values, dtype=values[0].dtype) if offsets[-1] else np.empty(0, np.uint8)
    return wrap_bytes(data.view(np.uint8), offsets)


def unwrap_values(rows: pa.LargeBinaryArray, kind: Kind, tid: h5t.TypeID) -> _Values:
    """Return native rows of variable length as h5py writes them; arrays share memory with the rows."""
    if kind is Kind.COMPOUND:
        return Packer(tid).unpack(rows)
    if kind is Kind.STRING:
        texts: _Values = rows.to_numpy(zero_copy_only=False)
        return texts
    dtype, offsets = tid.get_super().dtype, view_offsets(rows)
    parts = np.split(view_bytes(rows).view(dtype), (offsets[1:-1] - offsets[0]) // dtype.itemsize)
    return np.fromiter(parts, object, len(rows))


def strip_texts(raw: NDArray[np.uint8], padding: int) -> pa.LargeBinaryArray:
    """Return the bytes of strings of a fixed length, of shape ``(n, width)``, without their padding."""
    if padding == h5t.STR_NULLTERM:
        ends = raw == 0
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1), raw.shape[1])
    else:
        filled = raw != (ord(" ") if padding == h5t.STR_SPACEPAD else 0)
        lengths = np.where(filled.any(axis=1), raw.shape[1] - filled[:, ::-1].argmax(axis=1), 0)
    return wrap_bytes(raw[np.arange(raw.shape[1]) < lengths[:, None]], np.append(0, np.cumsum(lengths)))
