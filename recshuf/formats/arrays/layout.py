"""What records of arrays are, and how they are written: their layouts, headers, table form and shards.

A table has a column of items, or of lists of them, axis in axis; the members of a structured array are columns, and so are
the arrays of an archive. Headers of NumPy: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import shutil
import struct
import tempfile
import warnings
import zipfile
from ast import literal_eval
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.arrays import DTYPE, MAGIC, RECORD_BYTES, RECORD_SHAPE
from recshuf.formats.files import (
    BUFFER_BYTES,
    CHOOSE_ONE,
    DAMAGED,
    FileSink,
    FileTarget,
    explained,
    write_all,
)
from recshuf.interfaces import TableDecoder
from recshuf.records.arrays import dtype_of, view_bytes, wrap_values
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.interfaces import ReadOptions, WriteOptions


COLUMN = "value"
_MOST_HEADER_BYTES = 16 << 20
_ALIGNMENT = 64
_MOST_ROWS_DIGITS = 19
END = ".npy"
"""Of the names of arrays in an archive."""
_LONG = (1 << 31) - 1
"""ZIP needs longer sizes from here on, which not every reader of archives knows."""


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """How records are stored."""

    names: ClassVar[tuple[str, ...]] = (COLUMN,)
    is_npy: bool
    row_bytes: int
    descr: str
    """What NumPy calls `descr` in the header, as Python; empty if a record is only bytes."""
    shape: tuple[int, ...]
    """Axes of a record."""
    header: bytes
    """What stands before the records of every shard; empty for NumPy, which counts them there."""

    @classmethod
    def of(cls, record: np.dtype[Any], *, is_npy: bool = True) -> FixedLayout:
        descr = repr(np.lib.format.dtype_to_descr(record.base))
        return cls(is_npy, record.itemsize, descr, record.shape, b"")

    @property
    def record(self) -> np.dtype[Any]:
        """Type of a record, with its axes; void if it is only bytes."""
        if not self.descr:
            return np.dtype((np.void, self.row_bytes))
        return np.dtype((np.lib.format.descr_to_dtype(literal_eval(self.descr)), self.shape))

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
                f"{one.record.base}{''.join(f'[{axis}]' for axis in one.shape)}" for one in (self, other)
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


def find_layout(schema: pa.Schema, name: str) -> Layout:
    """Return the layout of a format for tables: of columns of numbers, of lists of as many numbers each, or of as many bytes each."""
    if len(schema) != 1 and name != "npz":
        problem = f"an array holds one column, and there are {len(schema)}"
        raise ConversionError("", problem, remedy=f"{CHOOSE_ONE}, or choose --to npz or --to hdf5")
    if not len(schema):
        problem = "records without a single field have no place in an archive"
        raise ConversionError("", problem, remedy="choose --to jsonl or --to parquet")
    arrays = tuple(_lay_out(field, is_npy=name != "binary") for field in schema)
    return ArchiveLayout(tuple(schema.names), arrays, "none", {}) if name == "npz" else arrays[0]


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
    return FixedLayout.of(np.dtype((dtype_of(kind), tuple(shape))), is_npy=is_npy)


def find_binary_layout(name: str, options: ReadOptions) -> FixedLayout:
    """Return the layout that options tell for a binary file of this name."""
    dtype, size = DTYPE.of(options), RECORD_BYTES.of(options)
    if (shape := RECORD_SHAPE.of(options)) is not None:
        if dtype is None or "[" in dtype:
            raise UsageError(f"--record-shape {shape}: give the type of the numbers alone, as --dtype uint16")
        dtype = f"{dtype}[{shape}]"
    if dtype is not None:
        layout = FixedLayout.of(parse_dtype(dtype), is_npy=False)
        if size not in (None, layout.row_bytes):
            raise UsageError(
                f"--dtype {dtype}: a record takes {layout.row_bytes:,} bytes, and --record-bytes says {size:,}"
            )
        return layout
    if size is None and options.schema is not None:  # written from a table
        return find_layout(options.schema, "binary").arrays[0]
    if size is None:
        raise UsageError(
            f"{name}: nothing tells the bytes of a record; give --record-bytes BYTES, or their type with "
            "--dtype uint16[2048]"
        )
    return FixedLayout(False, size, "", (), b"")


def parse_dtype(text: str) -> np.dtype[Any]:
    """Return the type of a record, with its axes.

    >>> parse_dtype("uint16"), parse_dtype(">f4[3,224]")
    (dtype('uint16'), dtype(('>f4', (3, 224))))
    """
    name, _, axes = text.partition("[")
    with suppress(TypeError, ValueError):
        shape = tuple(map(int, axes.removesuffix("]").split(","))) if axes else ()
        dtype = np.dtype((name, shape))
        if dtype.base.kind in "iufb" and dtype.itemsize and axes[-1:] in ("", "]"):
            return dtype
    raise UsageError(
        f"--dtype {text}: is no type of numbers; give one such as uint16, float32[3,224,224] or >i4[8]"
    )


def make_header(layout: FixedLayout, rows: int) -> bytes:
    """Return a header of NumPy for so many rows, which has the same length for any number."""
    if not layout.is_npy:
        return layout.header
    shape = (rows, *layout.shape)
    text = f"{{'descr': {layout.descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = len(text) - len(str(rows)) + _MOST_ROWS_DIGITS + 1
    is_short = text.isascii() and length + len(MAGIC) + 4 + _ALIGNMENT < 1 << 16
    version, code = (b"\1\0", "<H") if is_short else (b"\2\0" if text.isascii() else b"\3\0", "<I")
    prefix = len(MAGIC) + 2 + struct.calcsize(code)
    inner = -(-(prefix + length) // _ALIGNMENT) * _ALIGNMENT - prefix
    return MAGIC + version + struct.pack(code, inner) + text.ljust(inner - 1) + b"\n"


class Array(NamedTuple):
    """An array in a file."""

    layout: FixedLayout
    rows: int
    """Length of its first axis; -1 if it is a single value."""
    start: int
    """Where its values begin."""
    by_columns: bool = False
    """Whether items lie column by column, in Fortran's order."""

    @property
    def byte_count(self) -> int:
        return abs(self.rows) * self.layout.row_bytes

    def order(self, items: NDArray[np.uint8], rows: int) -> NDArray[np.void]:
        """Return so many rows in C's order, given their bytes column by column."""
        width = self.layout.record.base.itemsize
        stored = items.reshape(-1).view(np.dtype((np.void, width)))
        return np.ascontiguousarray(stored.reshape((rows, *self.layout.shape), order="F"))


