"""What records of arrays are: their layouts and headers, their table form, and their fields as texts.

A table has a column of items, or of lists of them, axis in axis; the members of a structured array are columns, and so are
the arrays of an archive. Headers of NumPy: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import operator
import re
import struct
from ast import literal_eval
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.arrays import MAGIC
from recshuf.interfaces import TableDecoder, ValueReader
from recshuf.records.arrays import split_path, view_bytes, wrap_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


COLUMN = "value"
DAMAGED = "fetch or write the file again"
HEAD_BYTES = 64 << 10
MOST_HEADER_BYTES = 16 << 20
_ALIGNMENT = 64
_MOST_ROWS_DIGITS = 19


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """How records are stored."""

    is_npy: bool
    row_bytes: int
    descr: str
    """What NumPy calls `descr` in the header, as Python; empty if a record is only bytes."""
    shape: tuple[int, ...]
    """Axes of a record."""
    header: bytes
    """What stands before the records of every shard; empty for NumPy, which counts them there."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items of a record; void if it is only bytes."""
        if not self.descr:
            return np.dtype((np.void, self.row_bytes))
        return np.lib.format.descr_to_dtype(literal_eval(self.descr))

    @property
    def record(self) -> np.dtype[Any]:
        """Type of a record, with its axes."""
        return np.dtype((self.dtype, self.shape))

    @property
    def names(self) -> tuple[str, ...]:
        return (COLUMN,)

    @property
    def arrays(self) -> tuple[FixedLayout, ...]:
        return (self,)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(COLUMN, pa.binary(self.row_bytes))])

    def check_same(self, other: FixedLayout, name: str, first_name: str, place: str | None = None) -> None:
        """Refuse rows of another type or of other axes, those of the input `name`."""
        if (self.descr, self.shape) != (other.descr, other.shape):
            ours, theirs = (
                f"{one.dtype}{''.join(f'[{axis}]' for axis in one.shape)}" for one in (self, other)
            )
            problem = f"holds records of {theirs}, and {first_name} of {ours}"
            raise InputError(name, problem, place=place, remedy="shuffle them apart, or convert one of them")


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """How records of an archive are stored."""

    names: tuple[str, ...]
    arrays: tuple[FixedLayout, ...]
    compression: str
    others: dict[str, bytes]
    """Arrays that every shard repeats, each as a file of NumPy."""

    @property
    def schema(self) -> pa.Schema:
        kinds = [pa.binary(array.row_bytes) for array in self.arrays]
        return pa.schema(list(zip(self.names, kinds, strict=True)))

    @property
    def row_bytes(self) -> int:
        return sum(array.row_bytes for array in self.arrays)


Layout = FixedLayout | ArchiveLayout


def find_layout(schema: pa.Schema, *, is_npy: bool) -> FixedLayout:
    """Return the layout for tables: of one column of numbers, of lists of as many numbers each, or of as many bytes each."""
    if len(schema) != 1:
        problem = f"an array holds one column, and there are {len(schema)}"
        raise ConversionError(
            "", problem, remedy="choose one with --columns, or choose --to npz or --to hdf5"
        )
    return _lay_out(schema.field(0), is_npy=is_npy)


def find_archive_layout(schema: pa.Schema) -> ArchiveLayout:
    """Return the layout for tables: an array for each column, of the types that `find_layout` takes."""
    if not len(schema):
        problem = "records without a single field have no place in an archive"
        raise ConversionError("", problem, remedy="choose --to jsonl or --to parquet")
    arrays = tuple(_lay_out(field, is_npy=True) for field in schema)
    return ArchiveLayout(tuple(schema.names), arrays, "none", {})


def _lay_out(field: pa.Field, *, is_npy: bool) -> FixedLayout:
    kind, shape = field.type, list[int]()
    if pa.types.is_fixed_size_binary(kind) and not is_npy:
        return FixedLayout(False, kind.byte_width, "", (), b"")
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        remedy = "choose --to hdf5 or --to parquet"
        raise ConversionError(field.name, f"an array does not hold type {kind}", remedy=remedy)
    dtype = np.dtype(kind.to_pandas_dtype())
    return FixedLayout(is_npy, dtype.itemsize * prod(shape), repr(dtype.str), tuple(shape), b"")


