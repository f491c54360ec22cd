"""Files of fixed records as a source: any range of rows can be read at once.

Headers of NumPy: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import operator
import re
from ast import literal_eval
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays import DTYPE, HEADER_BYTES, MAGIC, RECORD_BYTES, RECORD_SHAPE
from recshuf.formats.arrays.decoder import FixedDecoder
from recshuf.formats.arrays.sink import FixedLayout, describe_type, find_layout, read_descr
from recshuf.interfaces import InputSummary, RowFragment, Source, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.arrays.sink import ArchiveLayout
    from recshuf.interfaces import BatchLimits, Decoder, Fragment, Handle, InputFile, ReadOptions, ValueReader


_HEAD_BYTES = 64 << 10
_MOST_HEADER_BYTES = 16 << 20
DAMAGED = "fetch or write the file again"


class _File(NamedTuple):
    file: InputFile
    start: int
    """Where the records begin."""
    rows: int
    layout: FixedLayout
    by_columns: bool = False
    """Whether items lie column by column, in Fortran's order; `shape` is that of a record."""


class ArraySource(Source):
    """Inputs whose records all have so many bytes, in files or in archives."""

    layout: FixedLayout | ArchiveLayout

    def __init__(self, inputs: Sequence[tuple[InputFile, int]], layout: Any, options: ReadOptions) -> None:
        self.layout, self.schema, self._options = layout, layout.schema, options
        self.inputs = tuple(
            InputSummary(
                file.name, file.stamp.size if file.stamp else None, rows, True, rows * layout.row_bytes
            )
            for file, rows in inputs
        )

    def _cut(self, input_index: int, limits: BatchLimits) -> Iterator[tuple[int, int]]:
        """Yield first row and number of rows of each fragment of an input."""
        name, count, size = (
            self.inputs[input_index].name,
            self.inputs[input_index].record_count or 0,
            self.layout.row_bytes,
        )
        if count and size > limits.record_bytes:
            problem = f"a record of {size:,} bytes is longer than the {limits.record_bytes:,} bytes allowed"
            raise InputError(name, problem, place="row 0", remedy=limits.remedy)
        rows = max(1, min(limits.block_bytes, limits.record_bytes) // size)
        for first in range(0, count, rows):
            yield first, min(rows, count - first)

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        from recshuf.formats.arrays.values import ArrayValueReader

        return ArrayValueReader(self.layout, [one.name for one in self.inputs], paths)


class FixedSource(ArraySource):
    """All inputs of a run. The native form is one column of the bytes of a record.

    Of the options, those of the format and `max_record_bytes` apply.
    """

    layout: FixedLayout

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions, *, is_npy: bool) -> None:
        open_file = _open_npy if is_npy else _open_binary
        self._files = [open_file(file, options) for file in inputs]
        first = self._files[0]
        for file in self._files:
            _check_same(first, file)
        super().__init__([(file.file, file.rows) for file in self._files], first.layout, options)
        self.notes = _find_notes(first)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        file, limits = self._files[input_index], self._options.limit(block_bytes, max_record_bytes)
        for first, count in self._cut(input_index, limits):
            yield RowFragment(file.file.name, first, count, partial(_read_rows, file, first, count), limits)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        copies = 2 if any(file.by_columns for file in self._files) else 1
        return copies * max(block_bytes, self.layout.row_bytes)

    def decoder(self) -> Decoder:
        return FixedDecoder(self.layout)


def _read_rows(file: _File, first: int, count: int) -> pa.RecordBatch:
    size, layout = file.layout.row_bytes, file.layout
    handle = open_input(file.file)
    try:
        if file.by_columns:
            content = _read_columns(handle, file, first, count)
        else:
            content = np.empty(count * size, np.uint8)
            _fill(handle, file, file.start + first * size, content, first)
    finally:
        handle.close()
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), count, [None, pa.py_buffer(content)])
    return pa.RecordBatch.from_arrays([column], schema=layout.schema)


