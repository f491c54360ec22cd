"""How bytes become records: the header of an input, the ends of its records, and batches over a buffer without a copy.

Separators are found as ``bytes.split`` finds them: leftmost first, without overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.compression import recognise_compression
from recshuf.formats.lines import CRLF as CRLF
from recshuf.formats.lines import FIRST, HEADER, count_header_lines, find_separator
from recshuf.formats.lines import MARK as MARK
from recshuf.records.arrays import view_bytes, view_offsets, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.interfaces import ReadOptions

    Bytes = NDArray[np.uint8]
    Positions = NDArray[np.int64]

SCHEMA = pa.schema([pa.field("record", pa.large_binary(), nullable=False)])
"""Native form of lines: the record's bytes, its separator included."""
PIECE_BYTES = 1 << 18
"""Bytes searched at once: mask and positions stay in the processor's cache."""
OFFSET_BYTES = 8
MOST_END_BYTES = 2
"""Bytes of a line end that a last line may lack, if its separator has one byte."""
BLANK_END_BYTES = 1 << 12
"""Bytes at the end of an input in which blank lines are looked for: few, so that every cut finds the same ones."""
_BLANKS = b" \t\r\n"
_SEARCHED, _MOST_SEARCHED = 16, 1 << 30
"""How far the end of a record is looked for that is too long for the memory: so many times the limit, and so many bytes."""
_HEADER_PIECE_BYTES = 1 << 12


class Header(NamedTuple):
    """The header of an input, its byte order mark and first lines, taken from its reader."""

    lines: bytes | None
    """The mark and the lines, each with its separator; None for an empty input, and for a part that is to have none."""
    rest: bytes
    end: int
    """Byte of the (decompressed) input at which the first record starts."""
    line_end: bytes | None = None
    """What ends its first line; None if nothing does, or it does not matter."""


