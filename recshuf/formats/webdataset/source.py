"""Tar archives as a source: one thread walks the headers of an input in order, and cuts blocks of whole records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.lines.cutting import SCHEMA, Cutter, Header, make_batch
from recshuf.formats.lines.files import BlockFragment, BlockReader, fill
from recshuf.formats.lines.source import LineSource
from recshuf.formats.pointers import refuse_pointer
from recshuf.formats.webdataset import RENAME_KEYS
from recshuf.formats.webdataset.cutting import (
    BLOCK_BYTES,
    KEYS_BYTES,
    ArchiveError,
    KeySet,
    Member,
    find_key,
    hash_key,
    list_records,
    lower,
    rename,
    show,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import Decoder, Fragment, InputFile, ReadOptions


_READING_BYTES, _SEARCH_BYTES = 2 << 20, 1 << 20
_MOST_BYTES = 1 << 62
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


class TarCutter(Cutter):
    """Estimates the records of an input, and notes what of the first ones may be mistaken."""

    has_header = True  # the first header, which tells whether this is tar
    has_places = False
    counts_anywhere = False
    _name = ""

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:  # noqa: ARG002
        self._name, view = name, memoryview(bytearray(BLOCK_BYTES))
        head = bytes(view[: fill(reader, view)])
        if not head:
            raise InputError(name, "is empty (0 bytes), not a tar archive")
        refuse_pointer(name, head)
        try:
            next(walk(memoryview(head), 0), None)
        except ArchiveError as error:
            raise error.of_input(name, "byte 0") from error
        return Header(b"", head, 0)

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        """Yield where records end; the last one may do so behind `data`."""
        members = list[Member]()
        with suppress(ArchiveError):  # as reading will say
            members.extend(one for one in walk(data.data, begin) if isinstance(one, Member))
        self.notes += [] if self.notes else _find_notes(self._name, members)
        keyed = [one for one in members if one.key is not None]
        keys = [*(one.key for one in keyed[1:]), None]
        ends = [one.end for one, following in zip(keyed, keys, strict=False) if one.key != following]
        yield np.minimum(ends, _MOST_BYTES).astype(np.int64)

    def count_records(self, data: Bytes, offsets: Positions) -> float:
        count, end = offsets.size - 1, int(offsets[-1])
        return count if end <= data.size else count * data.size / end

    def is_record(self, rest: Bytes) -> bool:  # noqa: ARG002 - they are zeros
        return False


class TarSource(LineSource):
    """All inputs of a run. A record is the bytes of its members, headers and padding included."""

    layout: TarLayout  # type: ignore[assignment] # of targets of its own
    spans_lines = True

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        super().__init__(files, options, TarCutter(replace(options, refuses_foreign=False)))
        self.reader_type = TarReader
        if streams := [one.name for one in self._lines if one.stream]:
            problem = "is a stream, and archives are read as files"
            raise InputError(streams[0], problem, remedy="give its path")
        self.inputs = tuple(one._replace(record_count_is_exact=False) for one in self.inputs)
        self._renames = RENAME_KEYS.of(options)
        self.layout = TarLayout(
            self._lines[0].compression, self._renames, tuple(one.name for one in self.inputs)
        )
        self.notes += (*_find_indexes(files[0]),)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        keys, found = KeySet(), super().fragments(input_index, block_bytes, max_record_bytes)
        try:
            for fragment in found:
                if not self._renames and isinstance(fragment, TarFragment):
                    self._check_once(input_index, keys.add(fragment.hashes))
                yield fragment
            self._check_once(input_index, keys.finish())
        finally:
            keys.close()

    def _check_once(self, input_index: int, twice: bytes | None) -> None:
        """Refuse an input in which a key comes again behind others: members of its record may lie apart."""
        if twice is None:
            return
        name, found = self.inputs[input_index].name, self.find_key(input_index, twice)
        if found is None:
            raise InputError(name, "changed while it was read")
        key, begin = found
        one = "write the archive again with GNU tar --sort=name"
        remedy = f"if these are two records, shuffle to webdataset with --rename-keys; if one, {one}"
        problem = f"the key {key} comes again behind other keys"
        raise InputError(name, problem, place=f"byte {begin}", remedy=remedy)

    def find_key(self, input_index: int, wanted: bytes) -> tuple[str, int] | None:
        """Return the key of a hash, and where the first record begins that has it; reads the archive once more."""
        self.reader_type = LenientReader  # neighbours of one key may have a suffix twice
        for fragment in super().fragments(input_index, _SEARCH_BYTES, self._cutter.options.max_record_bytes):
            if isinstance(fragment, TarFragment) and wanted in fragment.hashes:
                return fragment.show_key(fragment.hashes.index(wanted))
        return None

    def reading_bytes(self, block_bytes: int) -> int:
        window_bytes = max(one.window_bytes for one in self._lines)
        return 3 * block_bytes + window_bytes + KEYS_BYTES + _READING_BYTES

    def decoder(self) -> Decoder:
        from recshuf.formats.webdataset.sink import TarDecoder

        return TarDecoder([one.name for one in self.inputs])


class TarFragment(BlockFragment):
    """Whole records in memory, with the begin of each, the end of the last one, and the hashes of their keys."""

    def __init__(self, edges: list[int], hashes: list[bytes], *block: Any) -> None:
        super().__init__(*block)
        self.record_count, self.hashes, self._edges = len(hashes), hashes, edges

    def batches(self) -> Iterator[pa.RecordBatch]:
        batch = make_batch(self._data, np.array(self._edges))
        if RENAME_KEYS.of(self._cutter.options):
            renamed = pa.array(self._rename(batch.column(0)), pa.large_binary())
            batch = pa.RecordBatch.from_arrays([renamed], schema=SCHEMA)
        yield batch

    def show_key(self, row: int) -> tuple[str, int]:
        """Return the key of a record, and where it begins."""
        begin, end = self._edges[row : row + 2]
        return show(find_key(self._data[begin:end].data)), self._position + begin

    def _rename(self, column: pa.LargeBinaryArray) -> Iterator[bytes]:
        for begin, record in zip(self._edges, list_records(column), strict=False):
            try:
                yield rename(record, _PLACEHOLDER)
            except ArchiveError as error:
                place = self._limit.name_place(self._position + begin + error.at)
                raise error.of_input(self._limit.name, place) from error


class TarReader(BlockReader):
    """Cuts bytes into blocks of whole records, up to the first zero block behind them.

    A member that is of no record stays with the one behind it, wherever that comes to lie. At the end it is put before the
    last one.
    """

    def _find_stop(self, data: Bytes) -> int:
        self._edges, self._hashes, self._suffixes = [0], list[bytes](), set[bytes]()
        try:
            return self._find_records(data)
        except ArchiveError as error:
            place = self._limit.name_place(self._position + error.at)
            raise error.of_input(self._limit.name, place) from error

    def _end(self, data: Bytes, stop: int, filled: int) -> tuple[int, int]:  # noqa: ARG002 - more archives may follow
        return stop, filled

    def _make_fragment(self, *block: Any) -> Iterator[Fragment]:
        if self._hashes:
            yield TarFragment(self._edges, self._hashes, *block)

    def _find_records(self, data: Bytes) -> int:
        key, last_of_key, last = None, 0, 0
        for member in walk(data.data, 0):
            if isinstance(member, int):
                self._end_archive(data, key, last_of_key, last)
                if self._hashes:
                    return member
                key, last, self._edges = None, member, [member]
                continue
            if key is not None and member.key not in (None, key):
                self._end_record(key, last_of_key)
                key = None
            if member.end - self._edges[-1] > self._limit.max_bytes:
                raise self._limit.exceeded(self._position + self._edges[-1])
            if member.end > len(data):
                break
            if member.key is not None:
                self._note_suffix(member, member.key, is_first=key is None)
                key, last_of_key = member.key, member.end
            last = member.end
        if not self._is_ended:
            return self._edges[-1]
        if data[last:].any():
            raise ArchiveError(last, "is truncated: a member ends behind the end of the archive")
        self._end_archive(data, key, last_of_key, last)
        return len(data)

    def _note_suffix(self, member: Member, key: bytes, *, is_first: bool) -> None:
        suffix = lower(member.suffix)
        if is_first:
            self._suffixes.clear()
        elif suffix in self._suffixes:
            problem = f"the record {show(key)} has the suffix {show(suffix)} twice, which readers refuse"
            raise ArchiveError(member.start, problem, "rename one of the members")
        self._suffixes.add(suffix)

    def _end_record(self, key: bytes, at: int) -> None:
        self._edges.append(at)
        self._hashes.append(hash_key(key))

    def _end_archive(self, data: Bytes, key: bytes | None, last_of_key: int, last: int) -> None:
        begin = self._edges[-1]
        if key is not None:
            if last > last_of_key:
                data[begin:last] = np.roll(data[begin:last], last - last_of_key)
            self._end_record(key, last)
        elif last > begin:
            raise ArchiveError(begin, "holds only members that readers leave out", "leave the archive out")


class LenientReader(TarReader):
    """Takes records that no reader takes."""

    def _note_suffix(self, *_: object, **__: object) -> None:
        pass


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
