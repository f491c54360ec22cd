"""Tar archives as a source: one thread walks the headers of an input in order, and cuts blocks of whole records."""

from __future__ import annotations

import operator
import tarfile
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.compression import check_suffix, open_reader, recognise_compression
from recshuf.formats.compression.readers import HEAD_BYTES
from recshuf.formats.lines.cutting import OFFSET_BYTES, SCHEMA
from recshuf.formats.lines.files import FileSource, LineFile, fill
from recshuf.formats.pointers import refuse_pointer
from recshuf.formats.webdataset import RENAME_KEYS
from recshuf.formats.webdataset.cutting import (
    KEYS_BYTES,
    ArchiveError,
    KeySet,
    Member,
    RecordCutter,
    hash_key,
    list_records,
    lower,
    parse_name,
    rename,
    show,
    walk,
)
from recshuf.interfaces import Fragment, InputSummary, Source
from recshuf.storage.reading.local import open_input
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _typeshed import WriteableBuffer

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.webdataset.cutting import Block
    from recshuf.interfaces import Decoder, InputFile, ReadOptions


_SAMPLES_BYTES, _MIN_SAMPLE_BYTES, _MAX_SAMPLE_BYTES = 64 << 20, 1 << 16, 1 << 20
_READING_BYTES, _MIN_WINDOW_BYTES = 2 << 20, 8 << 20
_PLACEHOLDER = b"_"
"""Key of all records to which shards give keys."""
_FILES_OF_RECORDS = b"csv tsv jsonl ndjson parquet arrow h5 hdf5 tfrecord tar".split()


@dataclass(frozen=True, slots=True)
class TarLayout:
    """What shards keep of the inputs."""

    compression: str
    renames: bool
    """Whether shards give every record a key of its own."""
    names: tuple[str, ...] = ()
    """Names of the inputs, in which a key that occurs twice is looked for."""


@dataclass(frozen=True, slots=True)
class TarInput:
    """One input, once its beginning was read."""

    file: LineFile
    compression: str
    window_bytes: int
    summary: InputSummary
    notes: tuple[str, ...]

    def open(self) -> ByteReader:
        return open_reader(self.file.name, FileSource(self.file), self.compression)