def _read_columns(handle: Handle, file: _File, first: int, count: int) -> NDArray[np.uint8]:
    """Return rows of an array in Fortran's order: items of all rows lie side by side, the first axis of a record next."""
    layout = file.layout
    items = prod(layout.shape)
    width = layout.row_bytes // items
    columns = np.empty((items, count * width), np.uint8)
    for column in range(items):
        place = (column * file.rows + first) * width
        _fill(handle, file, file.start + place, columns[column], first)
    by_row = columns.reshape(*reversed(layout.shape), count, width)
    axes = [len(layout.shape), *reversed(range(len(layout.shape))), len(layout.shape) + 1]
    return np.ascontiguousarray(by_row.transpose(axes)).reshape(-1)


def _fill(handle: Handle, file: _File, offset: int, into: NDArray[np.uint8], row: int) -> None:
    view = memoryview(into)  # type: ignore[arg-type] # a buffer, which NumPy does not declare
    while view:
        got = handle.readinto_at(offset, view)
        if not got:
            problem = "ends before its last record"
            raise InputError(file.file.name, problem, place=f"row {row}", remedy=DAMAGED)
        offset, view = offset + got, view[got:]


def _open_npy(file: InputFile, options: ReadOptions) -> _File:  # noqa: ARG001 - none applies
    """Return a file of NumPy, once its header is read."""
    handle = open_input(file)
    try:
        size, head = handle.stamp.size, handle.read_at(0, _HEAD_BYTES)
        if not head.startswith(MAGIC):
            problem = "has no header of NumPy" if head else "is empty (0 bytes), not an array of NumPy"
            remedy = (
                "a dump of numbers alone is read with --format binary and --record-bytes BYTES"
                if head
                else None
            )
            raise InputError(file.name, problem, remedy=remedy)
        length = int.from_bytes(head[8:10] if head[6:7] == b"\1" else head[8:12], "little")
        if length > len(head) - 12:
            head = handle.read_at(0, min(length + 12, _MOST_HEADER_BYTES))
    finally:
        handle.close()
    dtype, shape, by_columns, start = parse_header(file.name, None, head)
    if not shape:
        raise InputError(
            file.name, "holds a single value, and no records along an axis", remedy="leave it out"
        )
    rows, axes = shape[0], shape[1:]
    items = prod(axes)
    row_bytes = dtype.itemsize * items
    if not row_bytes:
        raise InputError(file.name, f"its records of shape {axes} have no bytes", remedy="leave it out")
    if size - start != rows * row_bytes:
        problem = (
            f"holds {size - start:,} bytes behind its header, and {rows:,} records take {rows * row_bytes:,}"
        )
        raise InputError(file.name, problem, remedy=DAMAGED)
    layout = FixedLayout(True, row_bytes, describe_type(dtype), tuple(axes), b"")
    return _File(file, start, rows, layout, by_columns=by_columns and items > 1)


def _open_binary(file: InputFile, options: ReadOptions) -> _File:
    named, size, header_bytes = join_type(options), RECORD_BYTES.of(options), HEADER_BYTES.of(options)
    dtype, shape = parse_dtype(named)
    if options.schema is not None and dtype is None and size is None:  # written from a table
        layout = find_layout(options.schema, is_npy=False)
        size, dtype, shape = layout.row_bytes, layout.dtype, layout.shape
    size = size or (0 if dtype is None else dtype.itemsize * prod(shape))
    if not size:
        raise UsageError(
            f"{file.name}: nothing tells the bytes of a record; give --record-bytes BYTES, or their type with "
            "--dtype uint16[2048]"
        )
    if dtype is not None and dtype.itemsize * prod(shape) != size:
        raise UsageError(
            f"--dtype {named}: a record takes {dtype.itemsize * prod(shape):,} bytes, and --record-bytes says {size:,}"
        )
    _refuse_pair(file)
    handle = open_input(file)
    try:
        whole, header = handle.stamp.size, handle.read_at(0, header_bytes)
    finally:
        handle.close()
    rows, rest = divmod(whole - len(header), size)
    if len(header) < header_bytes or rest:
        behind = f" behind a header of {header_bytes:,}" if header_bytes else ""
        problem = f"{whole - len(header):,} bytes{behind} are no whole number of records of {size:,}"
        raise InputError(file.name, problem, remedy="check --record-bytes and --header-bytes")
    descr = "" if dtype is None else repr(dtype.str)
    return _File(file, len(header), rows, FixedLayout(False, size, descr, shape, header))


