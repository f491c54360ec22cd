"""Files of NumPy, archives of them, and binary records as sources.

Any range of rows of a file can be read at once. The arrays of an archive are read side by side, from their beginnings on: those
that are compressed cannot be read in another way, and ZIP has a checksum of each array, which counts at its end. An array in
Fortran's order is read whole there.
"""

from __future__ import annotations

import io
import zipfile
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from fnmatch import filter as match
from functools import partial
from math import prod
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays import HEADER_BYTES, MAGIC
from recshuf.formats.arrays.layout import (
    END,
    ArchiveLayout,
    Array,
    ArrayDecoder,
    FixedLayout,
    find_binary_layout,
    read_header,
)
from recshuf.formats.files import (
    BUFFER_BYTES,
    DATASETS,
    KEEP_OTHERS,
    MOST_LISTED,
    POINTER_BYTES,
    check_memory,
    explained,
    fill,
    refuse_pointer,
    shorten,
    write_flag,
)
from recshuf.interfaces import InputSummary, RowFragment, Source, open_input, open_raw
from recshuf.records.arrays import list_known, split_path, wrap_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from recshuf.formats.arrays.layout import Layout
    from recshuf.interfaces import BatchLimits, Fragment, InputFile, ReadOptions, ValueReader


_HEAD_BYTES = 64 << 10
_SHARE = 4
"""Share of the memory limit that arrays which are read whole may take."""
_ENCRYPTED = 1


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

    def decoder(self) -> ArrayDecoder:
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

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._files, self._arrays = inputs, [self._look_into(file, options) for file in inputs]
        first, name = self._arrays[0].layout, inputs[0].name
        counting = [find_count(array) for array in self._arrays]
        for file, array, counts in zip(inputs, self._arrays, counting, strict=True):
            first.check_same(array.layout, file.name, name)
            if first.header != array.layout.header and counts is counting[0] is None:
                problem = f"its header differs from that of {name}, and shards have one"
                raise InputError(file.name, problem, remedy="shuffle the files apart")
            # A number that is small may count, too, and is not known to.
            if counts is not None and not self.notes:
                problem = f"{file.name}: its header seems to count the records (byte {counts})"
                self.notes = (f"{problem}; every shard gets the header as it is, so correct the count there",)
        super().__init__(
            [(file, array.rows) for file, array in zip(inputs, self._arrays, strict=True)], first, options
        )

    def _look_into(self, file: InputFile, options: ReadOptions) -> Array:
        raise NotImplementedError

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


class NpySource(FixedSource):
    """Files of NumPy."""

    def _look_into(self, file: InputFile, options: ReadOptions) -> Array:  # noqa: ARG002 - the header says all
        with io.BufferedReader(open_raw(file), _HEAD_BYTES) as stream:
            head = stream.peek(POINTER_BYTES)
            refuse_pointer(file.name, head, "an array of NumPy")
            if not head.startswith(MAGIC):
                remedy = "a dump of numbers alone is read with --format binary and --dtype TYPE or --record-bytes BYTES"
                raise InputError(file.name, "has no header of NumPy", remedy=remedy)
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            array = read_header(file.name, None, stream, size)
        if array.rows < 0:
            problem = "holds a single value, and no records along an axis"
            raise InputError(file.name, problem, remedy="leave it out")
        return array


class BinarySource(FixedSource):
    """Binary records, of which options tell the bytes."""

    def _look_into(self, file: InputFile, options: ReadOptions) -> Array:
        if file.companions:  # others beside it tell where records begin
            problem = f"holds records of several lengths, which {file.companions[0].name} tells apart"
            remedy = "leave out --format; without that file, records of so many bytes are shuffled"
            raise InputError(file.name, problem, remedy=remedy)
        layout, header_bytes = find_binary_layout(file.name, options), HEADER_BYTES.of(options)
        with closing(open_input(file)) as handle:
            refuse_pointer(file.name, handle.read_at(0, POINTER_BYTES))
            whole, header = handle.stamp.size, handle.read_at(0, header_bytes)
        rows, rest = divmod(whole - len(header), layout.row_bytes)
        if len(header) < header_bytes or rest:
            behind = f" behind a header of {header_bytes:,}" if header_bytes else ""
            problem = f"{whole - len(header):,} bytes{behind} are no whole number of records of {layout.row_bytes:,}"
            raise InputError(file.name, problem, remedy="check --record-bytes and --header-bytes")
        return Array(replace(layout, header=header), rows, len(header))


