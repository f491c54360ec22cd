"""The error for a quoted field that is open at the end of an input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.lines.blocks import BlockReader

if TYPE_CHECKING:
    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.csv.cutter import CsvCutter
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes
    from recshuf.formats.lines.limit import RecordLimit

_STEP_BYTES = 1 << 20


class UnclosedQuotes:
    """Makes the error for one input, by counting its lines."""

    def __init__(self, lines: LineInput) -> None:
        self._lines = lines

    def error_at(self, position: int) -> InputError:
        """Return the error for the record at this byte of a file, decompressed."""
        reader = self._lines.open()
        buffer = np.empty(_STEP_BYTES, np.uint8)
        line, left = 1, position
        try:
            while left and (count := reader.readinto(buffer.data[:left])):
                line += int(np.count_nonzero(buffer[:count] == ord("\n")))
                left -= count
        finally:
            reader.close()
        return self.error_in_line(line)

    def error_in_line(self, line: int) -> InputError:
        """Return the error for the record that begins in this line."""
        return InputError(
            self._lines.name,
            "a quoted field of the record that begins here is not closed",
            place=f"line {line}",
            remedy="close it, or give --quote none if quotes have no meaning",
        )


class CsvBlockReader(BlockReader):
    """Cuts bytes into blocks of whole CSV records, and counts their lines."""

    def __init__(
        self, reader: ByteReader, lines: LineInput, cutter: CsvCutter, limit: RecordLimit, block_bytes: int
    ) -> None:
        super().__init__(reader, lines.data_begin, cutter, limit, block_bytes)
        self._line = 1 + (lines.header or b"").count(b"\n")
        self._unclosed = UnclosedQuotes(lines)

    def _read_block(self) -> tuple[Bytes, int]:
        data, stop = super()._read_block()
        self._line += int(np.count_nonzero(data[:stop] == ord("\n")))
        return data, stop

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        stop = end + 1
        data[end] = ord("\n")
        if self._cutter.find_last_end(data[begin:stop]) != stop - begin:
            raise self._unclosed.error_in_line(self._line + int(np.count_nonzero(data[:begin] == ord("\n"))))
        return stop
