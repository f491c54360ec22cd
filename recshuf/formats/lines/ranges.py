"""Uncompressed files of lines, read as independent byte ranges by any number of threads.

The records of a range are those that start in it::

    range      |begin ............ end|
    file    ...rec1|record2|rec3|record4|...
    read          ^-------- data --------^        one byte before, some more after
    records        |record2|rec3|record4|

A record starts at the start of the file and after every separator; the byte before `begin` tells whether one starts
at `begin`. Separators have one byte: with longer ones, the starts of records depend on all bytes before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.lines.cutting import (
    MOST_END_BYTES,
    cut_batches,
    end_line,
    find_content_end,
    find_ends,
    find_first,
    find_last_end,
    make_batch,
)
from recshuf.interfaces import Fragment, Joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, Cutter, RecordLimit


READ_ON_BYTES = 1 << 16
"""Bytes read after a range at once, to complete its last record."""
_SEARCH_BYTES = 1 << 20


class RangeFragment(Fragment):
    """The records that start in bytes ``begin`` to ``end`` of a file, at or after its first record."""

    def __init__(
        self,
        lines: LineInput,
        begin: int,
        end: int,
        cutter: Cutter,
        limit: RecordLimit,
        max_records: int,
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
        data = self._file.read_lines(begin, self._find_record_end(begin), self._cutter)
        batch = make_batch(data, np.array([0, data.size], np.int64))
        self._limit.check(batch, begin)
        return batch

    def _find_record_end(self, begin: int) -> int:
        """Return the end of a record, searched in small pieces before memory for the record is taken."""
        handle = self._file.open()
        try:
            for at in range(self._end, self._file.size, _SEARCH_BYTES):
                place = handle.read_at(at, _SEARCH_BYTES).find(self._separator)
                if place >= 0:
                    return at + place + 1
                if at - begin > self._limit.max_bytes:
                    raise self._limit.exceeded(begin)
        finally:
            handle.close()
        return self._file.size


def read_files(
    inputs: Sequence[LineInput],
    cutter: Cutter,
    max_records: int,
    max_record_bytes: int,
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
    end = begin + _count_bytes(lines)
    drop_page_cache = cutter.options.drop_page_cache
    lines.require_file().read_into(data.data[begin:end], lines.data_begin, drop_page_cache=drop_page_cache)
    if cutter.drops_blank_end:
        end = begin + find_content_end(data[begin:end])
    if begin == end:
        return end
    last = cutter.find_last_end(data[begin:end]) if data[end - 1] != cutter.separator[0] else 0
    before = data[begin : begin + last][-MOST_END_BYTES:].tobytes() or lines.header or b""
    return end_line(data, end, before, cutter.separator)
