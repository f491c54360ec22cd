"""Archives of arrays: a record is index i of the first axis of every array.

The arrays of an archive are read side by side, from their beginnings on: those that are compressed cannot be read in
another way, and ZIP has a checksum of each array, which counts at its end. An array in Fortran's order is read whole.
"""

from __future__ import annotations

import io
import lzma
import shutil
import tempfile
import zipfile
import zlib
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import InputError, UsageError
from recshuf.formats.arrays.fixed import ArraySource
from recshuf.formats.arrays.layout import (
    DAMAGED,
    ArchiveLayout,
    Header,
    count_header,
    list_bytes,
    make_header,
    parse_header,
)
from recshuf.formats.files import FileSink, FileTarget, write_all
from recshuf.formats.options import DATASETS, KEEP_OTHERS
from recshuf.interfaces import RowFragment
from recshuf.storage.reading.local import opener_of, read_head
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from recshuf.interfaces import Fragment, InputFile, ReadOptions, WriteOptions


_BUFFER_BYTES = 1 << 20
_MOST_OTHERS_BYTES = 64 << 20
_SHARE = 4
"""Share of the memory limit that arrays in Fortran's order may take."""
_END, _ENCRYPTED = ".npy", 1
_FAULTS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, KeyError, RuntimeError)  # fmt: skip
_LONG = (1 << 31) - 1
"""ZIP needs longer sizes from here on, which not every reader of archives knows."""


class _Array(NamedTuple):
    info: zipfile.ZipInfo
    header: Header


class _File(NamedTuple):
    file: InputFile
    arrays: dict[str, _Array]
    """Those of the record, by name."""
    others: dict[str, bytes]
    """Those that every shard repeats, each as a file of NumPy."""

    @property
    def rows(self) -> int:
        return next(iter(self.arrays.values())).header.rows

    @property
    def whole_bytes(self) -> int:
        return sum(header.byte_count for _, header in self.arrays.values() if header.by_columns)


class ArchiveSource(ArraySource):
    """All inputs of a run. The native form is a column for each array, of the bytes of its rows.

    Of the options `DATASETS`, `KEEP_OTHERS`, `memory_bytes` and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        first = _look_into(inputs[0], options, None)
        names = tuple(first.arrays)
        self._files = [first, *(_look_into(file, options, names) for file in inputs[1:])]
        for file in self._files:
            _check_same(first, file)
            _check_memory(file, options)
        if KEEP_OTHERS.of(options):
            self.options = options.found({DATASETS: names})
        is_packed = any(array.info.compress_type != zipfile.ZIP_STORED for array in first.arrays.values())
        self.compression = "gzip" if is_packed else "none"
        layouts = tuple(array.header.layout for array in first.arrays.values())
        layout = ArchiveLayout(names, layouts, self.compression, first.others)
        if not layout.row_bytes:
            raise InputError(first.file.name, "its records have no bytes", remedy="leave it out")
        super().__init__([(file.file, file.rows) for file in self._files], layout, options)
        self.repeated = {name: xxhash.xxh3_128_hexdigest(content) for name, content in first.others.items()}
        if counting := ", ".join(_find_counting(first)):
            self.notes = (
                f"{counting}: copied as they are; if they count records, they count those before the shuffle",
            )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        file, limits = self._files[input_index], self._options.limit(block_bytes, max_record_bytes)
        with ExitStack() as cleanup:
            archive = cleanup.enter_context(_opened(file.file))
            readers = [
                _ArrayReader(file.file.name, name, file.arrays[name], archive, cleanup)
                for name in self.layout.names
            ]
            for first, count in self._cut(input_index, limits):
                columns = [reader.read(first, count) for reader in readers]
                batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                yield RowFragment(file.file.name, first, count, batch.slice, limits)

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a block, as stored and decompressed, and of the arrays that are read whole."""
        block = max(block_bytes, self.layout.row_bytes)
        return 2 * block + 2 * max(file.whole_bytes for file in self._files)