def _refuse_pair(file: InputFile) -> None:
    """Refuse a file of which others beside it tell where records begin: a record is no number of bytes."""
    if file.companions:
        problem = f"holds records of several lengths, which {file.companions[0].name} tells apart"
        remedy = "leave out --format; without that file, records of so many bytes are shuffled"
        raise InputError(file.name, problem, remedy=remedy)


def join_type(options: ReadOptions) -> str | None:
    """Return the type of a record with its axes, as options say it."""
    dtype: str | None = DTYPE.of(options)
    shape: str | None = RECORD_SHAPE.of(options)
    if shape is None:
        return dtype
    if dtype is None or "[" in dtype:
        raise UsageError(f"--record-shape {shape}: give the type of the numbers alone, as --dtype uint16")
    return f"{dtype}[{shape}]"


def parse_dtype(text: str | None) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return the type of an item and the axes of a record.

    >>> parse_dtype("uint16[2048]"), parse_dtype(">f4[3,224]")
    ((dtype('uint16'), (2048,)), (dtype('>f4'), (3, 224)))
    """
    if text is None:
        return None, ()
    name, _, axes = text.partition("[")
    try:
        dtype = np.dtype(name)
        shape = tuple(int(axis) for axis in axes.removesuffix("]").split(",")) if axes else ()
    except (TypeError, ValueError):
        dtype, shape = np.dtype("O"), ()
    if dtype.kind not in "iufb" or any(axis < 1 for axis in shape) or (axes and not axes.endswith("]")):
        raise UsageError(
            f"--dtype {text}: is no type of numbers; give one such as uint16, float32[3,224,224] or >i4[8]"
        )
    return dtype, shape


def _check_same(first: _File, file: _File) -> None:
    ours, theirs = first.layout, file.layout
    if ours.is_npy and (ours.descr, ours.shape) != (theirs.descr, theirs.shape):
        raise InputError(
            file.file.name,
            f"holds records of {_describe(theirs)}, and {first.file.name} of {_describe(ours)}",
            remedy="shuffle them apart, or convert one of them",
        )
    if ours.header != theirs.header and _count_places(first) == _count_places(file) == []:
        problem = f"its header differs from that of {first.file.name}, and shards have one"
        raise InputError(file.file.name, problem, remedy="shuffle the files apart")


def _describe(layout: FixedLayout) -> str:
    axes = "".join(f"[{axis}]" for axis in layout.shape)
    return f"{read_descr(layout.descr)}{axes}"


def _count_places(file: _File) -> list[int]:
    """Return where the header holds a whole number of 4 or 8 bytes that counts records, items or bytes of the file."""
    header, size = file.layout.header, file.rows * file.layout.row_bytes
    counts = {count for count in (file.rows, *(size // width for width in (1, 2, 4, 8))) if count > 255}
    return [
        place
        for place in range(0, len(header) - 3, 4)
        if int.from_bytes(header[place : place + 4], "little") in counts
    ]


def _find_notes(file: _File) -> tuple[str, ...]:
    places = _count_places(file)
    if not places:
        return ()
    place = f"{file.file.name}: its header seems to count the records (byte {places[0]})"
    return (f"{place}; every shard gets the header as it is, so correct the count there",)


class Header(NamedTuple):
    """What a header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    """Whether items lie column by column, in Fortran's order."""
    start: int
    """Where the values begin."""


def parse_header(name: str, place: str | None, head: bytes) -> Header:
    """Return what the header at the beginning of an array says."""
    try:
        major = head[6]
        start = 10 if major == 1 else 12
        end = start + int.from_bytes(head[8:start], "little")
        text = head[start:end].decode("utf-8" if major == 3 else "latin-1")
        # Python 2 wrote its long numbers so.
        fields = literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())
        shape, dtype = (
            tuple(map(operator.index, fields["shape"])),
            np.lib.format.descr_to_dtype(fields["descr"]),
        )
        if major > 3 or end > len(head) or min(shape, default=0) < 0:
            raise ValueError(f"version {major}, shape {shape}, {end} bytes")
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            name, f"has a header that is damaged: {reason}", place=place, remedy=DAMAGED
        ) from error
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle reads and could run any code"
        remedy = "write its values with a type of NumPy, or as Parquet"
        raise InputError(name, problem, place=place, remedy=remedy)
    return Header(dtype, shape, bool(fields.get("fortran_order")), end)