def read_header(name: str, place: str | None, stream: IO[bytes], byte_count: int) -> Array:
    """Return the array that lies here in so many bytes, by what its header says, which comes first."""
    with explained(name, "has a header that is damaged", place):
        major, minor = np.lib.format.read_magic(stream)
        length_bytes, code = (2 if major == 1 else 4), ("utf-8" if major == 3 else "latin-1")
        length = int.from_bytes(stream.read(length_bytes), "little")
        text = stream.read(min(length, _MOST_HEADER_BYTES)).decode(code).encode("ascii", "backslashreplace")
        head = io.BytesIO(len(text).to_bytes(4, "little") + text)
        with warnings.catch_warnings(action="ignore"):  # that Python 2 wrote it
            found = np.lib.format.read_array_header_2_0(head, max_header_size=_MOST_HEADER_BYTES)
        (rows, *axes), by_columns, dtype = (found[0] or (-1,)), *found[1:]
        if major not in (1, 2, 3) or minor or min(found[0], default=0) < 0:
            raise ValueError(f"version {major}.{minor}, shape {found[0]}")
        layout = FixedLayout.of(np.dtype((dtype, tuple(axes))))
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle reads and could run any code"
        remedy = "write its values with a type of NumPy, or as Parquet"
        raise InputError(name, problem, place=place, remedy=remedy)
    start = np.lib.format.MAGIC_LEN + length_bytes + length
    array = Array(layout, rows, start, by_columns and prod(axes) > 1)
    if byte_count - start != array.byte_count:
        problem = f"holds {max(0, byte_count - start):,} bytes behind its header, and its values take {array.byte_count:,}"
        raise InputError(name, problem, place=place, remedy=DAMAGED)
    return array


