"""Archives of arrays: a record is index i of the first axis of every array.

The arrays of an archive are read side by side, from their beginnings on: those that are compressed cannot be read in
another way, and ZIP has a checksum of each array, which counts at its end. An array in Fortran's order is read whole.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from fnmatch import filter as match
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays.fixed import ArraySink, ArraySource
from recshuf.formats.arrays.layout import ArchiveLayout, Array, read_header
from recshuf.formats.files import (
    DAMAGED,
    DATASETS,
    KEEP_OTHERS,
    MOST_LISTED,
    FileTarget,
    explained,
    shorten,
    write_flag,
)
from recshuf.interfaces import RowFragment, open_raw
from recshuf.records.arrays import list_known, wrap_values
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from recshuf.interfaces import Fragment, InputFile, ReadOptions, WriteOptions


_BUFFER_BYTES = 1 << 20
_SHARE = 4
"""Share of the memory limit that arrays which are read whole may take."""
_END, _ENCRYPTED = ".npy", 1
_LONG = (1 << 31) - 1
"""ZIP needs longer sizes from here on, which not every reader of archives knows."""


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
    with (
        _explained(file),
        io.BufferedReader(open_raw(file), _BUFFER_BYTES) as raw,
        zipfile.ZipFile(raw) as archive,
    ):
        yield archive


def _open_array(
    file: InputFile, name: str, array: Array, archive: zipfile.ZipFile, cleanup: ExitStack
) -> IO[bytes]:
    """Return the rows of an array in C's order; the last ones bring the checksum."""
    with _explained(file, name):
        stream = cleanup.enter_context(archive.open(name + _END))
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
            name = info.filename.removesuffix(_END)
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
        room = (options.memory_bytes or 1 << 63) // _SHARE
        if whole_bytes > room:
            problem = f"its copies and arrays in Fortran's order are read whole, which takes {whole_bytes:,} bytes of the {room:,} allowed"
            remedy = "raise --memory, or save what numpy.ascontiguousarray gives"
            raise InputError(file.name, problem, remedy=remedy)
        content = {}
        for name in others:
            with _explained(file, name):
                content[name] = archive.read(name + _END)
        is_packed = any(archive.getinfo(name + _END).compress_type for name in chosen)
    return _File(file, chosen, is_packed, content, whole_bytes)


def _read_header(file: InputFile, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    place = f"array {name!r}"
    if info.flag_bits & _ENCRYPTED:
        raise InputError(file.name, "is encrypted", place=place, remedy="decrypt it")
    if info.filename == name:
        remedy = "leave it out of the archive"
        raise InputError(file.name, "is no array of NumPy by its name", place=place, remedy=remedy)
    with _explained(file, name), archive.open(info) as stream:
        array = read_header(file.name, place, stream)
    if (byte_count := info.file_size - array.start) != array.byte_count:
        problem = f"holds {byte_count:,} bytes, and its values take {array.byte_count:,}"
        raise InputError(file.name, problem, place=place, remedy=DAMAGED)
    return array


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


def open_target(layout: ArchiveLayout, options: WriteOptions) -> FileTarget:
    """Return the target for shards of one layout, of native records or of tables."""
    is_packed = (options.compression or layout.compression) != "none"
    method = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
    open_sink = partial(ArchiveSink, layout=layout, method=method, level=options.compression_level)
    return FileTarget(".npz", open_sink, 2 * _BUFFER_BYTES + sum(map(len, layout.others.values())))


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
                with archive.open(f"{name}{_END}", "w", force_zip64=is_long) as member:
                    shutil.copyfileobj(part, member, _BUFFER_BYTES)
