"""Files of fixed records: sources, any range of whose rows can be read at once, and shards."""

from __future__ import annotations

import io
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays import DTYPE, HEADER_BYTES, MAGIC, RECORD_BYTES, RECORD_SHAPE
from recshuf.formats.arrays.layout import (
    Array,
    ArrayDecoder,
    FixedLayout,
    find_layout,
    list_bytes,
    make_header,
    read_header,
)
from recshuf.formats.files import DAMAGED, FileSink, FileTarget, fill, write_all
from recshuf.interfaces import InputSummary, RowFragment, Source, open_input, open_raw
from recshuf.records.arrays import split_path, wrap_values
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    from recshuf.formats.arrays.layout import Layout
    from recshuf.interfaces import BatchLimits, Decoder, Fragment, InputFile, ReadOptions, ValueReader


_HEAD_BYTES = 64 << 10


class ArraySource(Source):
    """Inputs whose records all have so many bytes, in files or in archives."""

    layout: Layout

    def __init__(self, inputs: Sequence[tuple[InputFile, int]], layout: Layout, options: ReadOptions) -> None:
        if not layout.row_bytes:
            raise InputError(inputs[0][0].name, "its records have no bytes", remedy="leave it out")
        self.layout, self.schema, self._options = layout, layout.schema, options
        self.inputs = tuple(
            InputSummary(file.name, file.stamp and file.stamp.size, rows, True, rows * layout.row_bytes)
            for file, rows in inputs
        )

    def _cut(self, input_index: int, limits: BatchLimits) -> Iterator[tuple[int, int]]:
        """Yield first row and number of rows of each fragment of an input."""
        summary, size = self.inputs[input_index], self.layout.row_bytes
        count = summary.record_count or 0
        if count:
            limits.check(size, summary.name, "row 0")
        rows = max(1, min(limits.block_bytes, limits.record_bytes) // size)
        for first in range(0, count, rows):
            yield first, min(rows, count - first)

    def decoder(self) -> Decoder:
        return ArrayDecoder(self.layout)

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        from recshuf.formats.texts import TableValueReader  # imports what runs without fields do not need

        layout, places = self.layout, None
        if not isinstance(layout, FixedLayout):  # others may have no table form
            places = sorted({layout.names.index(split_path(path, layout.names)[0]) for path in paths})
            names, arrays = zip(
                *((layout.names[place], layout.arrays[place]) for place in places), strict=True
            )
            layout = replace(layout, names=names, arrays=arrays)
        decoder = ArrayDecoder(layout, keeps_bytes=True)
        return TableValueReader(decoder, [one.name for one in self.inputs], paths, places)


class FixedSource(ArraySource):
    """All inputs of a run. The native form is one column of the bytes of a record.

    Of the options, those of the format and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions, *, is_npy: bool) -> None:
        self._arrays = [_open_npy(file) if is_npy else _open_binary(file, options) for file in inputs]
        first, name = self._arrays[0], inputs[0].name
        counting = [_find_count(array) for array in self._arrays]
        for file, array, counts in zip(inputs, self._arrays, counting, strict=True):
            if is_npy:
                first.layout.check_same(array.layout, file.name, name)
            elif first.layout.header != array.layout.header and counts is counting[0] is None:
                problem = f"its header differs from that of {name}, and shards have one"
                raise InputError(file.name, problem, remedy="shuffle the files apart")
        self._files, rows = inputs, [array.rows for array in self._arrays]
        super().__init__([*zip(inputs, rows, strict=True)], first.layout, options)
        counted = [
            (file.name, place) for file, place in zip(inputs, counting, strict=True) if place is not None
        ]
        if counted:  # a number that is small may count, too, and is not known to
            problem = f"{counted[0][0]}: its header seems to count the records (byte {counted[0][1]})"
            self.notes = (f"{problem}; every shard gets the header as it is, so correct the count there",)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        file, array = self._files[input_index], self._arrays[input_index]
        limits = self._options.limit(block_bytes, max_record_bytes)
        for first, count in self._cut(input_index, limits):
            yield RowFragment(file.name, first, count, partial(_read_rows, file, array, first, count), limits)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        copies = 2 if any(array.by_columns for array in self._arrays) else 1
        return copies * max(block_bytes, self.layout.row_bytes)


def _read_rows(file: InputFile, array: Array, first: int, count: int) -> pa.RecordBatch:
    size = array.layout.row_bytes
    items = prod(array.layout.shape) if array.by_columns else 1
    content = np.empty((items, count * size // items), np.uint8)
    with closing(open_input(file)) as handle:
        for item, part in enumerate(content):
            place = array.start + (item * array.rows + first) * (size // items)
            fill(handle, place, part, file.name)
    rows = array.order(content, count) if array.by_columns else content.reshape(count, size)
    return pa.RecordBatch.from_arrays([wrap_values(rows, pa.binary(size))], schema=array.layout.schema)


def _open_npy(file: InputFile) -> Array:
    """Return the array of a file of NumPy, once its header is read."""
    with io.BufferedReader(open_raw(file), _HEAD_BYTES) as stream:
        head = stream.peek(len(MAGIC))
        if not head.startswith(MAGIC):
            problem = "has no header of NumPy" if head else "is empty (0 bytes), not an array of NumPy"
            remedy = "a dump of numbers alone is read with --format binary and --dtype TYPE or --record-bytes BYTES"
            raise InputError(file.name, problem, remedy=remedy)
        array = read_header(file.name, None, stream)
        byte_count = stream.seek(0, io.SEEK_END) - array.start
    if array.rows < 0:
        problem = "holds a single value, and no records along an axis"
        raise InputError(file.name, problem, remedy="leave it out")
    if byte_count != array.byte_count:
        problem = f"holds {max(0, byte_count):,} bytes behind its header, and {array.rows:,} records take {array.byte_count:,}"
        raise InputError(file.name, problem, remedy=DAMAGED)
    return array


def _open_binary(file: InputFile, options: ReadOptions) -> Array:
    if file.companions:  # others beside it tell where records begin
        problem = f"holds records of several lengths, which {file.companions[0].name} tells apart"
        remedy = "leave out --format; without that file, records of so many bytes are shuffled"
        raise InputError(file.name, problem, remedy=remedy)
    layout, header_bytes = _find_binary_layout(file.name, options), HEADER_BYTES.of(options)
    with closing(open_input(file)) as handle:
        whole, header = handle.stamp.size, handle.read_at(0, header_bytes)
    rows, rest = divmod(whole - len(header), layout.row_bytes)
    if len(header) < header_bytes or rest:
        behind = f" behind a header of {header_bytes:,}" if header_bytes else ""
        problem = (
            f"{whole - len(header):,} bytes{behind} are no whole number of records of {layout.row_bytes:,}"
        )
        raise InputError(file.name, problem, remedy="check --record-bytes and --header-bytes")
    return Array(replace(layout, header=header), rows, len(header))


def _find_binary_layout(name: str, options: ReadOptions) -> FixedLayout:
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


def _find_count(array: Array) -> int | None:
    """Return where the header holds a whole number of 4 or 8 bytes that counts records, items or bytes of the file."""
    header, size = array.layout.header, array.byte_count
    counts = {count for count in (array.rows, *(size // width for width in (1, 2, 4, 8))) if count > 255}
    places = range(0, len(header) - 3, 4)
    return next((at for at in places if int.from_bytes(header[at : at + 4], "little") in counts), None)


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


def open_target(suffix: str, layout: FixedLayout) -> FileTarget:
    """Return the target for shards of one layout, of native records or of tables."""

    def open_sink(path: Path) -> ArraySink:
        with ExitStack() as files:
            return ArraySink(files, [files.enter_context(BehindFile(path, "xb"))], layout)

    return FileTarget(suffix, open_sink, 1 << 20)
