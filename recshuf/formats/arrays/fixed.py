"""Files of fixed records: sources, any range of whose rows can be read at once, and shards."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays import DTYPE, HEADER_BYTES, MAGIC, RECORD_BYTES, RECORD_SHAPE
from recshuf.formats.arrays.layout import (
    DAMAGED,
    HEAD_BYTES,
    ArrayDecoder,
    ArrayValueReader,
    FixedLayout,
    count_header,
    find_layout,
    list_bytes,
    make_header,
    parse_header,
)
from recshuf.formats.files import FileSink, fill, write_all
from recshuf.interfaces import InputSummary, RowFragment, Source, open_input
from recshuf.records.arrays import wrap_values
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.formats.arrays.layout import Layout
    from recshuf.interfaces import BatchLimits, Decoder, Fragment, InputFile, ReadOptions, ValueReader


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

    layout: Layout

    def __init__(self, inputs: Sequence[tuple[InputFile, int]], layout: Layout, options: ReadOptions) -> None:
        self.layout, self.schema, self._options = layout, layout.schema, options
        self.inputs = tuple(
            InputSummary(
                file.name, file.stamp.size if file.stamp else None, rows, True, rows * layout.row_bytes
            )
            for file, rows in inputs
        )

    def _cut(self, input_index: int, limits: BatchLimits) -> Iterator[tuple[int, int]]:
        """Yield first row and number of rows of each fragment of an input."""
        summary, size = self.inputs[input_index], self.layout.row_bytes
        count = summary.record_count or 0
        if count and size > limits.record_bytes:
            problem = f"a record of {size:,} bytes is longer than the {limits.record_bytes:,} bytes allowed"
            raise InputError(summary.name, problem, place="row 0", remedy=limits.remedy)
        rows = max(1, min(limits.block_bytes, limits.record_bytes) // size)
        for first in range(0, count, rows):
            yield first, min(rows, count - first)

    def decoder(self) -> Decoder:
        return ArrayDecoder(self.layout)

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        return ArrayValueReader(self.layout, [one.name for one in self.inputs], paths)


class FixedSource(ArraySource):
    """All inputs of a run. The native form is one column of the bytes of a record.

    Of the options, those of the format and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions, *, is_npy: bool) -> None:
        self._files = [_open_npy(file) if is_npy else _open_binary(file, options) for file in inputs]
        first = self._files[0]
        for file in self._files:
            _check_same(first, file)
        super().__init__([(file.file, file.rows) for file in self._files], first.layout, options)
        if places := _count_places(first):
            problem = f"{first.file.name}: its header seems to count the records (byte {places[0]})"
            self.notes = (f"{problem}; every shard gets the header as it is, so correct the count there",)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        file, limits = self._files[input_index], self._options.limit(block_bytes, max_record_bytes)
        for first, count in self._cut(input_index, limits):
            yield RowFragment(file.file.name, first, count, partial(_read_rows, file, first, count), limits)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        copies = 2 if any(file.by_columns for file in self._files) else 1
        return copies * max(block_bytes, self.layout.row_bytes)


def _read_rows(file: _File, first: int, count: int) -> pa.RecordBatch:
    layout = file.layout
    items = prod(layout.shape) if file.by_columns else 1
    width = layout.row_bytes // items
    content = np.empty((items, count * width), np.uint8)
    with closing(open_input(file.file)) as handle:
        for item in range(items):
            place = file.start + (item * file.rows + first) * width
            if fill(handle, place, content[item]):
                problem = "ends before its last record"
                raise InputError(file.file.name, problem, place=f"row {first}", remedy=DAMAGED)
    if file.by_columns:
        content = _turn(content.reshape(*reversed(layout.shape), count, width))
    column = wrap_values(content.reshape(count, layout.row_bytes), pa.binary(layout.row_bytes))
    return pa.RecordBatch.from_arrays([column], schema=layout.schema)


