"""From native batches of HDF5 rows to table form, and to the texts of fields: groups become structs, rows fixed-size lists.

Arrow types that HDF5 lacks are stored as integers, with the type in an attribute of the dataset.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5t

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.hdf5.types import (
    BadValueError,
    Kind,
    Packer,
    find_dtype,
    list_members,
    name_type,
    strip_texts,
    wrap_rows,
)
from recshuf.formats.texts import find_invalid
from recshuf.interfaces import TableDecoder, ValueReader
from recshuf.records.arrays import check_path, dotted, is_any_list, unknown_column, view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.hdf5.columns import Column
    from recshuf.formats.texts import TableValueReader

    _Raw = NDArray[np.uint8]
    _Tree = dict[str, "int | _Tree"]


BINARY_NAME = "large_binary"
_WITH_ZONE = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_NO_TABLE_REMEDY = "shuffle to HDF5, or name other datasets with --datasets"
_NUMBER_BYTES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


class Form(NamedTuple):
    """Table form of values of a type."""

    arrow_type: pa.DataType
    decode: Callable[[Any], pa.Array]
    """Returns n values from their bytes, of shape ``(n, width)``, or from n native rows of variable length."""
    can_fail: bool = False
    """Whether `decode` may raise `BadValueError`."""
    width: int = 0
    """Bytes of a value of a fixed size."""


def _find_form(tid: h5t.TypeID, field: str, shape: Sequence[int] = ()) -> Form:
    """Return the table form of arrays of shape `shape` of a type of fixed size, axes from the outermost on."""
    form = _find_item_form(tid, field)
    for length in reversed(shape):
        form = _make_list(form, length)
    return form


def _find_item_form(tid: h5t.TypeID, field: str) -> Form:
    kind, width = tid.get_class(), tid.get_size()
    if kind == h5t.STRING:
        padding = tid.get_strpad()
        return Form(pa.large_string(), lambda raw: _decode_text(strip_texts(raw, padding)), True, width)
    if kind == h5t.ARRAY:
        return _find_form(tid.get_super(), field, tid.get_array_dims())
    if kind == h5t.OPAQUE:
        return Form(pa.binary(width), lambda raw: wrap_rows(np.ascontiguousarray(raw), width), False, width)
    dtype = find_dtype(tid)
    if kind == h5t.ENUM and dtype is not None:
        return _make_enum(dtype, field)
    if dtype is not None and dtype.itemsize in _NUMBER_BYTES.get(dtype.kind, ()):
        if dtype.kind != "c":
            return _make_number(dtype, None if h5t.py_create(dtype).equal(tid) else tid)
        part = _make_number(np.dtype(f"{dtype.byteorder}f{width // 2}"))
        return _make_struct(width, [("real", 0, part), ("imag", part.width, part)])
    if kind == h5t.COMPOUND:
        return _make_struct(width, _find_members(tid, field))
    raise ConversionError(field, f"{name_type(tid)} has no table form", remedy=_NO_TABLE_REMEDY)


def _find_members(tid: h5t.TypeID, field: str) -> list[tuple[str, int, Form]]:
    members = []
    for index in range(tid.get_nmembers()):
        try:
            name = tid.get_member_name(index).decode()
        except UnicodeDecodeError as error:
            problem = f"the name of its member {error.object!r} is not UTF-8"
            raise ConversionError(field, problem) from error
        form = _find_form(tid.get_member_type(index), f"{field}.{name}")
        members.append((name, tid.get_member_offset(index), form))
    return members


def _make_number(dtype: np.dtype[Any], odd: h5t.TypeID | None = None) -> Form:
    """Return the form of numbers with a NumPy type; `odd` if HDF5 stores them differently, as in fewer bits."""
    arrow_type = pa.from_numpy_dtype(dtype.newbyteorder("="))

    def decode(raw: _Raw) -> pa.Array:
        if odd is not None:
            raw = raw.copy()
            h5t.convert(odd, h5t.py_create(dtype), len(raw), raw)
        values = _view_values(raw, dtype)
        native = values.byteswap() if dtype.byteorder == ">" else values
        return pa.Array.from_buffers(arrow_type, len(raw), [None, pa.py_buffer(native)])

    return Form(arrow_type, decode, width=dtype.itemsize)


def _make_enum(dtype: np.dtype[Any], field: str) -> Form:
    members = h5py.check_enum_dtype(dtype)
    if members is None:
        return Form(pa.bool_(), _decode_flags, True, 1)
    if not all(isinstance(name, str) for name in members):
        raise ConversionError(field, "a name of the enum is not UTF-8")
    ordered = sorted(members.items(), key=lambda item: item[1])
    known = np.array([value for _, value in ordered], dtype.newbyteorder("="))
    names = pa.array([name for name, _ in ordered], pa.large_string())

    def decode(raw: _Raw) -> pa.Array:
        values = _view_values(raw, dtype)
        is_known = np.isin(values, known)
        if not is_known.all():
            row = int(is_known.argmin())
            raise BadValueError(row, f"{values[row]} is no value of the enum")
        return names.take(pa.array(np.searchsorted(known, values)))

    return Form(names.type, decode, True, dtype.itemsize)


def _decode_flags(raw: _Raw) -> pa.Array:
    values = raw[:, 0]
    if values.size and values.max() > 1:
        row = int(values.argmax())
        raise BadValueError(row, f"{values[row]} is neither FALSE nor TRUE")
    return pa.array(values.astype(np.bool_))


def _make_struct(width: int, members: Sequence[tuple[str, int, Form]]) -> Form:
    """Return the form of members at byte offsets, with padding between them."""
    arrow_type = pa.struct([pa.field(name, form.arrow_type) for name, _, form in members])

    def decode(raw: _Raw) -> pa.Array:
        arrays = [form.decode(raw[:, start : start + form.width]) for _, start, form in members]
        return pa.StructArray.from_arrays(arrays, fields=list(arrow_type))

    return Form(arrow_type, decode, any(form.can_fail for _, _, form in members), width)


def _make_list(item: Form, length: int) -> Form:
    if not length:  # fixed-size lists of no items cannot be read back from Parquet
        kind, empty = pa.list_(item.arrow_type), pa.array([], item.arrow_type)
        return Form(
            kind, lambda raw: pa.ListArray.from_arrays(np.zeros(len(raw) + 1, np.int32), empty, type=kind)
        )
    arrow_type = pa.list_(item.arrow_type, length)

    def decode(raw: _Raw) -> pa.Array:
        try:
            items = item.decode(raw.reshape(len(raw) * length, item.width))
        except BadValueError as error:
            raise BadValueError(error.row // length, error.problem) from error
        return pa.Array.from_buffers(arrow_type, len(raw), [None], children=[items])

    return Form(arrow_type, decode, item.can_fail, item.width * length)


def _view_values(raw: _Raw, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the bytes, of shape ``(n, itemsize)``, as n values, aligned and without gaps."""
    return np.require(np.ascontiguousarray(raw).view(dtype).reshape(len(raw)), requirements="A")


