"""Shards of records of a fixed number of bytes, behind a header that NumPy reads or that the inputs have, and archives of arrays."""

from __future__ import annotations

import shutil
import struct
import tempfile
import zipfile
from ast import literal_eval
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.arrays import MAGIC
from recshuf.interfaces import Sink, Target
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.interfaces import WriteOptions


_ALIGNMENT = 64
_MOST_ROWS_DIGITS = 19
COLUMN = "value"
_COPY_BYTES = 1 << 20
_LONG = (1 << 31) - 1
"""ZIP needs longer sizes from here on, which not every reader of archives knows."""


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
    def dtype(self) -> np.dtype[Any] | None:
        """Type of the items of a record; None if it is only bytes."""
        return read_descr(self.descr) if self.descr else None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(COLUMN, pa.binary(self.row_bytes))])


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


def describe_type(dtype: np.dtype[Any]) -> str:
    """Return what `read_descr` takes."""
    return repr(np.lib.format.dtype_to_descr(dtype))


def read_descr(descr: str) -> np.dtype[Any]:
    """Return the type that a header describes; raise `ValueError` if it describes none."""
    return np.lib.format.descr_to_dtype(literal_eval(descr))


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
    """Return a header of NumPy for so many rows, which has the same length for any number.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
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


class FixedTarget(Target):
    """Shards of one layout."""

    def __init__(self, schema: pa.Schema, layout: FixedLayout) -> None:
        self.suffix = ".npy" if layout.is_npy else ".bin"
        self._layout = layout
        self._is_table = not pa.types.is_fixed_size_binary(schema.field(0).type)

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return 1 << 20

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        return FixedSink(BehindFile(path, "xb"), self._layout, encodes=self._is_table)


class FixedSink(Sink):
    """One file of fixed records being written."""

    def __init__(self, file: BehindFile, layout: FixedLayout, *, encodes: bool) -> None:
        self._file, self._layout, self._encodes = file, layout, encodes
        self._count = 0
        self._write(memoryview(make_header(layout, 0)))

    @property
    def record_count(self) -> int:
        return self._count

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(view_rows(batch, 0, encodes=self._encodes))
        self._count += batch.num_rows

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            if self._layout.is_npy:
                self._file.seek(0)
                self._write(memoryview(make_header(self._layout, self._count)))
        finally:
            self._file.close()

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()


def view_rows(batch: pa.RecordBatch, place: int, *, encodes: bool) -> memoryview:
    """Return the bytes of the rows of a column, which is native unless `encodes`: of numbers, or lists of them."""
    array = batch.column(place)
    if encodes:
        array = _flatten(array, batch.schema.names[place])
    width = array.type.bit_width // 8
    buffer = array.buffers()[1]
    return memoryview(buffer or b"").cast("B")[array.offset * width : (array.offset + len(array)) * width]


def _flatten(array: pa.Array, name: str) -> pa.Array:
    """Return the numbers of a column of lists, one after the other."""
    while True:
        if array.null_count:
            raise ConversionError(name, "an array holds no nulls", remedy="choose --to parquet or --to hdf5")
        if not pa.types.is_fixed_size_list(array.type):
            # A truth value takes a byte there.
            return array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
        array = array.flatten()


class ArchiveTarget(Target):
    """Shards of one layout."""

    suffix = ".npz"

    def __init__(self, layout: ArchiveLayout, options: WriteOptions, *, is_table: bool) -> None:
        self._layout, self._is_table = layout, is_table
        self._is_packed = (options.compression or layout.compression) != "none"
        self._level = options.compression_level

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return 2 * _COPY_BYTES + sum(map(len, self._layout.others.values()))

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        method = zipfile.ZIP_DEFLATED if self._is_packed else zipfile.ZIP_STORED
        make = partial(zipfile.ZipFile, mode="w", compression=method, compresslevel=self._level)
        return ArchiveSink(path, self._layout, make, encodes=self._is_table)


class ArchiveSink(Sink):
    """One archive being written. As an array stands in it as a whole, each is written to a file without a name first."""

    def __init__(
        self,
        path: Path,
        layout: ArchiveLayout,
        make: Callable[[IO[bytes]], zipfile.ZipFile],
        *,
        encodes: bool,
    ) -> None:
        self._layout, self._make, self._encodes, self._count = layout, make, encodes, 0
        self._file, self._parts = BehindFile(path, "xb"), list[IO[bytes]]()
        try:
            for _ in layout.arrays:
                self._parts.append(tempfile.TemporaryFile(dir=path.parent, buffering=0))  # noqa: SIM115 - `abort` closes it
        except BaseException:
            self.abort()
            raise

    @property
    def record_count(self) -> int:
        return self._count

    def write(self, batch: pa.RecordBatch) -> None:
        for place, part in enumerate(self._parts):
            view = view_rows(batch, place, encodes=self._encodes)
            while view:
                view = view[part.write(view) :]
        self._count += batch.num_rows

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            layout = self._layout
            with self._make(self._file) as archive:
                for name, array, part in zip(layout.names, layout.arrays, self._parts, strict=True):
                    header = make_header(array, self._count)
                    is_long = len(header) + part.tell() >= _LONG
                    part.seek(0)
                    with archive.open(f"{name}.npy", "w", force_zip64=is_long) as member:
                        member.write(header)
                        shutil.copyfileobj(part, member, _COPY_BYTES)
                for name, content in layout.others.items():
                    with archive.open(f"{name}.npy", "w") as member:
                        member.write(content)
        finally:
            self.abort()

    def abort(self) -> None:
        for file in (*self._parts, self._file):
            with suppress(OSError):
                file.close()
