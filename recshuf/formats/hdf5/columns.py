"""Datasets of the record: type, field in native batches, storage in a file.

Those whose types differ between inputs get one type: texts of other lengths, numbers of another width or byte order.
"""

from __future__ import annotations

from math import prod
from operator import attrgetter, gt
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5a, h5d, h5p, h5s, h5t

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import refuse_unknown_filters
from recshuf.formats.hdf5.types import (
    BadValueError,
    Kind,
    describe_type,
    find_chunk,
    find_dtype,
    kind_of,
    list_charsets,
    name_type,
    strip_texts,
    with_charsets,
    wrap_rows,
)
from recshuf.records.arrays import view_bytes, view_offsets, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


ARROW_TYPE = "arrow_type"
"""Attribute with the Arrow type of values that HDF5 stores as another one."""
_CACHE_SLOTS = 521
_NUMBERS = {h5t.INTEGER, h5t.FLOAT}
_WIDEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of the record, the same in all files of a run."""

    name: str
    """Path in the file, without the leading slash; the name of its native field."""
    kind: Kind
    type_code: bytes
    row_shape: tuple[int, ...]
    """Shape without the first axis."""
    row_bytes: int
    """Bytes of a row in the file, without variable-length values."""
    arrow_type: str | None = None

    @property
    def tid(self) -> h5t.TypeID:
        return h5t.decode(self.type_code)

    @property
    def native_width(self) -> int:
        """Bytes of a row in a native batch, at least 1 so that rows without bytes can be counted."""
        return max(self.row_bytes, 1)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a row that do not depend on its value: all of them, or the offset of a variable-length value."""
        return self.native_width if self.kind is Kind.FIXED else 8

    @property
    def field(self) -> pa.Field:
        """The native field, with type and row shape as informative metadata."""
        metadata = {"hdf5.type": describe_type(self.tid), "hdf5.row_shape": str(self.row_shape)}
        kind = pa.binary(self.native_width) if self.kind is Kind.FIXED else pa.large_binary()
        return pa.field(self.name, kind, nullable=False, metadata=metadata)

    @property
    def lists(self) -> Column:
        """The column of lists whose items are the rows of this one."""
        return make_column(h5t.vlen_create(self.tid), self.name, (), self.arrow_type)

    @property
    def items(self) -> Column:
        """The column whose rows are the items of lists in this one."""
        return make_column(self.tid.get_super(), self.name, (), self.arrow_type)

    def name_rows(self) -> str:
        return f"{name_type(self.tid)}{f' rows of shape {self.row_shape}' if self.row_shape else ''}"

    def holds_same(self, other: Column) -> bool:
        is_same = self.type_code == other.type_code or self.tid.equal(other.tid)
        return self.row_shape == other.row_shape and bool(is_same)

    def is_wider_text(self, other: Column) -> bool:
        """Tell whether strings of variable length are UTF-8 and those of a column of the same type to HDF5 ASCII, also in members."""
        return any(map(gt, list_charsets(self.tid), list_charsets(other.tid)))


class IndexRoot(NamedTuple):
    """Where the root of an index lies in a file."""

    place: int
    size: int
    """Bytes of each node."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a column in one file."""

    path: str
    """Path of the dataset without links."""
    row_count: int
    chunk_rows: int | None
    """Rows of a chunk; None without chunks."""
    chunk_bytes: int
    """Size of a chunk before compression; 0 without chunks."""
    stored_bytes: int
    """Size in the file, without the values of variable-length rows; uncompressed if there is an `index_root`."""
    begin: int | None
    """Place in the file where the rows begin, if that is known."""
    index_root: IndexRoot | None
    """The root of the index of chunks, if the index is read and checked with the rows."""


def read_column(dataset: h5d.DatasetID, name: str) -> Column:
    noted = None
    if h5a.exists(dataset, ARROW_TYPE.encode()):
        noted = h5py.Dataset(dataset).attrs[ARROW_TYPE]
    arrow_type = noted if isinstance(noted, str) else None
    return make_column(dataset.get_type().copy(), name, tuple(dataset.shape[1:]), arrow_type)


