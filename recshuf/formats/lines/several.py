"""Records of several lines: so many lines each, or from a line that begins with a text to the next such line.

Where such a record begins depends on all bytes before it, or on bytes behind a newline, so that one thread takes blocks
of whole records in order, as of compressed lines; any thread cuts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError, UsageError
from recshuf.formats.lines.cutting import (
    CRLF,
    MARK,
    MOST_END_BYTES,
    PIECE_BYTES,
    Cutter,
    end_line,
    find_ends,
    find_last_end,
)
from recshuf.formats.lines.files import BlockReader
from recshuf.formats.lines.options import NEWLINE, RECORD_LINES, RECORD_START, find_separator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Header, Positions
    from recshuf.interfaces import ReadOptions


_BLANK_LINES = (b"\n\n", b"\n\r\n")
_HEAD_BYTES = 1 << 16


def open_cutter(options: ReadOptions) -> Cutter:
    """Return what cuts text into the records that options name."""
    count, start = RECORD_LINES.of(options), RECORD_START.of(options)
    named = {
        "--record-lines": count is not None,
        "--record-start": start != b"",
        "--separator (or -z)": find_separator(options) != NEWLINE,
    }
    if len(given := [flag for flag, is_given in named.items() if is_given]) > 1:
        raise UsageError(f"{given[0]} and {given[1]} contradict each other; give one of them")
    if count is not None:
        return CountCutter(options, count)
    return StartCutter(options, start) if start else Cutter(options)


class SeveralCutter(Cutter):
    """Cuts records of several lines."""

    has_places = False
    end_bytes = 2 * MOST_END_BYTES
    form = ""
    """What every record is."""

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        """Complete what is left at the end of an input, ``data[begin:end]``, in place.

        Returns
        -------
        int | str
            The new end, which is `begin` where nothing is left; or what is wrong with it.
        """
        raise NotImplementedError


class CountCutter(SeveralCutter):
    """Cuts records of so many lines. Fewer blank lines at the end of an input are no record."""

    def __init__(self, options: ReadOptions, count: int) -> None:
        super().__init__(options)
        self._count = count
        self.form = f"has {count:,} lines"

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        seen = 0
        for ends in find_ends(data, begin, NEWLINE):
            yield ends[self._count - 1 - seen % self._count :: self._count]
            seen += ends.size

    def find_last_end(self, data: Bytes) -> int:
        pieces = range(0, data.size, PIECE_BYTES)
        counts = [np.count_nonzero(data[at : at + PIECE_BYTES] == ord(NEWLINE)) for at in pieces]
        left = sum(counts) - sum(counts) % self._count
        for at, count in zip(pieces, counts, strict=True):
            if 0 < left <= count:
                return at + int(np.flatnonzero(data[at : at + PIECE_BYTES] == ord(NEWLINE))[left - 1]) + 1
            left -= count
        return 0

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        rest = data[begin:end].tobytes()
        if not rest.strip(CRLF):
            return begin
        count = rest.count(NEWLINE)
        if count < self._count - 1 or rest.endswith(NEWLINE):
            lines = count + (not rest.endswith(NEWLINE))
            return f"the last record has {lines:,} of {self._count:,} lines"
        return end_line(data, end, (before + rest[: rest.rfind(NEWLINE) + 1])[-MOST_END_BYTES:], NEWLINE)


class StartCutter(SeveralCutter):
    """Cuts records before every line that begins with a text."""

    has_header = True  # what stands before the first record is looked at

    def __init__(self, options: ReadOptions, start: bytes) -> None:
        super().__init__(options)
        self._start = start
        self.form = f"begins with {_show(self._start)}, as no other line of it does"

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        header = super().take_header(name, reader, is_compressed=is_compressed)
        rest, view = header.rest, memoryview(bytearray(_HEAD_BYTES))
        while len(rest) < _HEAD_BYTES and (count := reader.readinto(view)):
            rest += view[:count]
        header = header._replace(rest=rest)
        if header.lines is None and header.end in (0, len(MARK)) and not rest:
            return header  # of an empty input
        if rest.startswith(self._start) or not rest:
            return header
        place = rest.find(NEWLINE + self._start)
        if place < 0:
            raise InputError(
                name,
                f"has no line that begins with {_show(self._start)} near its start",
                remedy="check --record-start",
            )
        lines = rest.count(NEWLINE, 0, place + 1)
        raise InputError(
            name,
            f"no record begins before line {self.header_lines + lines + 1}",
            place=f"line {self.header_lines + 1}",
            remedy=f"give --header {self.header_lines + lines} if the lines above it are a header",
        )

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        size = len(self._start)
        return (ends - size for ends in find_ends(data, begin, NEWLINE + self._start))

    def find_records(self, data: Bytes, begin: int) -> Iterator[Positions]:
        yield from self.find_ends(data, begin)
        if data.size > begin:
            yield np.array([data.size], np.int64)

    def begins_record(self, data: Bytes) -> bool:
        return not data.size or data[: len(self._start)].tobytes() == self._start

    def find_last_end(self, data: Bytes) -> int:
        return max(0, find_last_end(data, NEWLINE + self._start) - len(self._start))

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        # The end of a line that the input lacks, and a blank line if the record before ends with one.
        is_cut = data[end - 1] != ord(NEWLINE)
        place = data[begin:end].tobytes().rfind(NEWLINE) + 1
        line_before = (before + data[begin : begin + place].tobytes())[-MOST_END_BYTES:]
        stop = end_line(data, end, line_before, NEWLINE)
        if is_cut and before.endswith(_BLANK_LINES):
            added = CRLF if before.endswith(CRLF) else NEWLINE
            data[stop : stop + len(added)] = np.frombuffer(added, np.uint8)
            stop += len(added)
        return stop


class SeveralBlockReader(BlockReader):
    """Cuts bytes into blocks of whole records of several lines."""

    _cutter: SeveralCutter

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        before = data[:begin][-self._cutter.end_bytes :].tobytes() or self._before
        stop = self._cutter.end_last(data, begin, end, before)
        if isinstance(stop, str):
            raise InputError(
                self._limit.name,
                stop,
                place=self._limit.name_place(self._position + begin),
                remedy="complete the file, or give another --record-lines, or --header N for lines above the records",
            )
        return stop


def _show(start: bytes) -> str:
    return repr(start.decode(errors="backslashreplace"))
