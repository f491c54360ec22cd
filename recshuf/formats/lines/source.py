"""Inputs whose records are lines: what text, JSONL and CSV have in common.

Uncompressed files are read as independent byte ranges by any number of threads. The records of a range are those that start in it::

    range      |begin ............ end|
    file    ...rec1|record2|rec3|record4|...
    read          ^-------- data --------^        one byte before, some more after
    records        |record2|rec3|record4|

A record starts at the start of the file and after every separator; the byte before `begin` tells whether one starts
at `begin`. Separators have one byte: with longer ones, the starts of records depend on all bytes before them.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.lines import HEADER
from recshuf.formats.lines.census import Census
from recshuf.formats.lines.cutting import (
    MARK,
    MOST_END_BYTES,
    OFFSET_BYTES,
    PIECE_BYTES,
    SCHEMA,
    Cutter,
    RecordLimit,
    cut_batches,
    find_content_end,
    find_ends,
    find_first,
    find_last_end,
    make_batch,
)
from recshuf.formats.lines.files import BlockReader, skip_bytes
from recshuf.interfaces import Fragment, Joined, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes
    from recshuf.interfaces import InputFile, ReadOptions


_SAMPLES_BYTES = 64 << 20
_MIN_SAMPLE_BYTES, _MAX_SAMPLE_BYTES = 1 << 16, 1 << 20
_MAX_BATCH_RECORDS = 1 << 20
_BYTES_PER_OFFSET = 16  # offsets of a batch take at most half as much as a block
_MIN_WINDOW_BYTES = 8 << 20  # every zstd decoder is expected to accept it
_READING_BYTES = 2 << 20  # chunks of compressed data, masks, and the like
READ_ON_BYTES = 1 << 16
"""Bytes read after a range at once, to complete its last record."""
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LineLayout:
    """Properties of the inputs that shards of the same format keep."""

    separator: bytes
    header: bytes
    """The lines at the top of each shard, with their separators."""
    compression: str


class LineSource(Source):
    """All inputs of a run whose records are lines; each record is its bytes, the separator included."""

    reader_type: type[BlockReader] = BlockReader
    """Reads inputs without places to start at."""
    options: ReadOptions
    layout: LineLayout

    def __init__(self, files: Sequence[InputFile], options: ReadOptions, cutter: Cutter) -> None:
        sample_bytes = min(max(_SAMPLES_BYTES // len(files), _MIN_SAMPLE_BYTES), _MAX_SAMPLE_BYTES)
        self._cutter = cutter
        census = Census(self._cutter, sample_bytes)
        # Outputs have their header in every shard.
        self.options = options.found({HEADER: 1}) if self._cutter.header_in_first else options
        self.header_lines, self.end_bytes = self._cutter.header_lines, len(self._cutter.separator)
        self._streams_taken: set[int] = set()
        self._lines = census.look_at_all(files)
        self.notes = tuple(self._cutter.notes)
        self.schema = SCHEMA
        self.inputs = tuple(lines.summary for lines in self._lines)
        self.compression = self._lines[0].compression
        self.layout = LineLayout(self._cutter.separator, self._common_header(), self._lines[0].compression)

    def _common_header(self) -> bytes:
        """Return the header of all inputs; a byte order mark that only some have is for every shard."""
        headers = [(lines.name, lines.header) for lines in self._lines if lines.header is not None]
        if not headers:
            return b""
        marked = [name for name, header in headers if header.startswith(MARK)]
        if 0 < len(marked) < len(headers):
            self.notes += (
                f"{marked[0]} begins with a byte order mark, and other inputs do not: every shard gets one",
            )
        first, header = headers[0][0], headers[0][1].removeprefix(MARK)
        for name, other in headers[1:]:
            if other.removeprefix(MARK) != header:
                raise InputError(
                    name,
                    f"its header differs from that of {first}{_tell_unseen(header, other.removeprefix(MARK))}",
                    remedy="shuffle them apart, or make the headers equal",
                )
        return MARK + header if marked else header

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        lines = self._lines[input_index]
        if lines.stream:
            if input_index in self._streams_taken:
                raise RuntimeError(f"{lines.name}: a stream can be read once")
            self._streams_taken.add(input_index)
        limit = RecordLimit(
            lines.name,
            min(max_record_bytes, self.options.max_record_bytes),
            self.options.name_limit(max_record_bytes),
            lines.compression != "none",
            self._cutter.long_record_hint,
        )
        if self.skips_fragments(input_index):
            return self._ranges(lines, block_bytes, limit)
        window_bytes = max(max_record_bytes, lines.window_bytes, _MIN_WINDOW_BYTES)
        return self._blocks(lines, block_bytes, limit, window_bytes)

    def skips_fragments(self, input_index: int) -> bool:
        """Tell whether there are places in the input, as in no compressed lines and none with long separators."""
        lines = self._lines[input_index]
        return bool(lines.file) and lines.compression == "none" and self._cutter.has_places

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        if not all(map(self.skips_fragments, inputs)):
            return None
        return read_files(
            [self._lines[index] for index in inputs],
            self._cutter,
            count_batch_records(block_bytes),
            min(max_record_bytes, self.options.max_record_bytes),
        )

    def _ranges(self, lines: LineInput, block_bytes: int, limit: RecordLimit) -> Iterator[Fragment]:
        size, max_records = lines.require_file().size, count_batch_records(block_bytes)
        for begin in range(lines.data_begin, size, block_bytes):
            end = min(begin + block_bytes, size)
            yield RangeFragment(lines, begin, end, self._cutter, limit, max_records)

    def _blocks(
        self, lines: LineInput, block_bytes: int, limit: RecordLimit, window_bytes: int
    ) -> Iterator[Fragment]:
        with closing(lines.open()) as reader:
            reader.limit_window(window_bytes)
            if lines.file:
                skip_bytes(reader, lines.data_begin)
            blocks = self.reader_type(reader, lines, self._cutter, limit, block_bytes)
            yield from blocks.read(count_batch_records(block_bytes))

    def reading_bytes(self, block_bytes: int) -> int:
        # A block, its rest for the next block, and the ends of its records twice: in pieces and joined.
        offset_bytes = 2 * OFFSET_BYTES * (count_batch_records(block_bytes) + PIECE_BYTES)
        window_bytes = max(lines.window_bytes for lines in self._lines)
        return 2 * block_bytes + READ_ON_BYTES + offset_bytes + window_bytes + _READING_BYTES


def _tell_unseen(header: bytes, other: bytes) -> str:
    r"""Return where alone two headers differ that look alike in an editor; nothing if they do not.

    >>> _tell_unseen(b"a,b\r\n", b"a,b\n")
    ' in nothing but line ends (CRLF)'
    >>> _tell_unseen(b"a,b\n", b"a,c\n")
    ''
    """
    is_alike = header.replace(b"\r\n", b"\n") == other.replace(b"\r\n", b"\n")
    return " in nothing but line ends (CRLF)" if is_alike else ""


def count_batch_records(block_bytes: int) -> int:
    return max(1, min(_MAX_BATCH_RECORDS, block_bytes // _BYTES_PER_OFFSET))


class RangeFragment(Fragment):
    """The records that start in bytes ``begin`` to ``end`` of a file, at or after its first record."""

    def __init__(
        self, lines: LineInput, begin: int, end: int, cutter: Cutter, limit: RecordLimit, max_records: int
    ) -> None:
        self._file = lines.require_file()
        self._begin = begin
        self._end = end
        self._looks_back = begin > lines.data_begin
        self._cutter = cutter
        self._separator = cutter.separator
        self._limit = limit
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        origin = self._begin - self._looks_back
        stop = min(self._end + READ_ON_BYTES, self._file.size)
        data = self._file.read_lines(origin, stop, self._cutter)
        first = find_first(data, self._separator, 0) + 1 if self._looks_back else 0
        inside = self._end - origin
        if self._cutter.drops_blank_end and origin + data.size >= self._file.size:
            # Without the line end that the last line may have got.
            inside = min(inside, find_content_end(data[: self._file.size - origin]))
        if (self._looks_back and not first) or first >= inside:
            return
        stop = find_first(data, self._separator, inside - 1) + 1
        last = stop or first + find_last_end(data[first:inside], self._separator)
        ends = find_ends(data[:last], first, self._separator)
        for batch in cut_batches(data[:last], first, ends, self._max_records):
            self._limit.check(batch, origin)
            yield batch
        if not stop:
            del data
            yield self._read_long_record(origin + last)

    def _read_long_record(self, begin: int) -> pa.RecordBatch:
        """Return a batch of the last record of the range, which extends far beyond the range."""
        end = self._find_record_end(begin)
        if end - begin > self._limit.max_bytes:
            raise self._limit.exceeded(begin, end - begin)
        data = self._file.read_lines(begin, end, self._cutter)
        batch = make_batch(data, np.array([0, data.size], np.int64))
        self._limit.check(batch, begin)
        return batch

    def _find_record_end(self, begin: int) -> int:
        """Return the end of a record, searched in small pieces before memory for the record is taken."""
        with closing(self._file.open()) as handle:
            for at in range(self._end, self._file.size, _SEARCH_BYTES):
                place = handle.read_at(at, _SEARCH_BYTES).find(self._separator)
                if place >= 0:
                    return at + place + 1
                if at - begin > self._limit.searched_bytes:
                    raise self._limit.exceeded(begin)
        return self._file.size


def read_files(
    inputs: Sequence[LineInput], cutter: Cutter, max_records: int, max_record_bytes: int
) -> Joined | None:
    """Return all records of small uncompressed files with a separator of one byte, read into one buffer.

    Searching one file costs as much as 100 kB of lines, so the buffer of thousands of files is searched as a whole. None if there are more than `max_records`, or a record is longer than allowed or goes on behind its file.
    """
    edges = [0]
    data = np.empty(sum(_count_bytes(lines) + MOST_END_BYTES for lines in inputs), np.uint8)
    for lines in inputs:
        edges.append(_read_file(lines, data, edges[-1], cutter))
    pieces = [np.zeros(1, np.int64)]
    count = 0
    for ends in cutter.find_records(data[: edges[-1]], 0):
        pieces.append(ends)
        count += ends.size
        if count > max_records:
            return None
    offsets = np.concatenate(pieces)
    if edges[-1] > max_record_bytes and int(np.diff(offsets).max()) > max_record_bytes:
        return None
    places = np.searchsorted(offsets, edges)
    if places[-1] == offsets.size or (offsets[places] != edges).any():
        return None
    rows = np.diff(places)
    return Joined(make_batch(data, offsets), rows.tolist())


def _count_bytes(lines: LineInput) -> int:
    return max(0, lines.require_file().size - lines.data_begin)


def _read_file(lines: LineInput, data: Bytes, begin: int, cutter: Cutter) -> int:
    """Read the records of a file into `data` from `begin` on, adding a missing last line end; return their end."""
    count = _count_bytes(lines)
    if not count:
        return begin
    file, data = lines.require_file(), data[begin:]
    size = file.fill_lines(data, lines.data_begin, file.size, cutter)
    if cutter.drops_blank_end and (end := find_content_end(data[:count])) < count:
        return begin + end
    return begin + size