class TarSource(Source):
    """All inputs of a run. A record is the bytes of its members, headers and padding included."""

    layout: TarLayout

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        sample_bytes = min(max(_SAMPLES_BYTES // len(files), _MIN_SAMPLE_BYTES), _MAX_SAMPLE_BYTES)
        self._inputs = [look_at(file, sample_bytes) for file in look_ahead(files, head_bytes=UNIT_BYTES)]
        self.schema = SCHEMA
        self.inputs = tuple(one.summary for one in self._inputs)
        self.compression = self._inputs[0].compression
        self._renames = RENAME_KEYS.of(options)
        self.layout = TarLayout(self.compression, self._renames, tuple(one.name for one in self.inputs))
        self.notes = (
            *next((one.notes for one in self._inputs if one.notes), ()),
            *_find_indexes(files[0]),
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        one, limits = self._inputs[input_index], self._options.limit(block_bytes, max_record_bytes)
        reader, keys = one.open(), KeySet()
        try:
            reader.limit_window(max(max_record_bytes, one.window_bytes, _MIN_WINDOW_BYTES))
            for block in RecordCutter(one.file.name, reader, limits).cut():
                if not self._renames:
                    _check_once(one, keys.add(block.hashes))
                yield TarFragment(one.file.name, block, renames=self._renames)
            _check_once(one, keys.finish())
        finally:
            reader.close()
            keys.close()

    def reading_bytes(self, block_bytes: int) -> int:
        window_bytes = max(one.window_bytes for one in self._inputs)
        return 3 * block_bytes + window_bytes + KEYS_BYTES + _READING_BYTES

    def decoder(self) -> Decoder:
        from recshuf.formats.webdataset.sink import TarDecoder

        return TarDecoder([one.name for one in self.inputs])


class TarFragment(Fragment):
    """The records of a block."""

    def __init__(self, name: str, block: Block, *, renames: bool) -> None:
        self._name, self._block, self._renames = name, block, renames
        self.record_count: int = len(block.hashes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        buffers = [None, pa.py_buffer(np.array(self._block.edges)), pa.py_buffer(self._block.data)]
        column = pa.Array.from_buffers(pa.large_binary(), self.record_count, buffers)
        if self._renames:
            column = pa.array(self._rename(column), pa.large_binary())
        yield pa.RecordBatch.from_arrays([column], schema=SCHEMA)

    def _rename(self, column: pa.LargeBinaryArray) -> Iterator[bytes]:
        for begin, record in zip(self._block.edges, list_records(column), strict=False):
            try:
                yield rename(record, _PLACEHOLDER)
            except ArchiveError as error:
                place = f"byte {self._block.position + begin + error.at}"
                raise InputError(self._name, error.problem, place=place, remedy=error.remedy) from error


def _check_once(one: TarInput, twice: bytes | None) -> None:
    """Refuse an input in which a key comes again behind others: members of its record may lie apart."""
    if twice is not None:
        key, place = find_key_of(one, twice)
        problem = f"the key {show(key)} comes again behind other keys"
        remedy = (
            "if these are two records, shuffle to webdataset with --rename-keys; if one, write the archive again with GNU tar "
            "--sort=name"
        )
        raise InputError(one.file.name, problem, place=f"byte {place}", remedy=remedy)


def find_key_of(one: TarInput, twice: bytes) -> tuple[bytes, int]:
    """Return the key of a hash, and where the first member that has it begins; reads the archive once more."""
    with closing(one.open()) as reader, BufferedReader(_RawFile(reader)) as file:
        for info in tarfile.TarFile.open(fileobj=file, mode="r|", ignore_zeros=True):
            key, _ = parse_name(info.name.encode("utf-8", "surrogateescape"))
            if key is not None and hash_key(key) == twice:
                return key, info.offset
    raise InputError(one.file.name, "changed while it was read")


class _RawFile(RawIOBase):
    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._reader.readinto(memoryview(buffer))


def look_at(file: InputFile, sample_bytes: int = _MIN_SAMPLE_BYTES) -> TarInput:
    """Return an input, once its beginning was read, which tells about how many records it has."""
    if file.is_stream:
        raise InputError(file.name, "is a stream, and archives are read as files", remedy="give its path")
    handle = open_input(file)
    try:
        head, stamp = handle.read_at(0, HEAD_BYTES), handle.stamp
    finally:
        handle.close()
    if not head:
        raise InputError(file.name, "is empty (0 bytes), not a tar archive")
    refuse_pointer(file.name, head)
    check_suffix(file.name, file.suffix)
    compression, opened = recognise_compression(head), LineFile(file, stamp)
    source = FileSource(opened)
    reader = open_reader(file.name, source, compression)
    try:
        sample = np.empty(sample_bytes, np.uint8)
        filled = fill(reader, sample.data)
    finally:
        reader.close()
    members = _read_sample(file.name, memoryview(sample)[:filled])  # type: ignore[arg-type] # as above
    keys = [one.key for one in members if one.key is not None]
    count = len(keys) - sum(map(operator.eq, keys, keys[1:]))
    seen = max((one.end for one in members), default=0)
    data_bytes = min(seen, filled)
    if filled == sample_bytes:
        data_bytes = max(filled, stamp.size * filled // max(1, source.bytes_read))
        count = max(1, count * data_bytes // max(1, seen))
    summary = InputSummary(file.name, stamp.size, count, False, data_bytes + OFFSET_BYTES * count)
    notes = tuple(_find_notes(file.name, members))
    return TarInput(opened, compression, reader.window_bytes, summary, notes)


def _read_sample(name: str, view: memoryview) -> list[Member]:
    members = list[Member]()
    try:
        members.extend(one for one in walk(view, 0) if isinstance(one, Member))
    except ArchiveError as error:
        if not members and error.at == 0:
            raise InputError(name, error.problem, place="byte 0", remedy=error.remedy) from error
    return members


def _find_notes(name: str, members: Sequence[Member]) -> Iterator[str]:
    lone = next((one for one in members if one.key is None and one.size), None)
    if lone is not None:
        yield f"{name}: {show(lone.name)} is of no record, as readers leave it out; such members stay with the record behind them"
    record = next((one for one in members if lower(one.suffix) in _FILES_OF_RECORDS), None)
    if record is not None:
        yield f"{name}: a file such as {show(record.name)} is one record; unpack the archive to shuffle the records of its files"


def _find_indexes(file: InputFile) -> Iterator[str]:
    """Yield what lies beside archives and is of no use for others."""
    path = file.path
    if path and ((path.parent / ".nv-meta").exists() or path.with_name(f"{path.name}.idx").exists()):
        yield (
            f"{file.name}: the indexes of energon beside it (.nv-meta, .idx) do not fit the output; make new ones with energon "
            "prepare FOLDER"
        )