class ArrayDecoder(TableDecoder):
    """Decodes the columns of a layout, each to one; the members of a structured one alone are columns.

    If it `keeps_bytes`, rows of several numbers are their bytes, as keys of values have them.
    """

    def __init__(self, layout: Layout, *, keeps_bytes: bool = False) -> None:
        self._keeps_bytes = keeps_bytes
        self._records = [array.record for array in layout.arrays]
        fields = []
        for name, dtype in zip(layout.names, self._records, strict=True):
            try:
                fields.append(pa.field(name, self._wrap(_view(np.empty(0, np.uint8), dtype)).type))
            except (pa.ArrowException, TypeError, ValueError) as error:
                what = f"items of type {dtype.base}" if dtype.itemsize else "rows of no items"
                problem = f"{what} have no table form"
                raise ConversionError(name, problem, remedy="keep the format of the inputs") from error
        self._has_members = isinstance(layout, FixedLayout) and pa.types.is_struct(fields[0].type)
        super().__init__(pa.schema(list(fields[0].type) if self._has_members else fields))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = zip(batch.columns, self._records, strict=True)
        arrays = [self._wrap(_view(view_bytes(column), dtype)) for column, dtype in columns]
        return pa.RecordBatch.from_arrays(
            arrays[0].flatten() if self._has_members else arrays, schema=self.schema
        )

    def _wrap(self, values: NDArray[Any]) -> pa.Array:
        """Return values, shape ``(n, ...)``; those of further axes are in lists."""
        (rows, *axes), dtype = values.shape, values.dtype
        if axes and self._keeps_bytes and prod(axes) == 1:
            return self._wrap(values.reshape(rows))
        if axes and not self._keeps_bytes:
            items = self._wrap(values.reshape(rows * axes[0], *axes[1:]))
            return pa.FixedSizeListArray.from_arrays(items, axes[0])
        if dtype.names and not axes:
            return pa.StructArray.from_arrays([self._wrap(values[name]) for name in dtype.names], dtype.names)
        if axes or dtype.kind in ("Vc" if self._keeps_bytes else "V"):
            return wrap_values(values, pa.binary(dtype.itemsize * prod(axes)))
        return pa.array(np.ascontiguousarray(values, dtype.newbyteorder("=")))


def _view(content: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return bytes as rows of a type with axes; a `ValueError` if rows have none."""
    rows: NDArray[Any] = content.view([("row", dtype)])["row"]
    return rows


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


class ArraySink(FileSink):
    """Arrays being written, each to a file, of which the header is written once more at its end."""

    def __init__(self, files: ExitStack, parts: Sequence[FileIO], layout: Layout) -> None:
        self._parts, self._arrays = parts, layout.arrays
        self._write_headers()
        super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        for place, part in enumerate(self._parts):
            write_all(part, list_bytes(batch, place))
        self._count += batch.num_rows

    def _complete(self) -> None:
        self._write_headers()

    def _write_headers(self) -> None:
        for part, array in zip(self._parts, self._arrays, strict=True):
            part.seek(0)
            write_all(part, make_header(array, self._count))


class ArchiveSink(ArraySink):
    """One archive being written. As an array stands in it as a whole, each is written to a file without a name first."""

    def __init__(self, path: Path, layout: ArchiveLayout, method: int, level: int | None) -> None:
        self._layout, self._method, self._level = layout, method, level
        with ExitStack() as files:
            self._file = files.enter_context(BehindFile(path, "xb"))
            parts = [
                files.enter_context(tempfile.TemporaryFile("w+b", 0, dir=path.parent)) for _ in layout.arrays
            ]
            super().__init__(files, parts, layout)

    def _complete(self) -> None:
        super()._complete()
        copies = zip(self._layout.others, map(io.BytesIO, self._layout.others.values()), strict=True)
        with zipfile.ZipFile(self._file, "w", self._method, compresslevel=self._level) as archive:
            for name, part in (*zip(self._layout.names, self._parts, strict=True), *copies):
                is_long = part.seek(0, io.SEEK_END) >= _LONG
                part.seek(0)
                with archive.open(f"{name}{END}", "w", force_zip64=is_long) as member:
                    shutil.copyfileobj(part, member, BUFFER_BYTES)


def open_target(layout: Layout, options: WriteOptions) -> FileTarget:
    """Return the target for shards of one layout, of native records or of tables."""
    if isinstance(layout, ArchiveLayout):
        is_packed = (options.compression or layout.compression) != "none"
        method = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
        open_archive = partial(ArchiveSink, layout=layout, method=method, level=options.compression_level)
        return FileTarget(".npz", open_archive, 2 * BUFFER_BYTES + sum(map(len, layout.others.values())))

    def open_sink(path: Path) -> ArraySink:
        with ExitStack() as files:
            return ArraySink(files, [files.enter_context(BehindFile(path, "xb"))], layout)

    return FileTarget(".npy" if layout.is_npy else ".bin", open_sink, 1 << 20)