class _ArrayReader:
    def __init__(
        self, file_name: str, name: str, array: _Array, archive: zipfile.ZipFile, cleanup: ExitStack
    ) -> None:
        info, header = array
        self._file_name, self._place, self._size = file_name, f"array {name!r}", header.layout.row_bytes
        self._whole: np.ndarray[tuple[int, ...], np.dtype[np.void]] | None = None
        with _explained(file_name, self._place):
            self._stream: IO[bytes] = cleanup.enter_context(archive.open(info))
            self._stream.read(header.start)
            if header.by_columns:
                items = np.frombuffer(self._stream.read(), np.dtype((np.void, header.dtype.itemsize)))
                self._whole = items.reshape(header.shape, order="F")

    def read(self, first: int, count: int) -> pa.FixedSizeBinaryArray:
        """Return the next rows, `first` among them the first; the last ones bring the checksum."""
        with _explained(self._file_name, self._place):
            if self._whole is None:
                content: bytes = self._stream.read(count * self._size)
            else:
                content = self._whole[first : first + count].tobytes()
            if len(content) != count * self._size:
                raise EOFError("it ends before its last row")
        return pa.Array.from_buffers(pa.binary(self._size), count, [None, pa.py_buffer(content)])


@contextmanager
def _explained(name: str, place: str | None = None) -> Iterator[None]:
    """Turn what is said of a bad archive into an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except _FAULTS as error:
        problem = f"cannot be read as an archive of NumPy: {' '.join(str(error).split())[:200]}"
        raise InputError(name, problem, place=place, remedy=DAMAGED) from error


@contextmanager
def _opened(file: InputFile) -> Iterator[zipfile.ZipFile]:
    with ExitStack() as cleanup:
        with _explained(file.name):
            raw = cleanup.enter_context(io.BufferedReader(opener_of(file).open_raw(), _BUFFER_BYTES))
            archive = cleanup.enter_context(zipfile.ZipFile(raw))
        yield archive


def _look_into(file: InputFile, options: ReadOptions, names: Sequence[str] | None) -> _File:
    """Return the arrays of an input; `names` are those of the record, once the first input has told them."""
    if not read_head(file, 1):
        raise InputError(file.name, "is empty (0 bytes), not an archive of NumPy")
    with _opened(file) as archive:
        arrays: dict[str, _Array] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(_END)
            array = _read_header(file.name, name, archive, info)
            if name in arrays:
                raise InputError(file.name, f"holds two arrays {name!r}", remedy="write it again with one")
            arrays[name] = array
        if not arrays:
            raise InputError(file.name, "holds no arrays", remedy="leave it out")
        chosen = _choose(file.name, arrays, options) if names is None else _take(file.name, arrays, names)
        others = [name for name in arrays if name not in chosen] if KEEP_OTHERS.of(options) else []
        if sum(arrays[name].info.file_size for name in others) > _MOST_OTHERS_BYTES:
            problem = f"its arrays {', '.join(others)} are longer than the {_MOST_OTHERS_BYTES:,} bytes that shards repeat"
            remedy = "choose arrays with --datasets, without --keep-others"
            raise InputError(file.name, problem, remedy=remedy)
        content = {}
        for name in others:
            with _explained(file.name, f"array {name!r}"):
                content[name] = archive.read(arrays[name].info)
    return _File(file, chosen, content)


def _read_header(file_name: str, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Array:
    place = f"array {name!r}"
    if info.flag_bits & _ENCRYPTED:
        raise InputError(file_name, "is encrypted", place=place, remedy="decrypt it")
    if not info.filename.endswith(_END):
        remedy = "leave it out of the archive"
        raise InputError(file_name, "is no array of NumPy by its name", place=place, remedy=remedy)
    with _explained(file_name, place), archive.open(info) as stream:
        head = stream.read(12)
        head += stream.read(count_header(head) - 12)
    header = parse_header(file_name, place, head)
    if info.file_size - header.start != header.byte_count:
        problem = f"holds {info.file_size - header.start:,} bytes, and its values take {header.byte_count:,}"
        raise InputError(file_name, problem, place=place, remedy=DAMAGED)
    return _Array(info, header)


def _choose(file_name: str, arrays: Mapping[str, _Array], options: ReadOptions) -> dict[str, _Array]:
    """Return the arrays of the record: those that are asked for, or all, of one length."""
    names, datasets = [*arrays], DATASETS.of(options)
    if datasets is not None:
        found = [[name for name in arrays if fnmatchcase(name, wanted)] for wanted in datasets]
        unknown = next((wanted for wanted, some in zip(datasets, found, strict=True) if not some), None)
        if unknown is not None:
            raise UsageError(f"no array {unknown!r} in {file_name}; there are {', '.join(arrays)}")
        names = [*dict.fromkeys(name for some in found for name in some)]
    by_length: dict[int, list[str]] = {}
    for name in names:
        by_length.setdefault(arrays[name].header.rows, []).append(name)
    singles = by_length.pop(-1, [])
    if not by_length:
        problem = "holds single values only, and no records along an axis"
        raise InputError(file_name, problem, remedy="leave it out")

    def measure(names: Sequence[str]) -> tuple[int, int]:
        return len(names), sum(arrays[name].header.byte_count for name in names)

    commonest = max(by_length.values(), key=measure)
    is_free = KEEP_OTHERS.of(options) and datasets is None
    if (singles or len(by_length) > 1) and not is_free:
        rows = {name: arrays[name].header.rows for name in names}
        lengths = ", ".join(f"{name} {'a single value' if n < 0 else f'{n:,}'}" for name, n in rows.items())
        remedy = f"choose those of the record, as --datasets {','.join(commonest)}; --keep-others copies the rest to every shard"
        raise InputError(file_name, f"holds arrays of several lengths: {lengths}", remedy=remedy)
    return {name: arrays[name] for name in commonest}


def _take(file_name: str, arrays: Mapping[str, _Array], names: Sequence[str]) -> dict[str, _Array]:
    missing = next((name for name in names if name not in arrays), None)
    if missing is not None:
        problem = f"has no array {missing!r}, and the first input has one"
        raise InputError(file_name, problem, remedy="shuffle it apart")
    lengths = {arrays[name].header.rows for name in names}
    if len(lengths) > 1 or -1 in lengths:
        raise InputError(file_name, f"its arrays {', '.join(names)} have several lengths", remedy=DAMAGED)
    return {name: arrays[name] for name in names}


def _check_same(first: _File, file: _File) -> None:
    for name, array in first.arrays.items():
        other, place = file.arrays[name].header.layout, f"array {name!r}"
        array.header.layout.check_same(other, file.file.name, first.file.name, place)
    for name in sorted(first.others.keys() | file.others.keys()):
        if first.others.get(name) != file.others.get(name):
            problem = f"differs from that of {first.file.name}, and every shard repeats one"
            raise InputError(file.file.name, problem, place=f"array {name!r}", remedy="shuffle them apart")


def _check_memory(file: _File, options: ReadOptions) -> None:
    if options.memory_bytes is not None and file.whole_bytes > options.memory_bytes // _SHARE:
        problem = (
            f"its arrays in Fortran's order are read whole, which takes {file.whole_bytes:,} bytes of the "
            f"{options.memory_bytes // _SHARE:,} allowed"
        )
        remedy = "raise --memory, or save what numpy.ascontiguousarray gives"
        raise InputError(file.file.name, problem, remedy=remedy)


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


class ArchiveSink(FileSink):
    """One archive being written. As an array stands in it as a whole, each is written to a file without a name first."""

    def __init__(self, path: Path, layout: ArchiveLayout, method: int, level: int | None) -> None:
        self._layout, self._method, self._level = layout, method, level
        with ExitStack() as files:
            self._file = files.enter_context(BehindFile(path, "xb"))
            self._parts = [
                files.enter_context(tempfile.TemporaryFile("w+b", 0, dir=path.parent)) for _ in layout.arrays
            ]
            super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        for place, part in enumerate(self._parts):
            write_all(part, list_bytes(batch, place))
        self._count += batch.num_rows

    def _complete(self) -> None:
        layout = self._layout
        with zipfile.ZipFile(self._file, "w", self._method, compresslevel=self._level) as archive:
            for name, array, part in zip(layout.names, layout.arrays, self._parts, strict=True):
                header = make_header(array, self._count)
                is_long = len(header) + part.tell() >= _LONG
                part.seek(0)
                with archive.open(f"{name}{_END}", "w", force_zip64=is_long) as member:
                    member.write(header)
                    shutil.copyfileobj(part, member, _BUFFER_BYTES)
            for name, content in layout.others.items():
                with archive.open(f"{name}{_END}", "w") as member:
                    member.write(content)
