"""Whole CSV records: ranges of uncompressed files for any number of threads, and blocks of other inputs.

Both end with an error where a quoted field is open at the end of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.csv.quotes import State
from recshuf.formats.lines.cutting import cut_batches, view_records
from recshuf.formats.lines.files import BlockReader
from recshuf.interfaces import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.csv.cutter import CsvCutter
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, RecordLimit
    from recshuf.interfaces import Handle


_STEP_BYTES = 1 << 20
_WINDOW_BYTES = (1 << 14, 1 << 18)


def _unclosed_error(name: str, line: int) -> InputError:
    return InputError(
        name,
        "a quoted field of the record that begins here is not closed",
        place=f"line {line}",
        remedy="close it, or give --quote none if quotes have no meaning",
    )


class CsvBlockReader(BlockReader):
    """Cuts bytes into blocks of whole CSV records, and counts their lines."""

    def __init__(
        self, reader: ByteReader, lines: LineInput, cutter: CsvCutter, limit: RecordLimit, block_bytes: int
    ) -> None:
        super().__init__(reader, lines, cutter, limit, block_bytes)
        self._line = 1 + (lines.header or b"").count(b"\n")

    def _read_block(self) -> tuple[Bytes, int]:
        data, stop = super()._read_block()
        self._line += _count_lines(data[:stop])
        return data, stop

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        stop = super()._terminate(data, begin, end)
        if self._cutter.find_last_end(data[begin:stop]) != stop - begin:
            raise _unclosed_error(self._limit.name, self._line + _count_lines(data[:begin]))
        return stop


class RecordRange(Fragment):
    """The records in bytes ``begin`` to ``end`` of a file, both between records."""

    def __init__(self, cuts: RangeCuts, begin: int, end: int, max_records: int) -> None:
        self._begin = begin
        self._end = end
        self._cuts = cuts
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        data = self._cuts.file.read_lines(self._begin, self._end, self._cuts.cutter)
        ends = self._cuts.cutter.find_records(data, 0)
        last = 0
        for batch in cut_batches(data, 0, ends, self._max_records):
            self._cuts.limit.check(batch, self._begin)
            last += view_records(batch.column(0))[0].size
            yield batch
        if last != data.size:
            raise self._cuts.unclosed_error(self._begin + last)


class RangeCuts:
    """Finds where a file can be cut between records, without reading all of it where quotes tell."""

    def __init__(self, lines: LineInput, cutter: CsvCutter, limit: RecordLimit) -> None:
        self._lines = lines
        self.file = lines.require_file()
        self._begin = lines.data_begin
        self.cutter = cutter
        self.limit = limit

    def find(self, block_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of whole records; only one of a single record exceeds `block_bytes`."""
        begin = self._begin
        handle = self.file.open()
        try:
            while begin < self.file.size:
                end = min(begin + block_bytes, self.file.size)
                if end < self.file.size:
                    end = self._find_last_end(handle, begin, end) or self._find_next_end(handle, begin)
                yield begin, end
                begin = end
        finally:
            handle.close()

    def _find_last_end(self, handle: Handle, begin: int, end: int) -> int:
        """Return the last end of a record from `begin`, the start of one, to `end`; 0 if there is none."""
        for size in _WINDOW_BYTES:
            if end - size <= begin:
                break
            data = self._read(handle, end - size, end)
            if place := self.cutter.scanner.find_synced_end(data):
                return end - size + place
        last, state = 0, State()
        for at in range(begin, end, _STEP_BYTES):
            data = self._read(handle, at, min(at + _STEP_BYTES, end))
            place, state = self.cutter.scanner.find_last_end(data, 0, state)
            last = at + place if place else last
        return last

    def _find_next_end(self, handle: Handle, begin: int) -> int:
        """Return the end of the record at `begin`, before memory for the record is taken."""
        state = State()
        for at in range(begin, self.file.size, _STEP_BYTES):
            data = self._read(handle, at, min(at + _STEP_BYTES, self.file.size))
            place, state = self._scan_first(data, state)
            if place:
                return at + place
            if at + data.size - begin > self.limit.max_bytes:
                raise self.limit.exceeded(begin)
        if state.is_quoted:
            raise self.unclosed_error(begin)
        return self.file.size

    def _scan_first(self, data: Bytes, state: State) -> tuple[int, State]:
        """Return the first end of a record, 0 if there is none, and then the state behind `data`."""
        behind = state
        for ends, behind in self.cutter.scanner.find_ends(data, 0, state):
            if ends.size:
                return int(ends[0]), behind
        return 0, behind

    def _read(self, handle: Handle, begin: int, end: int) -> Bytes:
        data = np.empty(end - begin, np.uint8)
        self.file.read_at(handle, data.data, begin)
        return data

    def unclosed_error(self, position: int) -> InputError:
        """Return the error for the record at this byte, counting the lines before it."""
        buffer = np.empty(_STEP_BYTES, np.uint8)
        reader = self._lines.open()
        line, left = 1, position
        try:
            while left and (count := reader.readinto(buffer.data[:left])):
                line += _count_lines(buffer[:count])
                left -= count
        finally:
            reader.close()
        return _unclosed_error(self.file.name, line)


def _count_lines(data: Bytes) -> int:
    return int(np.count_nonzero(data == ord("\n")))