def _turn(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return rows, of which the items lay side by side, in C's order, given all axes in Fortran's and the bytes of an item."""
    *axes, width = range(content.ndim)
    return np.ascontiguousarray(content.transpose(*reversed(axes), width))


def _open_npy(file: InputFile) -> _File:
    """Return a file of NumPy, once its header is read."""
    with closing(open_input(file)) as handle:
        size, head = handle.stamp.size, handle.read_at(0, HEAD_BYTES)
        if not head:
            raise InputError(file.name, "is empty (0 bytes), not an array of NumPy")
        if not head.startswith(MAGIC):
            remedy = "a dump of numbers alone is read with --format binary and --record-bytes BYTES"
            raise InputError(file.name, "has no header of NumPy", remedy=remedy)
        if count_header(head) > len(head):
            head = handle.read_at(0, count_header(head))
    header = parse_header(file.name, None, head)
    rows, layout = header.rows, header.layout
    if rows < 0:
        problem = "holds a single value, and no records along an axis"
        raise InputError(file.name, problem, remedy="leave it out")
    if not layout.row_bytes:
        problem = f"its records of shape {layout.shape} have no bytes"
        raise InputError(file.name, problem, remedy="leave it out")
    if size - header.start != header.byte_count:
        problem = f"holds {size - header.start:,} bytes behind its header, and {rows:,} records take {header.byte_count:,}"
        raise InputError(file.name, problem, remedy=DAMAGED)
    return _File(file, header.start, rows, layout, by_columns=header.by_columns and prod(layout.shape) > 1)


def _open_binary(file: InputFile, options: ReadOptions) -> _File:
    named, size, header_bytes = join_type(options), RECORD_BYTES.of(options), HEADER_BYTES.of(options)
    dtype, shape = parse_dtype(named)
    if options.schema is not None and dtype is None and size is None:  # written from a table
        layout = find_layout(options.schema, is_npy=False)
        size, dtype, shape = layout.row_bytes, layout.dtype if layout.descr else None, layout.shape
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
    if file.companions:  # others beside it tell where records begin
        problem = f"holds records of several lengths, which {file.companions[0].name} tells apart"
        remedy = "leave out --format; without that file, records of so many bytes are shuffled"
        raise InputError(file.name, problem, remedy=remedy)
    with closing(open_input(file)) as handle:
        whole, header = handle.stamp.size, handle.read_at(0, header_bytes)
    rows, rest = divmod(whole - len(header), size)
    if len(header) < header_bytes or rest:
        behind = f" behind a header of {header_bytes:,}" if header_bytes else ""
        problem = f"{whole - len(header):,} bytes{behind} are no whole number of records of {size:,}"
        raise InputError(file.name, problem, remedy="check --record-bytes and --header-bytes")
    descr = "" if dtype is None else repr(dtype.str)
    return _File(file, len(header), rows, FixedLayout(False, size, descr, shape, header))


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
    if first.layout.is_npy:
        first.layout.check_same(file.layout, file.file.name, first.file.name)
    elif first.layout.header != file.layout.header and not (_count_places(first) or _count_places(file)):
        problem = f"its header differs from that of {first.file.name}, and shards have one"
        raise InputError(file.file.name, problem, remedy="shuffle the files apart")


def _count_places(file: _File) -> list[int]:
    """Return where the header holds a whole number of 4 or 8 bytes that counts records, items or bytes of the file."""
    header, size = file.layout.header, file.rows * file.layout.row_bytes
    counts = {count for count in (file.rows, *(size // width for width in (1, 2, 4, 8))) if count > 255}
    return [
        place
        for place in range(0, len(header) - 3, 4)
        if int.from_bytes(header[place : place + 4], "little") in counts
    ]


class FixedSink(FileSink):
    """One file of fixed records being written."""

    def __init__(self, path: Path, layout: FixedLayout) -> None:
        self._layout = layout
        with ExitStack() as files:
            self._file = files.enter_context(BehindFile(path, "xb"))
            write_all(self._file, make_header(layout, 0))
            super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        write_all(self._file, list_bytes(batch, 0))
        self._count += batch.num_rows

    def _complete(self) -> None:
        if self._layout.is_npy:
            self._file.seek(0)
            write_all(self._file, make_header(self._layout, self._count))
