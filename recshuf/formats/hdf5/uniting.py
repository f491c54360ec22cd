"""One type for datasets whose types differ between inputs: texts of other lengths, numbers of another width or byte order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5t

from recshuf.formats.hdf5.forms import BadValueError, strip_texts
from recshuf.formats.hdf5.storage import Column, make_column
from recshuf.formats.hdf5.types import Kind, find_dtype, wrap_lists, wrap_rows
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


_NUMBER_CLASSES = {h5t.INTEGER, h5t.FLOAT}
_WIDEST = 64
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""Bits of integers that floats of so many bits hold."""


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
    if classes <= _NUMBER_CLASSES:
        return _unite_numbers(types, widens=widens)
    if classes == {h5t.STRING}:
        return _unite_texts(types, is_inside=is_inside)
    if classes == {h5t.COMPOUND}:
        return _unite_members(types)
    if classes == {h5t.ARRAY} and len({each.get_array_dims() for each in types}) == 1:
        item = _unite([each.get_super() for each in types], is_inside=True)
        return item and h5t.array_create(item, types[0].get_array_dims())
    if classes == {h5t.VLEN}:
        item = _unite([each.get_super() for each in types], is_inside=True)
        return item and h5t.vlen_create(item)
    return None


def _unite_numbers(types: Sequence[h5t.TypeID], *, widens: bool) -> h5t.TypeID | None:
    """Return the smallest type that holds all values, of the common byte order, else little-endian.

    >>> united = _unite_numbers([h5t.STD_I16BE, h5t.STD_U16LE, h5t.IEEE_F32LE], widens=False)
    >>> united.dtype.str
    '<f4'
    """
    dtypes = [find_dtype(each) for each in types]
    is_plain = all(
        dtype is not None and dtype.itemsize * 8 <= _WIDEST and h5t.py_create(dtype).equal(tid)
        for dtype, tid in zip(dtypes, types, strict=True)
    )
    kinds = [(dtype.kind, dtype.itemsize * 8, dtype.byteorder) for dtype in dtypes if dtype is not None]
    floats = [bits for kind, bits, _ in kinds if kind == "f"]
    is_signed = any(kind == "i" for kind, _, _ in kinds)
    if floats:
        needed = max((bits - (kind == "i") for kind, bits, _ in kinds if kind != "f"), default=0)
        exact = [bits for bits, held in _EXACT_BITS.items() if held >= needed and bits >= max(floats)]
        bits = exact[0] if exact else _WIDEST if widens else 0
    else:
        bits = max(bits * (1 + (is_signed and kind == "u")) for kind, bits, _ in kinds)
        bits = min(bits, _WIDEST) if widens else bits
    if not is_plain or not 0 < bits <= _WIDEST:
        return None
    orders = {order for _, _, order in kinds} - {"|"}
    name = "f" if floats else "i" if is_signed else "u"
    return h5t.py_create(np.dtype(f"{'>' if orders == {'>'} else '<'}{name}{bits // 8}")).copy()


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
    parts = [
        _unite([each.get_member_type(i) for each in types], is_inside=True) for i in range(len(names[0]))
    ]
    members = [part for part in parts if part is not None]
    if len(members) < len(parts):
        return None
    united, offset = h5t.create(h5t.COMPOUND, sum(part.get_size() for part in members)), 0
    for name, part in zip(names[0], members, strict=True):
        united.insert(name, offset, part)
        offset += part.get_size()
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
            return self._change_arrays(rows)
        raw = view_bytes(rows).reshape(len(rows), -1)[:, : self._own.row_bytes]
        if self._wanted.kind is Kind.STRING:
            return self._change_texts(raw)
        changed = np.zeros(len(rows) * self._wanted.native_width, np.uint8)
        if raw.size:
            changed = self._convert(raw)
        return wrap_rows(changed, self._wanted.native_width)

    def _change_texts(self, raw: NDArray[np.uint8]) -> pa.Array:
        texts = strip_texts(raw, self._source.get_strpad())
        offsets, data = view_offsets(texts), view_bytes(texts)
        if data.size and not data.min():
            row = int(np.searchsorted(offsets, offsets[0] + int(data.argmin()), side="right")) - 1
            raise BadValueError(row, "a NUL inside the text would end it, where it has no fixed length")
        return texts

    def _change_arrays(self, rows: pa.LargeBinaryArray) -> pa.Array:
        offsets, item_bytes = view_offsets(rows), self._source.get_size()
        ends = (offsets - offsets[0]) // item_bytes * self._target.get_size()
        return wrap_lists(ends, self._convert(view_bytes(rows)))

    def _convert(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes of the same values in the wanted type."""
        before, after = self._source.get_size(), self._target.get_size()
        count = raw.size // before
        values = np.zeros(count * max(before, after), np.uint8)
        values[: raw.size] = raw.ravel()
        h5t.convert(self._source, self._target, count, values, np.zeros(count * after, np.uint8))
        changed = values[: count * after]
        if self._source.get_class() == h5t.INTEGER and 8 * before == _WIDEST:
            self._check_exact(raw.ravel().view(self._source.dtype), changed.view(self._target.dtype))
        return changed

    def _check_exact(self, integers: NDArray[Any], changed: NDArray[Any]) -> None:
        if changed.dtype.kind == "f":
            exact = changed < 2.0 ** (_WIDEST - (integers.dtype.kind == "i"))
            exact[exact] = changed[exact].astype(integers.dtype) == integers[exact]
        else:
            exact = integers <= np.iinfo(changed.dtype).max
        if not exact.all():
            place = int(exact.argmin())
            items = max(1, self._own.row_bytes // integers.itemsize)
            raise BadValueError(
                place // items, f"{changed.dtype.name} does not hold {integers[place]} exactly"
            )
