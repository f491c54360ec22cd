"""HDF5 types of fixed size as Arrow types: raw bytes of many values in, an Arrow array out.

Arrow types that HDF5 lacks are stored as integers, with the type in an attribute of the dataset.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5t

from recshuf.errors import ConversionError
from recshuf.formats.hdf5.types import describe_type, find_bounds, find_dtype, wrap_lists, wrap_rows
from recshuf.formats.values import find_invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


ARROW_TYPE_ATTRIBUTE = "arrow_type"
_WITH_ZONE = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
BINARY_NAME = "large_binary"
_NUMBER_BYTES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


class BadValueError(ValueError):
    """A value that has no table form, `row` rows after the first of the array."""

    def __init__(self, row: int, problem: str) -> None:
        self.row = row
        self.problem = problem
        super().__init__(problem)


class Form(ABC):
    """Table form of values of a fixed-size type."""

    arrow_type: pa.DataType
    width: int
    """Bytes of a value."""
    can_fail = False
    """Whether `decode` may raise."""

    @abstractmethod
    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        """Return n values from their bytes, of shape ``(n, width)``; raise `BadValueError` if one has no table form."""


class _Number(Form):
    """Numbers with a NumPy type; `odd` if HDF5 stores them differently, as in fewer bits."""

    def __init__(self, dtype: np.dtype[Any], odd: h5t.TypeID | None = None) -> None:
        self._dtype = dtype
        self._odd = odd
        self.width = dtype.itemsize
        self.arrow_type = pa.from_numpy_dtype(dtype.newbyteorder("="))

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        if self._odd is not None:
            raw = raw.copy()
            h5t.convert(self._odd, h5t.py_create(self._dtype), len(raw), raw)
        values = _view_values(raw, self._dtype)
        native = values.byteswap() if self._dtype.byteorder == ">" else values
        return pa.Array.from_buffers(self.arrow_type, len(raw), [None, pa.py_buffer(native)])


class _Flag(Form):
    arrow_type = pa.bool_()
    width = 1
    can_fail = True

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        values = raw[:, 0]
        if values.size and values.max() > 1:
            row = int(values.argmax())
            raise BadValueError(row, f"{values[row]} is neither FALSE nor TRUE")
        return pa.array(values.astype(np.bool_))


class _Enum(Form):
    arrow_type = pa.large_string()
    can_fail = True

    def __init__(self, dtype: np.dtype[Any], members: dict[str, int]) -> None:
        ordered = sorted(members.items(), key=lambda item: item[1])
        self._dtype = dtype
        self._values = np.array([value for _, value in ordered], dtype.newbyteorder("="))
        self._names = pa.array([name for name, _ in ordered], self.arrow_type)
        self.width = dtype.itemsize

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        values = _view_values(raw, self._dtype)
        known = np.isin(values, self._values)
        if not known.all():
            row = int(known.argmin())
            raise BadValueError(row, f"{values[row]} is no value of the enum")
        return self._names.take(pa.array(np.searchsorted(self._values, values)))


class _Text(Form):
    arrow_type = pa.large_string()
    can_fail = True

    def __init__(self, width: int, padding: int) -> None:
        self.width = width
        self._padding = padding

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        return decode_text(strip_texts(raw, self._padding))


def strip_texts(raw: NDArray[np.uint8], padding: int) -> pa.LargeBinaryArray:
    """Return the bytes of strings of a fixed length, of shape ``(n, width)``, without their padding."""
    if padding == h5t.STR_NULLTERM:
        ends = raw == 0
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1), raw.shape[1])
    else:
        filled = raw != (ord(" ") if padding == h5t.STR_SPACEPAD else 0)
        lengths = np.where(filled.any(axis=1), raw.shape[1] - filled[:, ::-1].argmax(axis=1), 0)
    return wrap_lists(find_bounds(lengths), raw[np.arange(raw.shape[1]) < lengths[:, None]])


class _Opaque(Form):
    def __init__(self, width: int) -> None:
        self.width = width
        self.arrow_type = pa.binary(width)

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        return wrap_rows(np.ascontiguousarray(raw), self.width)


class _Struct(Form):
    """Members at byte offsets, with padding between them."""

    def __init__(self, width: int, members: Sequence[tuple[str, int, Form]]) -> None:
        self.width = width
        self._members = members
        self.arrow_type = pa.struct([pa.field(name, form.arrow_type) for name, _, form in members])
        self.can_fail = any(form.can_fail for _, _, form in members)

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        arrays = [form.decode(raw[:, start : start + form.width]) for _, start, form in self._members]
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type))


class _FixedList(Form):
    def __init__(self, item: Form, length: int) -> None:
        self._item = item
        self._length = length
        self.width = item.width * length
        self.arrow_type = pa.list_(item.arrow_type, length)
        self.can_fail = item.can_fail

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        try:
            items = self._item.decode(raw.reshape(len(raw) * self._length, self._item.width))
        except BadValueError as error:
            raise BadValueError(error.row // self._length, error.problem) from error
        return pa.Array.from_buffers(self.arrow_type, len(raw), [None], children=[items])


class _EmptyList(Form):
    """Rows of an axis of length 0. Fixed-size lists of no items cannot be read back from Parquet."""

    width = 0

    def __init__(self, item: Form) -> None:
        self._empty = pa.array([], item.arrow_type)
        self.arrow_type = pa.list_(item.arrow_type)

    def decode(self, raw: NDArray[np.uint8]) -> pa.Array:
        return pa.ListArray.from_arrays(np.zeros(len(raw) + 1, np.int32), self._empty, type=self.arrow_type)


def find_form(tid: h5t.TypeID, field: str, shape: Sequence[int] = ()) -> Form:
    """Return the table form of arrays of shape `shape` of an HDF5 type, axes from the outermost on."""
    form = _find_plain_form(tid, field)
    for length in reversed(shape):
        form = _FixedList(form, length) if length else _EmptyList(form)
    return form


def _find_plain_form(tid: h5t.TypeID, field: str) -> Form:
    kind = tid.get_class()
    dtype = find_dtype(tid)
    if kind == h5t.STRING:
        return _Text(tid.get_size(), tid.get_strpad())
    if kind == h5t.ARRAY:
        return find_form(tid.get_super(), field, tid.get_array_dims())
    if kind == h5t.OPAQUE:
        return _Opaque(tid.get_size())
    if kind == h5t.ENUM and dtype is not None:
        return _find_enum(dtype, field)
    if dtype is not None and dtype.itemsize in _NUMBER_BYTES.get(dtype.kind, ()):
        return _find_number(tid, dtype)
    if kind == h5t.COMPOUND:
        return _find_struct(tid, field)
    remedy = "shuffle to HDF5, or name other datasets with --datasets"
    raise ConversionError(field, f"{describe_type(tid)} has no table form", remedy=remedy)


def _find_enum(dtype: np.dtype[Any], field: str) -> Form:
    members = h5py.check_enum_dtype(dtype)
    if members is None:
        return _Flag()
    if not all(isinstance(name, str) for name in members):
        raise ConversionError(field, "a name of the enum is not UTF-8")
    return _Enum(dtype, members)


def _find_number(tid: h5t.TypeID, dtype: np.dtype[Any]) -> Form:
    if dtype.kind != "c":
        return _Number(dtype, None if h5t.py_create(dtype).equal(tid) else tid)
    part = _Number(np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}"))
    return _Struct(dtype.itemsize, [("real", 0, part), ("imag", part.width, part)])


def _find_struct(tid: h5t.TypeID, field: str) -> Form:
    members = []
    for index in range(tid.get_nmembers()):
        try:
            name = tid.get_member_name(index).decode()
        except UnicodeDecodeError as error:
            problem = f"the name of its member {error.object!r} is not UTF-8"
            raise ConversionError(field, problem) from error
        form = find_form(tid.get_member_type(index), f"{field}.{name}")
        members.append((name, tid.get_member_offset(index), form))
    return _Struct(tid.get_size(), members)


def _view_values(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the bytes, of shape ``(n, itemsize)``, as n values, aligned and without gaps."""
    return np.require(np.ascontiguousarray(raw).view(dtype).reshape(len(raw)), requirements="A")


def decode_text(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return strings; raise `BadValueError` for the first that is not UTF-8."""
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise BadValueError(int(find_invalid(array)[0]), "the string is not UTF-8") from error


def find_stand_in(kind: pa.DataType) -> pa.DataType | None:
    """Return the integer type that holds the values of a temporal type, or None for other types."""
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return None
    return pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()


def parse_temporal(name: str | None) -> pa.DataType | None:
    """Return the temporal type of this name, as ``str`` writes it, or None if there is none.

    >>> parse_temporal("timestamp[us, tz=Europe/Berlin]")
    TimestampType(timestamp[us, tz=Europe/Berlin])
    """
    zoned = _WITH_ZONE.fullmatch(name or "")
    if zoned:
        return pa.timestamp(*zoned.groups())
    try:
        kind = pa.type_for_alias(name or "")
    except ValueError:
        return None
    return kind if str(kind) == name and find_stand_in(kind) else None