def find_count(array: Array) -> int | None:
    """Return where the header holds a whole number of 4 or 8 bytes that counts records, items or bytes of the file."""
    header, size = array.layout.header, array.byte_count
    counts = {count for count in (array.rows, *(size // width for width in (1, 2, 4, 8))) if count > 255}
    places = range(0, len(header) - 3, 4)
    return next((at for at in places if int.from_bytes(header[at : at + 4], "little") in counts), None)


class _File(NamedTuple):
    file: InputFile
    arrays: dict[str, Array]
    """Those of the record, by name."""
    is_packed: bool
    others: dict[str, bytes]
    """Those that every shard repeats, each as a file of NumPy."""
    whole_bytes: int
    """Bytes of the arrays that are read whole."""

    @property
    def rows(self) -> int:
        return next(iter(self.arrays.values())).rows


class ArchiveSource(ArraySource):
    """All inputs of a run. The native form is a column for each array, of the bytes of its rows.

    Of the options `DATASETS`, `KEEP_OTHERS`, `memory_bytes` and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        first = _look_into(inputs[0], options)
        chosen = options.found({DATASETS: tuple(first.arrays)})
        self._files = [first, *(_look_into(file, chosen, [*first.arrays]) for file in inputs[1:])]
        for file in self._files:
            _check_same(first, file)
        if KEEP_OTHERS.of(options):
            self.options = chosen
        self.compression = "gzip" if first.is_packed else "none"
        layouts = tuple(array.layout for array in first.arrays.values())
        layout = ArchiveLayout(tuple(first.arrays), layouts, self.compression, first.others)
        super().__init__([(file.file, file.rows) for file in self._files], layout, options)
        self.repeated = {name: xxhash.xxh3_128_hexdigest(content) for name, content in first.others.items()}
        if counting := ", ".join(_find_counting(first)):
            self.notes = (
                f"{counting}: copied as they are; if they count records, they count those before the shuffle",
            )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        (file, arrays, *_), limit = self._files[input_index], self._options.limit
        limits = limit(block_bytes, max_record_bytes)
        with ExitStack() as cleanup:
            archive = cleanup.enter_context(_opened(file))
            streams = [_open_array(file, name, arrays[name], archive, cleanup) for name in arrays]
            for first, count in self._cut(input_index, limits):
                columns = []
                for name, stream, kind in zip(arrays, streams, self.schema.types, strict=True):
                    with _explained(file, name):
                        content = np.frombuffer(stream.read(count * kind.byte_width), np.uint8)
                        columns.append(wrap_values(content.reshape(count, kind.byte_width), kind))
                batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                yield RowFragment(file.name, first, count, batch.slice, limits)

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a block, as stored and decompressed, and of the arrays that are read whole."""
        block = max(block_bytes, self.layout.row_bytes)
        return 2 * block + 2 * max(file.whole_bytes for file in self._files)


def _explained(file: InputFile, name: str | None = None) -> AbstractContextManager[None]:
    return explained(file.name, "cannot be read as an archive of NumPy", name and f"array {name!r}")


@contextmanager
def _opened(file: InputFile) -> Iterator[zipfile.ZipFile]:
    with _explained(file), io.BufferedReader(open_raw(file), BUFFER_BYTES) as raw:
        refuse_pointer(file.name, raw.peek(POINTER_BYTES))
        with zipfile.ZipFile(raw) as archive:
            yield archive


def _open_array(
    file: InputFile, name: str, array: Array, archive: zipfile.ZipFile, cleanup: ExitStack
) -> IO[bytes]:
    """Return the rows of an array in C's order; the last ones bring the checksum."""
    with _explained(file, name):
        stream = cleanup.enter_context(archive.open(name + END))
        stream.read(array.start)
        if not array.by_columns:
            return stream
        items = np.frombuffer(stream.read(), np.uint8)
        return io.BytesIO(array.order(items, array.rows).tobytes())


def _look_into(file: InputFile, options: ReadOptions, wanted: Sequence[str] = ()) -> _File:
    """Return the arrays of an input, which has those that are wanted."""
    arrays: dict[str, Array] = {}
    with _opened(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(END)
            if name in arrays:  # NumPy would read the last one
                raise InputError(file.name, f"holds two arrays {name!r}", remedy="write it again with one")
            arrays[name] = _read_header(file, name, archive, info)
        if missing := [name for name in wanted if name not in arrays]:
            problem = f"has no array {missing[0]!r}, and the first input has one"
            raise InputError(file.name, problem, remedy="shuffle it apart")
        chosen = _choose(file.name, arrays, options)
        others = [name for name in arrays if name not in chosen] if KEEP_OTHERS.of(options) else []
        whole = [*others, *(name for name in chosen if arrays[name].by_columns)]
        whole_bytes = sum(arrays[name].byte_count for name in whole)
        what = "whole copies and whole arrays in Fortran's order, which may have a quarter of it,"
        remedy = "raise --memory, or save what numpy.ascontiguousarray gives"
        check_memory(file.name, what, _SHARE * whole_bytes, options.memory_bytes, remedy)
        content = {}
        for name in others:
            with _explained(file, name):
                content[name] = archive.read(name + END)
        is_packed = any(archive.getinfo(name + END).compress_type for name in chosen)
    return _File(file, chosen, is_packed, content, whole_bytes)


def _read_header(file: InputFile, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    place = f"array {name!r}"
    if info.flag_bits & _ENCRYPTED:
        raise InputError(file.name, "is encrypted", place=place, remedy="decrypt it")
    if info.filename == name:
        remedy = "leave it out of the archive"
        raise InputError(file.name, "is no array of NumPy by its name", place=place, remedy=remedy)
    with _explained(file, name), archive.open(info) as stream:
        return read_header(file.name, place, stream, info.file_size)


def _choose(file_name: str, arrays: Mapping[str, Array], options: ReadOptions) -> dict[str, Array]:
    """Return the arrays of the record: those that are asked for, or all, of one length."""
    names, datasets = [*arrays], DATASETS.of(options)
    if datasets is not None:
        found = {wanted: [wanted] if wanted in arrays else match(arrays, wanted) for wanted in datasets}
        if unknown := [wanted for wanted in found if not found[wanted]]:
            raise UsageError(
                f"no array {unknown[0]!r} in {file_name}; there are {list_known(unknown[0], arrays)}"
            )
        names = [*dict.fromkeys(name for some in found.values() for name in some)]
    by_length = defaultdict[int, list[str]](list)
    for name in names:
        by_length[arrays[name].rows].append(name)
    with_axis = [some for length, some in by_length.items() if length >= 0]
    if not with_axis:
        problem = "holds single values only, and no records along an axis" if arrays else "holds no arrays"
        raise InputError(file_name, problem, remedy="leave it out")
    commonest = max(with_axis, key=lambda some: (len(some), sum(arrays[name].byte_count for name in some)))
    is_free = KEEP_OTHERS.of(options) and datasets is None
    if len(by_length) > 1 and not is_free:
        rows = {name: arrays[name].rows for name in names}
        lengths = [f"{name} {'a single value' if n < 0 else f'{n:,}'}" for name, n in rows.items()]
        problem = f"holds arrays of several lengths: {shorten(lengths, most=MOST_LISTED)}"
        flag = write_flag(commonest)
        chosen = f"choose those of the record{f', as {flag}' if flag else ' with --datasets'}"
        remedy = f"{chosen}; --keep-others copies the rest to every shard"
        raise InputError(file_name, problem, remedy=remedy)
    return {name: arrays[name] for name in commonest}


def _check_same(first: _File, file: _File) -> None:
    for name, array in first.arrays.items():
        other = file.arrays[name].layout
        array.layout.check_same(other, file.file.name, first.file.name, f"array {name!r}")
    for name in sorted(first.others.keys() | file.others.keys()):
        if first.others.get(name) != file.others.get(name):
            problem = f"differs from that of {first.file.name}, and every shard repeats one"
            raise InputError(file.file.name, problem, place=f"array {name!r}", remedy="shuffle them apart")


def _find_counting(file: _File) -> Iterator[str]:
    """Yield the arrays that every shard repeats and that may hold numbers of records."""
    for name, content in file.others.items():
        values = np.load(io.BytesIO(content), allow_pickle=False)
        if values.dtype.kind in "iu" and values.size > 1 and values.min() >= 0 and values.max() < file.rows:
            yield repr(name)
