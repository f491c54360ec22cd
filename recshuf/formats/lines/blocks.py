"""Lines read from beginning to end: compressed files, streams, and separators of several bytes.

One thread decompresses and takes blocks in order; any thread cuts their batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.lines.cutting import cut_batches, find_first
from recshuf.formats.lines.files import fill
from recshuf.interfaces import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutter import Cutter
    from recshuf.formats.lines.cutting import Bytes
    from recshuf.formats.lines.limit import RecordLimit

_GROWTH_PART = 4


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
        """See `Fragment`."""
        ends = self._cutter.find_ends(self._data, 0)
        for batch in cut_batches(self._data, 0, ends, self._max_records):
            self._limit.check(batch, self._position)
            yield batch


class BlockReader:
    """Cuts the bytes of a reader into blocks of whole records.

    Parameters
    ----------
    position
        Byte of the (decompressed) input at which the reader stands, the start of a record.
    """

    def __init__(
        self, reader: ByteReader, position: int, cutter: Cutter, limit: RecordLimit, block_bytes: int
    ) -> None:
        self._reader = reader
        self._position = position
        self._cutter = cutter
        self._separator = cutter.separator
        self._limit = limit
        self._block_bytes = block_bytes
        self._rest: Bytes = np.empty(0, np.uint8)
        self._is_ended = False

    def read_blocks(self) -> Iterator[tuple[Bytes, int]]:
        """Yield blocks and their positions in the input. Only a block of one record exceeds the block size."""
        while not self._is_ended:
            data, stop = self._read_block()
            if stop:
                # A small block must not keep a large buffer alive.
                yield data[:stop].copy() if stop < data.size // 2 else data[:stop], self._position
            self._position += stop

    def _read_block(self) -> tuple[Bytes, int]:
        """Return a buffer and the end of its last whole record; the rest is kept for the next block."""
        kept = self._rest.size
        data = np.empty(max(self._block_bytes, 2 * kept) + len(self._separator), np.uint8)
        data[:kept] = self._rest
        filled = self._fill(data, kept)
        stop = self._cutter.find_last_end(data[:filled])
        while not stop and not self._is_ended:
            if filled > self._limit.max_bytes:
                raise self._limit.exceeded(self._position)
            # In place where the system can move pages, so that a long record is in memory once.
            data.resize(data.size + max(self._block_bytes, data.size // _GROWTH_PART), refcheck=False)
            filled = self._fill(data, filled)
            stop = self._cutter.find_last_end(data[:filled])
        if self._is_ended and stop < filled:
            filled = stop = self._terminate(data, stop, filled)
        self._rest = data[stop:filled].copy()
        return data, stop

    def _fill(self, data: Bytes, filled: int) -> int:
        """Read until `data` has room for one separator only, and return the bytes filled."""
        room = data.size - len(self._separator)
        count = fill(self._reader, data.data[filled:room])
        self._is_ended = filled + count < room
        return filled + count

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        """Put the separator behind a last record that lacks it, and return the new end."""
        stop = end + len(self._separator)
        data[end:stop] = np.frombuffer(self._separator, np.uint8)
        if find_first(data[:stop], self._separator, begin) != end:
            raise InputError(
                self._limit.name,
                "the last record has no separator, and would end earlier with one appended: its end is part of a separator",
                place=f"byte {self._position + begin}",
                remedy="append the separator to the file",
            )
        return stop


def skip_bytes(reader: ByteReader, count: int) -> None:
    """Read and drop the next `count` bytes."""
    view = memoryview(bytearray(min(count, 1 << 20)))
    while count and (skipped := reader.readinto(view[:count])):
        count -= skipped