def make_column(
    tid: h5t.TypeID, name: str, row_shape: tuple[int, ...], arrow_type: str | None = None
) -> Column:
    return Column(name, kind_of(tid), tid.encode(), row_shape, prod(row_shape) * tid.get_size(), arrow_type)


def read_storage(dataset: h5d.DatasetID, path: str, index_root: IndexRoot | None = None) -> Storage:
    """Return the storage of a dataset with a first axis; reads its index of chunks, unless it is given its root."""
    chunk = find_chunk(dataset)
    item_bytes = dataset.get_type().get_size()
    chunk_bytes = prod(chunk) * item_bytes if chunk else 0
    chunk_rows = chunk[0] if chunk else None
    if index_root is None:
        begin, stored_bytes = dataset.get_offset(), dataset.get_storage_size()
    else:
        # A dataset gets its index just before its first chunk.
        begin, stored_bytes = index_root.place, prod(dataset.shape) * item_bytes
    return Storage(path, dataset.shape[0], chunk_rows, chunk_bytes, stored_bytes, begin, index_root)


def open_dataset(file: h5py.File, path: str, cache_bytes: int) -> h5d.DatasetID:
    """Open a dataset with a chunk cache of so many bytes, which evicts fully used chunks first."""
    plist = h5p.create(h5p.DATASET_ACCESS)
    plist.set_chunk_cache(_CACHE_SLOTS, cache_bytes, 1.0)
    return h5d.open(file.id, path.encode(), plist)


def select_rows(
    dataset: h5d.DatasetID, start: int, row_count: int, row_shape: tuple[int, ...]
) -> tuple[h5s.SpaceID, h5s.SpaceID]:
    """Return the dataspaces, in memory and in the file, of `row_count` rows from `start` on."""
    shape = (row_count, *row_shape)
    in_file = dataset.get_space()
    in_file.select_hyperslab((start, *(0 for _ in row_shape)), shape)
    return h5s.create_simple(shape), in_file


def read_pointers(dataset: h5d.DatasetID, start: int, count: int) -> NDArray[np.int64]:
    values = np.zeros(count, np.int64)
    dataset.read(*select_rows(dataset, start, count, ()), values, h5t.NATIVE_INT64)
    return values


def check_access(dataset: h5d.DatasetID, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files or need a filter that is not installed."""
    plist = dataset.get_create_plist()
    is_virtual = plist.get_layout() == h5d.VIRTUAL
    if is_virtual or plist.get_external_count() > 0:
        problem = f"{'virtual datasets read' if is_virtual else 'external storage reads'} other files"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy="make a copy of the data")
    refuse_unknown_filters(plist, name, f"dataset {path!r}")


def unite_columns(columns: Sequence[Column], *, widens: bool) -> Column | None:
    """Return the column of datasets of several inputs that holds all their values; None if there is none.

    If it `widens`, a value that is not held exactly is left to `Change` to refuse.
    """
    first = columns[0]
    if any(each.row_shape != first.row_shape for each in columns):
        return None
    if all(first.holds_same(each) for each in columns):
        return _unite_charsets(columns)
    tid = _unite([each.tid for each in columns], widens=widens)
    if tid is None:
        return None
    united = make_column(tid, first.name, first.row_shape, first.arrow_type)
    is_possible = united.kind is not Kind.COMPOUND and (united.kind is Kind.FIXED or not united.row_shape)
    return united if is_possible else None


def _unite_charsets(columns: Sequence[Column]) -> Column:
    first = columns[0]
    others = [list_charsets(each.tid) for each in columns if each.type_code != first.type_code]
    own = list_charsets(first.tid) if others else []
    united = [max(sets) for sets in zip(own, *others, strict=True)]
    if united == own:
        return first
    tid = with_charsets(first.tid, iter(united))
    return make_column(tid, first.name, first.row_shape, first.arrow_type)


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
        if self._own.kind in (Kind.STRING, Kind.COMPOUND):  # of these, the character sets differ
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