class Cutter:
    """Cuts records at every separator."""

    long_record_hint = ""
    """What may be wrong with a record that is too long, as the end of a remedy."""
    counts_anywhere = True
    """Whether the middle of an input shows how many records it has."""
    drops_blank_end = False
    """Whether blank lines at the end of an input are no records."""
    end_remedy = "append the separator to the file"
    """What to do where `end_last` finds something wrong."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.separator = find_separator(options)
        self.header_lines = count_header_lines(options)
        self.header_in_first = HEADER.of(options) == FIRST
        """Whether only the first input that is not empty has a header: the others are parts that were cut from it."""
        self.notes: list[str] = []
        """What was taken where inputs leave it open."""
        self._has_taken = False

    def recognise_compression(self, head: bytes) -> str:
        return recognise_compression(head)

    @property
    def has_header(self) -> bool:
        """Whether an input must be opened to find its first record."""
        return self.header_lines > 0

    @property
    def has_places(self) -> bool:
        """Whether a record begins behind every separator, of one byte, wherever one looks."""
        return len(self.separator) == 1

    @property
    def end_bytes(self) -> int:
        """Most bytes that the last record of an input may lack of its end."""
        return max(MOST_END_BYTES, len(self.separator))

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        """Read the byte order mark and the header from the start of an input, and one byte more if there is one."""
        limit = RecordLimit(name, self.options.max_record_bytes, "--max-record-bytes", is_compressed)
        data = bytearray()
        view = memoryview(bytearray(_HEADER_PIECE_BYTES))
        is_part = self.header_in_first and self._has_taken
        end, missing = 0, 0 if is_part else self.header_lines
        while missing or len(data) <= len(MARK):
            at = data.find(self.separator, end) if missing else -1
            if at >= 0:
                end = at + len(self.separator)
                missing -= 1
                continue
            if len(data) - end > limit.max_bytes:
                raise limit.exceeded(end)
            count = reader.readinto(view)
            if not count:
                break
            data += view[:count]
        if data in (b"", MARK):
            return Header(None, b"", len(data))
        if missing:
            return self._end_lines(name, data, end, missing)
        self._has_taken = True
        if data.startswith(MARK):
            end = max(end, len(MARK))
        return Header(None if is_part else bytes(data[:end]), bytes(data[end:]), end)

    def _end_lines(self, name: str, data: bytearray, end: int, missing: int) -> Header:
        """Return the header of an input that ends within its header; the last line may lack its separator."""
        if missing > 1 or len(data) == end:
            problem = f"has fewer lines than its header, {self.header_lines}"
            raise InputError(name, problem, remedy="check --header")
        self._has_taken = True
        is_crlf = self.separator == b"\n" and data[:end].endswith(CRLF)
        missing_end = CRLF.removeprefix(data[-1:]) if is_crlf else self.separator
        return Header(bytes(data) + missing_end, b"", len(data))

    def count_records(self, data: Bytes, offsets: Positions) -> int:  # noqa: ARG002 # for others
        """Return how many records bytes hold, given where these begin and the last one ends."""
        return offsets.size - 1

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        return find_ends(data, begin, self.separator)

    def find_records(self, data: Bytes, begin: int) -> Iterator[Positions]:
        """Yield the ends of records that are read, as `find_ends` does, where they are no guess."""
        return self.find_ends(data, begin)

    def is_record(self, rest: Bytes) -> bool:
        """Tell whether what follows the last end of an input is one more record."""
        return rest.size > 0

    def begins_record(self, data: Bytes) -> bool:  # noqa: ARG002 # any bytes do
        return True

    def find_last_end(self, data: Bytes) -> int:
        return find_last_end(data, self.separator)

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        """Complete the last record of an input, ``data[begin:end]``, in place; `before` are the bytes before it.

        Return its new end, which is `begin` where it is no record; or what is wrong with it.
        """
        if len(self.separator) == 1:
            return end_line(data, end, before, self.separator)
        stop = end + len(self.separator)
        data[end:stop] = np.frombuffer(self.separator, np.uint8)
        if find_first(data[:stop], self.separator, begin) == end:
            return stop
        problem = "the last record has no separator, and would end earlier with one appended"
        return f"{problem}: its end is part of a separator"


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """The longest record accepted from one input."""

    name: str
    """The input as messages show it."""
    max_bytes: int
    option: str
    is_compressed: bool
    """Whether byte positions are those of the decompressed data."""
    hint: str = ""
    """What else the reader of the error may do."""

    def check(self, batch: pa.RecordBatch, origin: int) -> None:
        """Refuse a batch with a record that is too long; its buffer begins at byte `origin` of the input."""
        records = batch.column(0)
        data, offsets = view_records(records)
        if data.size <= self.max_bytes:
            return
        too_long = np.flatnonzero(np.diff(offsets) > self.max_bytes)
        if too_long.size:
            begin, end = view_offsets(records)[too_long[0] : too_long[0] + 2].tolist()
            raise self.exceeded(origin + begin, end - begin)

    @property
    def searched_bytes(self) -> int:
        """How far the end of a record is looked for."""
        is_of_memory = self.option == "--memory"
        return max(self.max_bytes, min(_SEARCHED * self.max_bytes, _MOST_SEARCHED) if is_of_memory else 0)

    def exceeded(self, position: int, size: int | None = None) -> InputError:
        problem = f"the record that starts here is longer than {self.max_bytes:,} bytes"
        remedy = f"raise {self.option}{self.hint}"
        return self.refuse(position, problem, remedy, size or 2 * self.max_bytes)

    def refuse(self, position: int, problem: str, remedy: str, record_bytes: int = 0) -> InputError:
        """Return the error for what is wrong at a byte."""
        place = self.name_place(position)
        return InputError(self.name, problem, place=place, remedy=remedy, record_bytes=record_bytes)

    def name_place(self, position: int) -> str:
        return f"byte {position} of the decompressed data" if self.is_compressed else f"byte {position}"


def end_line(data: Bytes, end: int, before: bytes, separator: bytes) -> int:
    r"""Put behind byte `end` what the last line lacks of its end, and return the new end.

    It is the separator, of one byte, or that of the line before, whose last bytes are `before`, if that is CRLF.

    >>> data = np.frombuffer(bytearray(b"c" + bytes(MOST_END_BYTES)), np.uint8)
    >>> end_line(data, 1, b"b\r\n", b"\n"), data.tobytes()
    (3, b'c\r\n')
    """
    last = data[end - 1 : end].tobytes()
    if last == separator:
        return end
    missing = CRLF if separator == b"\n" and before.endswith(CRLF) else separator
    missing = missing.removeprefix(last) if missing == CRLF else missing
    data[end : end + len(missing)] = np.frombuffer(missing, np.uint8)
    return end + len(missing)


def find_first(data: Bytes, separator: bytes, begin: int) -> int:
    """Return the start of the first separator at or after `begin`, -1 if there is none."""
    for at in range(begin, data.size, PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES + len(separator) - 1]
        start = piece.tobytes().find(separator)
        if start >= 0:
            return at + start
    return -1


def find_last_end(data: Bytes, separator: bytes) -> int:
    """Return the end of the last complete record, 0 if there is none. `data` begins with a record."""
    if len(separator) > 1:
        return max((int(ends[-1]) for ends in find_ends(data, 0, separator) if ends.size), default=0)
    for end in range(data.size, 0, -PIECE_BYTES):
        begin = max(0, end - PIECE_BYTES)
        start = data[begin:end].tobytes().rfind(separator)
        if start >= 0:
            return begin + start + 1
    return 0


def find_content_end(data: Bytes) -> int:
    r"""Return the end of the last line of some whole lines, the blank ones at the end left out.

    >>> find_content_end(np.frombuffer(b"a\n\n\t\r\n", np.uint8))
    2
    """
    tail = data[-BLANK_END_BYTES:].tobytes()
    begin = data.size - len(tail) + len(tail.rstrip(_BLANKS))
    if not begin:
        return 0
    return find_first(data, b"\n", begin - 1) + 1 or data.size


def find_ends(data: Bytes, begin: int, separator: bytes) -> Iterator[Positions]:
    """Yield the ends of all separators at or after `begin`, the start of a record: ascending, in pieces."""
    if len(separator) > 1:
        yield from _find_long_ends(data, begin, separator)
        return
    mask = np.empty(PIECE_BYTES, np.bool_)
    for at in range(begin, data.size, PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES]
        ends = np.flatnonzero(np.equal(piece, separator[0], out=mask[: piece.size]))
        ends += at + 1
        yield ends


def _find_long_ends(data: Bytes, begin: int, separator: bytes) -> Iterator[Positions]:
    while begin < data.size:
        *records, _ = data[begin : begin + PIECE_BYTES].tobytes().split(separator)
        if records:
            sizes = np.fromiter(map(len, records), np.int64, len(records)) + len(separator)
        elif (start := find_first(data, separator, begin)) >= 0:
            sizes = np.array([start + len(separator) - begin])
        else:
            return
        ends = begin + np.cumsum(sizes)
        yield ends
        begin = int(ends[-1])


def cut_batches(
    data: Bytes, begin: int, pieces: Iterator[Positions], max_records: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the records in ``data[begin:]``, whose ends are those of the `pieces`.

    The batches share the memory of `data` and keep it alive. They hold about `max_records` or fewer, which
    bounds the memory for offsets of very short records.
    """
    held: list[Positions] = [np.array([begin], np.int64)]
    count = 0
    for ends in pieces:
        if count and count + ends.size > max_records:
            offsets = np.concatenate(held)
            yield make_batch(data, offsets)
            held, count = [offsets[-1:].copy()], 0
        held.append(ends)
        count += ends.size
    if count:
        yield make_batch(data, np.concatenate(held))


def make_batch(data: Bytes, offsets: Positions) -> pa.RecordBatch:
    """Return the batch whose record ``i`` is ``data[offsets[i]:offsets[i + 1]]``, without a copy."""
    return pa.RecordBatch.from_arrays([wrap_bytes(data, offsets)], schema=SCHEMA)


def view_records(records: pa.LargeBinaryArray) -> tuple[Bytes, Positions]:
    """Return the bytes of consecutive records, shape ``(size,)``, and their offsets in them, without a copy.

    The first offset is 0 and the last is the size; there is one more than records.
    """
    offsets = view_offsets(records)
    return view_bytes(records), offsets - offsets[0] if offsets[0] else offsets
