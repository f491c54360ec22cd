"""Files and streams of lines: opening them, noticing changes, and reading them from beginning to end.

Compressed files, streams, and files with separators of several bytes have no places to start at. One thread
decompresses and takes blocks in order; any thread cuts their batches.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.files import changed, refuse_pointer
from recshuf.formats.files import fill as fill_from
from recshuf.formats.lines.cutting import (
    MOST_END_BYTES,
    Cutter,
    Header,
    cut_batches,
    end_line,
    find_content_end,
)
from recshuf.interfaces import Fragment
from recshuf.storage.reading.local import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, Positions, RecordLimit
    from recshuf.interfaces import Handle, InputFile, ReadOptions, Stamp


_GROWTH_PART = 4
_HEAD_BYTES = 512


class LineFile(NamedTuple):
    """A regular file, or an object, as the census saw it."""

    input: InputFile
    stamp: Stamp

    @property
    def name(self) -> str:
        return self.input.name

    @property
    def size(self) -> int:
        return self.stamp.size

    def open(self) -> Handle:
        """Return the open file, which the caller closes; an error if it has changed since the census."""
        handle = open_input(self.input)
        if handle.stamp[:2] != self.stamp[:2]:
            handle.close()
            raise changed(self.name)
        return handle

    def read_into(self, into: Bytes, position: int, *, drop_page_cache: bool = False) -> None:
        """Open the file and fill `into` from byte `position` on."""
        with closing(self.open()) as handle:
            fill_from(handle, position, into, self.name)
            if drop_page_cache:
                handle.drop_pages(position, into.size)

    def read_lines(self, begin: int, end: int, cutter: Cutter) -> Bytes:
        data = np.empty(end - begin + MOST_END_BYTES, np.uint8)
        return data[: self.fill_lines(data, begin, end, cutter)]

    def fill_lines(self, data: Bytes, begin: int, end: int, cutter: Cutter) -> int:
        """Fill `data` with bytes ``begin`` to ``end``, and return their number.

        What the last line of the file lacks of its end is added: `data` has room for `MOST_END_BYTES` more. Separators have
        one byte.
        """
        size = end - begin
        self.read_into(data[:size], begin, drop_page_cache=cutter.options.drop_page_cache)
        if end < self.size or data[size - 1] == cutter.separator[0]:
            return size
        last = cutter.find_last_end(data[:size])
        before = np.empty(min(MOST_END_BYTES, begin), np.uint8)
        if last < MOST_END_BYTES:
            self.read_into(before, begin - before.size)
        before = np.concatenate([before, data[:last][-MOST_END_BYTES:]])
        return end_line(data, size, before.tobytes(), cutter.separator)


class FileSource:
    """The bytes of a `LineFile` in order; checks that the size is the same as in the census."""

    def __init__(self, file: LineFile) -> None:
        self.file = file
        self._handle = file.open()
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        data = self._handle.read_at(self.bytes_read, size)
        self.bytes_read += len(data)
        if not data and self.bytes_read != self.file.size:
            raise changed(self.file.name)
        return data

    def close(self) -> None:
        self._handle.close()


class StreamSource:
    """The bytes of a stream in order, which is closed if it is owned."""

    def __init__(self, name: str, stream: BinaryIO, *, owned: bool) -> None:
        self._name = name
        self._stream = stream
        self._head = b""
        self._owned = owned

    def peek(self, size: int) -> bytes:
        """Return the next bytes, `size` if there are so many, which `read` returns once more."""
        while len(self._head) < size and (more := self._read(size - len(self._head))):
            self._head += more
        return self._head

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._read(size)
        data, self._head = self._head[:size], self._head[size:]
        return data

    def close(self) -> None:
        if self._owned:
            self._stream.close()

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise InputError.of_system(error, self._name) from error


def fill(reader: ByteReader, view: memoryview) -> int:
    """Read until `view` is full or the data ends; return the number of bytes."""
    filled = 0
    while filled < len(view) and (count := reader.readinto(view[filled:])):
        filled += count
    return filled


class FramedCutter(Cutter):
    """Cuts records that tell where they end, so that an input is read from its beginning on, which tells its format."""

    has_header = True
    has_places = False
    counts_anywhere = False
    kind = ""
    """What an input is, for messages, if none of them is empty."""

    def __init__(self, options: ReadOptions) -> None:
        # The beginning tells more than what foreign content looks like.
        super().__init__(replace(options, refuses_foreign=False))

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:  # noqa: ARG002
        view = memoryview(bytearray(_HEAD_BYTES))
        head = bytes(view[: fill(reader, view)])
        refuse_pointer(name, head, self.kind)
        self.check_head(name, head)
        return Header(b"" if head else None, head, 0)

    def check_head(self, name: str, head: bytes) -> None:
        """Raise `InputError` unless an input of the format begins so; given are 512 bytes, if there are so many."""
        raise NotImplementedError


class BlockFragment(Fragment):
    """Whole records in memory, from byte `position` of the (decompressed) input on."""

    def __init__(
        self, data: Bytes, position: int, cutter: Cutter, limit: RecordLimit, max_records: int
    ) -> None:
        self._data = data
        self._position = position
        self._cutter = cutter
        self._limit = limit
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._cut(self._data, self._cutter.find_records(self._data, 0))

    def _cut(self, data: Bytes, ends: Iterator[Positions]) -> Iterator[pa.RecordBatch]:
        for batch in cut_batches(data, 0, ends, self._max_records):
            self._limit.check(batch, self._position)
            yield batch


class CutFragment(BlockFragment):
    """Those whose ends are known."""

    def __init__(self, ends: Positions, *block: Any) -> None:
        super().__init__(*block)
        self.record_count = ends.size
        self._ends = ends

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._cut(self._data, self._split(self._ends))

    def _split(self, ends: Positions) -> Iterator[Positions]:
        return (ends[at : at + self._max_records] for at in range(0, ends.size, self._max_records))


class BlockReader:
    """Cuts the bytes of a reader, which stands at the first record of an input, into blocks of whole records."""

    def __init__(
        self, reader: ByteReader, lines: LineInput, cutter: Cutter, limit: RecordLimit, block_bytes: int
    ) -> None:
        self._reader = reader
        self._header = lines.header
        self._position = lines.data_begin
        self._cutter = cutter
        self._before = lines.header or b""
        self._end_bytes = cutter.end_bytes
        self._limit = limit
        self._block_bytes = block_bytes
        self._is_ended = False

    def read(self, max_records: int) -> Iterator[Fragment]:
        """Yield blocks, to be cut into batches of about so many records; only one of a single record exceeds the block size."""
        rest = np.empty(0, np.uint8)
        while not self._is_ended or rest.size:
            data = np.empty(max(self._block_bytes, 2 * rest.size) + self._end_bytes, np.uint8)
            data[: rest.size] = rest
            filled = self._fill(data, rest.size)
            while not (stop := self._find_stop(data[:filled])) and not self._is_ended:
                if filled > self._limit.max_bytes:
                    raise self._limit.exceeded(self._position)
                # In place where the system can move pages, so that a long record is in memory once.
                data.resize(data.size + max(self._block_bytes, data.size // _GROWTH_PART), refcheck=False)
                filled = self._fill(data, filled)
            if self._is_ended:
                stop, filled = self._end(data, stop, filled)
            if stop:
                # A small block must not keep a large buffer alive.
                block = data[:stop].copy() if stop < data.size // 2 else data[:stop]
                yield from self._make_fragment(block, self._position, self._cutter, self._limit, max_records)
            rest = data[stop:filled].copy()
            self._before = data[:stop][-self._end_bytes :].tobytes()
            self._position += stop

    def _make_fragment(self, *block: Any) -> Iterator[Fragment]:
        """Yield the fragment of a block, given as to `BlockFragment`."""
        yield BlockFragment(*block)

    def _find_stop(self, data: Bytes) -> int:
        """Return the end of the last whole record, before blank lines that may be the end of the input; 0 if there is none."""
        stop = self._cutter.find_last_end(data)
        return find_content_end(data[:stop]) if self._cutter.drops_blank_end else stop

    def _fill(self, data: Bytes, filled: int) -> int:
        """Read until `data` has room for one line end only, and return the bytes filled."""
        room = data.size - self._end_bytes
        count = fill(self._reader, data.data[filled:room])
        self._is_ended = filled + count < room
        return filled + count

    def _end(self, data: Bytes, stop: int, filled: int) -> tuple[int, int]:
        """Return `stop` of the last bytes of an input, and where those end that are yet to be cut."""
        if self._cutter.drops_blank_end:
            filled = find_content_end(data[:filled])
            stop = self._cutter.find_last_end(data[:filled])
        if stop < filled:
            stop = filled = self._terminate(data, stop, filled)
        return stop, filled

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        """Complete a last record that lacks its end, and return the new end."""
        before = data[:begin][-self._end_bytes :].tobytes() or self._before
        stop = self._cutter.end_last(data, begin, end, before)
        if isinstance(stop, int):
            return stop
        raise self._limit.refuse(self._position + begin, stop, self._cutter.end_remedy)


def skip_bytes(reader: ByteReader, count: int) -> None:
    view = memoryview(bytearray(min(count, 1 << 20)))
    while count and (skipped := reader.readinto(view[:count])):
        count -= skipped