def make_header(layout: FixedLayout, rows: int) -> bytes:
    """Return a header of NumPy for so many rows, which has the same length for any number."""
    if not layout.is_npy:
        return layout.header
    shape = ", ".join(map(str, (rows, *layout.shape))) + ("," if not layout.shape else "")
    text = f"{{'descr': {layout.descr}, 'fortran_order': False, 'shape': ({shape}), }}".encode()
    length = len(text) - len(str(rows)) + _MOST_ROWS_DIGITS + 1
    is_short = text.isascii() and length + len(MAGIC) + 4 + _ALIGNMENT < 1 << 16
    prefix = len(MAGIC) + (4 if is_short else 6)
    whole = -(-(prefix + length) // _ALIGNMENT) * _ALIGNMENT
    version = b"\1\0" if is_short else b"\2\0" if text.isascii() else b"\3\0"
    count = struct.pack("<H" if is_short else "<I", whole - prefix)
    return MAGIC + version + count + text.ljust(whole - prefix - 1) + b"\n"


class Header(NamedTuple):
    """What a header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    """Whether items lie column by column, in Fortran's order."""
    start: int
    """Where the values begin."""

    @property
    def rows(self) -> int:
        """Length of the first axis; -1 if there is none."""
        return self.shape[0] if self.shape else -1

    @property
    def byte_count(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @property
    def layout(self) -> FixedLayout:
        descr, shape = repr(np.lib.format.dtype_to_descr(self.dtype)), self.shape[1:]
        return FixedLayout(True, self.dtype.itemsize * prod(shape), descr, shape, b"")


def count_header(head: bytes) -> int:
    """Return the bytes of a header that begins so, without the magic, but not more than one may have."""
    length = int.from_bytes(head[8:10] if head[6:7] == b"\1" else head[8:12], "little")
    return min(length + 12, MOST_HEADER_BYTES)


def parse_header(name: str, place: str | None, head: bytes) -> Header:
    """Return what the header at the beginning of an array says."""
    try:
        major = head[6]
        start = 10 if major == 1 else 12
        end = start + int.from_bytes(head[8:start], "little")
        text = head[start:end].decode("utf-8" if major == 3 else "latin-1")
        # Python 2 wrote its long numbers so.
        fields = literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())
        shape = tuple(map(operator.index, fields["shape"]))
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        if major > 3 or end > len(head) or min(shape, default=0) < 0:
            raise ValueError(f"version {major}, shape {shape}, {end} bytes")
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, RecursionError, MemoryError) as error:
        problem = f"has a header that is damaged: {' '.join(str(error).split())[:200]}"
        raise InputError(name, problem, place=place, remedy=DAMAGED) from error
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle reads and could run any code"
        remedy = "write its values with a type of NumPy, or as Parquet"
        raise InputError(name, problem, place=place, remedy=remedy)
    return Header(dtype, shape, bool(fields.get("fortran_order")), end)


class ArrayDecoder(TableDecoder):
    """Decodes the columns of a layout, each to one; the members of a structured one alone are columns."""

    def __init__(self, layout: Layout) -> None:
        self._records = [array.record for array in layout.arrays]
        kinds = [*map(find_type, self._records, layout.names)]
        self._has_members = isinstance(layout, FixedLayout) and pa.types.is_struct(kinds[0])
        fields = list(kinds[0]) if self._has_members else [*map(pa.field, layout.names, kinds)]
        super().__init__(pa.schema(fields))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = zip(batch.columns, self._records, strict=True)
        arrays = [_wrap(view_rows(column), dtype) for column, dtype in columns]
        return pa.RecordBatch.from_arrays(
            arrays[0].flatten() if self._has_members else arrays, schema=self.schema
        )


