"""One type for datasets whose types differ between inputs: texts of other lengths, numbers of another width or byte order."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5t

from recshuf.formats.hdf5.storage import Column, make_column
from recshuf.formats.hdf5.types import BadValueError, Kind, find_dtype, strip_texts, wrap_rows
from recshuf.records.arrays import view_bytes, view_offsets, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


_NUMBERS = {h5t.INTEGER, h5t.FLOAT}
_WIDEST_BYTES = 8


def unite_columns(columns: Sequence[Column], *, widens: bool) -> Column | None:
    """Return the column of datasets of several inputs that holds all their values; None if there is none.

    If it `widens`, a value that is not held exactly is left to `Change` to refuse.
    """
    first = columns[0]
    if any(each.row_shape != first.row_shape for each in columns):
        return None
    if all(first.holds_same(each) for each in columns):
        return first
    tid = _unite([each.tid for each in columns], widens=widens)
    if tid is None:
        return None
    united = make_column(tid, first.name, first.row_shape, first.arrow_type)
    is_possible = united.kind is not Kind.COMPOUND and (united.kind is Kind.FIXED or not united.row_shape)
    return united if is_possible else None


def _unite(
    types: Sequence[h5t.TypeID], *, widens: bool = False, is_inside: bool = False
) -> h5t.TypeID | None:
    if all(types[0].equal(each) for each in types):
        return types[0]
    classes = {each.get_class() for each in types}
    if classes <= _NUMBERS:
        return _unite_numbers(types, widens=widens)
    if classes == {h5t.STRING}:
        return _unite_texts(types, is_inside=is_inside)
    if classes == {h5t.COMPOUND}:
        return _unite_members(types)
    is_array = classes == {h5t.ARRAY} and len({each.get_array_dims() for each in types}) == 1
    if not is_array and classes != {h5t.VLEN}:
        return None
    item = _unite([each.get_super() for each in types], is_inside=True)
    if item is None:
        return None
    return h5t.array_create(item, types[0].get_array_dims()) if is_array else h5t.vlen_create(item)


def _unite_numbers(types: Sequence[h5t.TypeID], *, widens: bool) -> h5t.TypeID | None:
    """Return the smallest type that holds all values, of the common byte order, else little-endian.

    >>> united = _unite_numbers([h5t.STD_I16BE, h5t.STD_U16LE, h5t.IEEE_F32LE], widens=False)
    >>> united.dtype.str
    '<f4'
    """
    dtypes = [dtype for dtype in map(find_dtype, types) if dtype is not None]
    pairs = zip(dtypes, types, strict=False)
    is_plain = all(
        dtype.itemsize <= _WIDEST_BYTES and h5t.py_create(dtype).equal(tid) for dtype, tid in pairs
    )
    if len(dtypes) < len(types) or not is_plain:
        return None
    orders = {dtype.byteorder for dtype in dtypes} - {"|"}
    integers = [dtype for dtype in dtypes if dtype.kind != "f"]
    floats = [dtype for dtype in dtypes if dtype.kind == "f"]
    if floats:  # an integer with each float, since two integers first may need a wider one
        united = max(
            (np.promote_types(each, top) for each in dtypes for top in floats), key=attrgetter("itemsize")
        )
        is_exact = all(each.itemsize < _WIDEST_BYTES for each in integers)
    else:
        united = np.result_type(*dtypes)
        is_exact = united.kind != "f"  # NumPy's answer for integers that no integer type holds
        united = united if is_exact else np.dtype(np.int64)
    if not is_exact and not widens:
        return None
    return h5t.py_create(united.newbyteorder(">" if orders == {">"} else "<")).copy()


def _unite_texts(types: Sequence[h5t.TypeID], *, is_inside: bool) -> h5t.TypeID | None:
    sets = {each.get_cset() for each in types}
    is_variable = any(each.is_variable_str() for each in types)
    if is_inside and (is_variable or len(sets) > 1):  # HDF5 converts neither
        return None
    if is_variable:
        return h5t.py_create(h5py.string_dtype("utf-8"), logical=True)
    paddings = {each.get_strpad() for each in types}
    tid = h5t.C_S1.copy()
    tid.set_size(max(each.get_size() for each in types))
    tid.set_strpad(paddings.pop() if len(paddings) == 1 else h5t.STR_NULLPAD)
    tid.set_cset(max(sets))
    return tid


def _unite_members(types: Sequence[h5t.TypeID]) -> h5t.TypeID | None:
    """Return the type of the same members in the same order, without gaps; None if they differ in name or cannot be united."""
    names = [[each.get_member_name(index) for index in range(each.get_nmembers())] for each in types]
    if any(each != names[0] for each in names):
        return None
    members = []
    for index in range(len(names[0])):
        member = _unite([each.get_member_type(index) for each in types], is_inside=True)
        if member is None:
            return None
        members.append(member)
    united, offset = h5t.create(h5t.COMPOUND, sum(member.get_size() for member in members)), 0
    for name, member in zip(names[0], members, strict=True):
        united.insert(name, offset, member)
        offset += member.get_size()
    return united


class Change:
    """Turns native rows of a dataset of one input into those of the united column."""

    def __init__(self, own: Column, wanted: Column) -> None:
        self._own = own
        self._wanted = wanted
        self._source, self._target = own.tid, wanted.tid
        if own.kind is Kind.ARRAY:
            self._source, self._target = self._source.get_super(), self._target.get_super()
        elif wanted.kind is Kind.FIXED and self._source.get_class() == h5t.STRING:
            self._source.set_cset(self._target.get_cset())  # HDF5 would not convert the same bytes

    def apply(self, rows: pa.Array) -> pa.Array:
        """Return rows of the united column; raise `BadValueError` if a value cannot be one."""
        if self._own.kind is Kind.STRING:
            return rows
        if self._own.kind is Kind.ARRAY:
            offsets = view_offsets(rows)
            ends = (offsets - offsets[0]) // self._source.get_size() * self._target.get_size()
            return wrap_bytes(self._convert(view_bytes(rows)), ends)
        raw = view_bytes(rows).reshape(len(rows), -1)[:, : self._own.row_bytes]
        if self._wanted.kind is Kind.STRING:
            return self._change_texts(raw)
        changed = (
            self._convert(raw) if raw.size else np.zeros(len(rows) * self._wanted.native_width, np.uint8)
        )
        return wrap_rows(changed, self._wanted.native_width)

    def _change_texts(self, raw: NDArray[np.uint8]) -> pa.Array:
        texts = strip_texts(raw, self._source.get_strpad())
        offsets, data = view_offsets(texts), view_bytes(texts)
        if data.size and not data.min():
            row = int(np.searchsorted(offsets, offsets[0] + int(data.argmin()), side="right")) - 1
            raise BadValueError(row, "a NUL inside the text would end it, where it has no fixed length")
        return texts

    def _convert(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        before, after = self._source.get_size(), self._target.get_size()
        count = raw.size // before
        values = np.zeros(count * max(before, after), np.uint8)
        values[: raw.size] = raw.ravel()
        h5t.convert(self._source, self._target, count, values, np.zeros(count * after, np.uint8))
        changed = values[: count * after]
        if self._source.get_class() == h5t.INTEGER and before == _WIDEST_BYTES:
            self._check_exact(raw.ravel().view(self._source.dtype), changed.view(self._target.dtype))
        return changed

    def _check_exact(self, integers: NDArray[Any], changed: NDArray[Any]) -> None:
        if changed.dtype.kind == "f":
            exact = changed < 2.0 ** (8 * _WIDEST_BYTES - (integers.dtype.kind == "i"))
            exact[exact] = changed[exact].astype(integers.dtype) == integers[exact]
        else:
            exact = integers <= np.iinfo(changed.dtype).max
        if not exact.all():
            place = int(exact.argmin())
            items = max(1, self._own.row_bytes // integers.itemsize)
            problem = f"{changed.dtype.name} does not hold {integers[place]} exactly"
            raise BadValueError(place // items, problem)
