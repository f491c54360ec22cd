"""Uncompressed files of lines, read as independent byte ranges by any number of threads.

The records of a range are those that start in it::

    range      |begin ............ end|
    file    ...rec1|record2|rec3|record4|...
    read          ^-------- data --------^        one byte before, some more after
    records        |record2|rec3|record4|

A record starts at the start of the file and after every separator; the byte before `begin` tells whether one starts
at `begin`. Separators have one byte: with longer ones, the starts of records depend on all bytes before them.

Small uncompressed files of lines, read into one buffer one after the other.

Searching one file costs as much as 100 kB of lines, so the buffer of thousands of files is searched as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.lines.cutting import cut_batches, find_ends, find_first, find_last_end, make_batch
from recshuf.interfaces import Fragment, Joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, Cutter, RecordLimit
    from recshuf.interfaces import ReadOptions


def read_files(
    inputs: Sequence[LineInput],
    cutter: Cutter,
    max_records: int,
    max_record_bytes: int,
    *,
    drop_page_cache: bool,
) -> Joined | None:
    """Return all records of uncompressed files with a separator of one byte.

    None if there are more than `max_records`, or a record is longer than allowed or goes on behind its file.
    """
    edges = [0]
    data = np.empty(sum(_count_bytes(one) + 1 for one in inputs), np.uint8)
    for one in inputs:
        edges.append(_read_file(one, data, edges[-1], cutter.separator, drop_page_cache=drop_page_cache))
    found = [np.zeros(1, np.int64)]
    count = 0
    for ends in cutter.find_ends(data[: edges[-1]], 0):
        found.append(ends)
        count += ends.size
        if count > max_records:
            return None
    offsets = np.concatenate(found)
    if edges[-1] > max_record_bytes and int(np.diff(offsets).max()) > max_record_bytes:
        return None
    places = np.searchsorted(offsets, edges)
    if places[-1] == offsets.size or (offsets[places] != edges).any():
        return None
    rows = np.diff(places)
    return Joined(make_batch(data, offsets), rows.tolist())


def _count_bytes(one: LineInput) -> int:
    assert one.file is not None  # noqa: S101 # streams are not joined
    return max(0, one.file.size - one.data_begin)


def _read_file(one: LineInput, data: Bytes, begin: int, separator: bytes, *, drop_page_cache: bool) -> int:
    """Read the records of a file into `data` from `begin` on, adding a missing last separator; return their end."""
    assert one.file is not None  # noqa: S101 # see above
    end = begin + _count_bytes(one)
    handle = one.file.open()
    try:
        one.file.read_at(handle, data.data[begin:end], one.data_begin)
        if drop_page_cache:
            handle.drop_pages(one.data_begin, end - begin)
    finally:
        handle.close()
    if begin < end and data[end - 1] != separator[0]:
        data[end] = separator[0]
        end += 1
    return end


READ_ON_BYTES = 1 << 16
"""Bytes read after a range at once, to complete its last record."""
_SEARCH_BYTES = 1 << 20


class RangeFragment(Fragment):
    """The records that start in bytes ``begin`` to ``end`` of a file.

    Parameters
    ----------
    begin, end
        Byte range of the file, at or after the first record.
    max_records
        Approximate limit on the records of a batch.
    """

    def __init__(
        self,
        lines: LineInput,
        begin: int,
        end: int,
        options: ReadOptions,
        limit: RecordLimit,
        max_records: int,
    ) -> None:
        assert lines.file is not None  # noqa: S101 # ranges are those of files
        self._file = lines.file
        self._begin = begin
        self._end = end
        self._looks_back = begin > lines.data_begin
        self._options = options
        self._limit = limit
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        data = self._read()
        origin = self._begin - self._looks_back
        first = find_first(data, self._options.separator, 0) + 1 if self._looks_back else 0
        inside = self._end - origin
        if (self._looks_back and not first) or first >= inside:
            return
        stop = find_first(data, self._options.separator, inside - 1) + 1
        last = stop or first + find_last_end(data[first:inside], self._options.separator)
        ends = find_ends(data[:last], first, self._options.separator)
        for batch in cut_batches(data[:last], first, ends, self._max_records):
            self._limit.check(batch, origin)
            yield batch
        if not stop:
            del data
            yield self._read_long_record(origin + last)

    def _read(self) -> Bytes:
        stop = min(self._end + READ_ON_BYTES, self._file.size)
        return self._read_terminated(self._begin - self._looks_back, stop)

    def _read_terminated(self, begin: int, stop: int) -> Bytes:
        """Return these bytes of the file, a missing last separator of the file appended."""
        data = np.empty(stop - begin + len(self._options.separator), np.uint8)
        size = stop - begin
        handle = self._file.open()
        try:
            self._file.read_at(handle, data.data[:size], begin)
            if self._options.drop_page_cache:
                handle.drop_pages(begin, size)
        finally:
            handle.close()
        if stop == self._file.size and data[size - 1] != self._options.separator[0]:
            data[size] = self._options.separator[0]
            return data
        return data[:size]

    def _read_long_record(self, begin: int) -> pa.RecordBatch:
        """Return a batch of the last record of the range, which extends far beyond the range."""
        data = self._read_terminated(begin, self._find_record_end(begin))
        batch = make_batch(data, np.array([0, data.size], np.int64))
        self._limit.check(batch, begin)
        return batch

    def _find_record_end(self, begin: int) -> int:
        """Return the end of a record, searched in small pieces before memory for the record is taken."""
        handle = self._file.open()
        try:
            for at in range(self._end, self._file.size, _SEARCH_BYTES):
                found = handle.read_at(at, _SEARCH_BYTES).find(self._options.separator)
                if found >= 0:
                    return at + found + 1
                if at - begin > self._limit.max_bytes:
                    raise self._limit.exceeded(begin)
        finally:
            handle.close()
        return self._file.size