def _decode_text(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
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


class RowDecoder(TableDecoder):
    """Decodes one native column for each dataset; the columns are in the order of the native fields."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str]) -> None:
        self._names = names
        self._columns = columns
        self._forms = [_find_column_form(column) for column in columns]
        self._tree = _grow_tree([column.name.split("/") for column in columns])
        super().__init__(pa.schema(_join_types(self._tree, self._forms)))

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        for column, form, rows in zip(self._columns, self._forms, batch.columns, strict=True):
            if not form.can_fail:
                continue
            try:
                form.decode(rows)
            except BadValueError as error:
                place = f"row {first_row + error.row} of dataset {column.name!r}"
                name = self._names[input_index]
                raise InputError(name, error.problem, place=place, remedy=_NO_TABLE_REMEDY) from error

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [form.decode(rows) for form, rows in zip(self._forms, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(_join_arrays(self._tree, arrays), schema=self.schema)


def _find_column_form(column: Column) -> Form:
    name = dotted(column.name)
    if column.kind is Kind.COMPOUND:
        return _make_packed(column.tid, name)
    if column.kind is Kind.ARRAY and column.arrow_type == BINARY_NAME:
        return Form(pa.large_binary(), lambda rows: rows)
    if column.kind is not Kind.FIXED:
        return _find_value_form(column.kind, column.tid, name)
    form = _find_form(column.tid, name, column.row_shape)
    noted = parse_temporal(column.arrow_type)
    if noted is None or find_stand_in(noted) != form.arrow_type:
        noted = form.arrow_type

    def decode(rows: pa.Array) -> pa.Array:
        raw = view_bytes(rows).reshape(len(rows), rows.type.byte_width)
        values = form.decode(raw[:, : column.row_bytes])
        return values if noted == form.arrow_type else values.view(noted)

    return Form(noted, decode, form.can_fail)


def _find_value_form(kind: Kind, tid: h5t.TypeID, name: str) -> Form:
    if kind is Kind.STRING:
        return Form(pa.large_string(), _decode_text, True)
    if kind is Kind.FIXED:
        return _find_form(tid, name)
    item = _find_form(tid.get_super(), name)

    def decode(rows: pa.Array) -> pa.Array:
        offsets = view_offsets(rows)
        ends = (offsets - offsets[0]) // item.width
        try:
            items = item.decode(view_bytes(rows).reshape(-1, item.width))
        except BadValueError as error:
            row = int(np.searchsorted(ends, error.row, side="right")) - 1
            raise BadValueError(row, error.problem) from error
        return pa.LargeListArray.from_arrays(pa.array(ends), items)

    return Form(pa.large_list(item.arrow_type), decode, item.can_fail)


def _make_packed(tid: h5t.TypeID, name: str) -> Form:
    """Return the form of packed compounds: a struct of the members' table forms."""
    packer, members = Packer(tid), list_members(tid)
    forms = {
        each.path: _find_value_form(each.kind, each.tid, ".".join((name, *each.path))) for each in members
    }
    tree = _grow_tree([member.path for member in members])
    stored = [member.path for member in (*packer.fixed, *packer.variable)]
    kind = _join_types(tree, [forms[member.path] for member in members])

    def decode(rows: pa.Array) -> pa.Array:
        fixed, variable = packer.split(rows)
        values = dict(zip(stored, (*fixed, *variable), strict=True))
        arrays = [forms[member.path].decode(values[member.path]) for member in members]
        return pa.StructArray.from_arrays(_join_arrays(tree, arrays), fields=list(kind))

    return Form(kind, decode, any(form.can_fail for form in forms.values()))


def _grow_tree(paths: Sequence[Sequence[str]]) -> _Tree:
    """Return the groups on some paths as nested dictionaries, with the indices of paths as leaves."""
    root: _Tree = {}
    for index, path in enumerate(paths):
        tree = root
        for name in path[:-1]:
            inner = tree.setdefault(name, {})
            assert isinstance(inner, dict)  # noqa: S101 - a dataset is no group
            tree = inner
        tree[path[-1]] = index
    return root


def _join_types(tree: _Tree, forms: Sequence[Form]) -> pa.StructType:
    empty = [pa.nulls(0, form.arrow_type) for form in forms]
    return pa.StructArray.from_arrays(_join_arrays(tree, empty), names=list(tree)).type


def _join_arrays(tree: _Tree, arrays: Sequence[pa.Array]) -> list[pa.Array]:
    return [
        pa.StructArray.from_arrays(_join_arrays(node, arrays), names=list(node))
        if isinstance(node, dict)
        else arrays[node]
        for node in tree.values()
    ]


class Hdf5ValueReader(ValueReader):
    """Reads datasets by their paths, and members of compounds behind them."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str], paths: Sequence[str]) -> None:
        self._readers = [_find_reader(columns, names, path) for path in paths]

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        return tuple(
            batch.column(reader).cast(pa.large_binary())
            if isinstance(reader, int)
            else reader.read(batch, input_index, first_row)[0]
            for reader in self._readers
        )


def _find_reader(columns: Sequence[Column], names: Sequence[str], path: str) -> int | TableValueReader:
    """Return the reader of a field, or the place of the column whose bytes are its texts."""
    from recshuf.formats.texts import TableValueReader

    wanted = f"{dotted(path)}."
    known = [f"{dotted(column.name)}." for column in columns]
    place = next((place for place, name in enumerate(known) if wanted.startswith(name)), None)
    if place is None:
        if any(name.startswith(wanted) for name in known):
            raise UsageError(f"column {path!r}: is a group; name a dataset inside it")
        raise unknown_column(path, [column.name for column in columns])
    column = columns[place]
    if prod(column.row_shape) == 1:
        column = replace(column, row_shape=())
    decoder = RowDecoder([column], names)
    if wanted == known[place] and is_any_list(check_path(dotted(path), decoder.finish())):
        return place
    return TableValueReader(decoder, names, [dotted(path)], [place])