def find_type(dtype: np.dtype[Any], name: str) -> pa.DataType:
    """Return the type of a column of values of a type."""
    try:
        return _wrap(np.zeros((0, dtype.itemsize), np.uint8), dtype).type
    except (pa.ArrowException, TypeError, ValueError) as error:
        problem = f"items of type {dtype.base} have no table form"
        raise ConversionError(name, problem, remedy="keep the format of the inputs") from error


def _wrap(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> pa.Array:
    """Return the values whose bytes are the rows of an array."""
    if dtype.names is not None:
        fields = [dtype.fields[name][:2] for name in dtype.names]  # type: ignore[index] # it has names
        members = [_wrap(raw[:, at : at + kind.itemsize], kind) for kind, at in fields]
        return pa.StructArray.from_arrays(members, names=dtype.names)
    raw = np.ascontiguousarray(raw)
    if dtype.subdtype is not None:
        item, shape = dtype.subdtype
        values = _wrap(raw.reshape(-1, item.itemsize), item)
        for axis in reversed(shape):
            values = pa.FixedSizeListArray.from_arrays(values, axis)
        return values
    if dtype.kind == "V":  # bytes of no type
        return wrap_values(raw, pa.binary(dtype.itemsize))
    values = raw.view(dtype).reshape(len(raw))
    return pa.array(values.astype(dtype.newbyteorder("="), copy=False))


def view_rows(column: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of the rows of a native column, shape ``(rows, bytes of a row)``."""
    return view_bytes(column).reshape(len(column), column.type.byte_width)


def list_bytes(batch: pa.RecordBatch, place: int) -> memoryview:
    """Return the bytes of all rows of a column, which is native, or of numbers, or lists of them."""
    array, name = batch.column(place), batch.schema.names[place]
    while True:
        if array.null_count:
            raise ConversionError(name, "an array holds no nulls", remedy="choose --to parquet or --to hdf5")
        if not pa.types.is_fixed_size_list(array.type):
            break
        array = array.flatten()
    # A truth value takes a byte there.
    return view_bytes(array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array).data


class _Place(NamedTuple):
    """Where the bytes of a field are in native records."""

    column: int
    begin: int
    dtype: np.dtype[Any]
    """Type of the value; one of bytes if its text is these."""


class ArrayValueReader(ValueReader):
    """Reads arrays, or members of structured ones, by their names: items that are single values, else the bytes of the row."""

    def __init__(self, layout: Layout, names: Sequence[str], paths: Sequence[str]) -> None:
        self._names, self._paths = names, paths
        self._places = [_find_place(layout, path) for path in paths]

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        from recshuf.formats.texts import locate_texts  # imports what runs without fields do not need

        name, found = self._names[input_index], []
        for path, (column, begin, dtype) in zip(self._paths, self._places, strict=True):
            rows = view_rows(batch.column(column))[:, begin : begin + dtype.itemsize]
            found.append(locate_texts(_wrap(rows, dtype), path, name, first_row))
        return tuple(found)


def _find_place(layout: Layout, path: str) -> _Place:
    from recshuf.formats.texts import check_type  # late, as above

    dtype = layout.arrays[0].record
    if isinstance(layout, FixedLayout) and dtype.names:
        column, begin, (member, fields) = 0, 0, split_path(path, dtype.names)
        fields = [member, *fields]
    else:
        name, fields = split_path(path, layout.names)
        column, begin = layout.names.index(name), 0
        dtype = layout.arrays[column].record
    for name in fields:
        if dtype.fields is None or name not in dtype.fields:
            raise UsageError(f"column {path!r}: there is no field {name!r} in {dtype}")
        dtype, offset = dtype.fields[name][:2]
        begin += offset
    if prod(dtype.shape) != 1:
        return _Place(column, begin, np.dtype((np.void, dtype.itemsize)))
    check_type(find_type(dtype.base, path), path)
    return _Place(column, begin, dtype.base)
