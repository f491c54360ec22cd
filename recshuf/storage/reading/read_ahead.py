"""Objects read in few large ranges, several of them in flight.

An object is fetched in segments. A read that continues a segment makes the next one four times as large, up to
`PART_BYTES`; from there on, the following ones are fetched ahead. Other reads fetch `UNIT_BYTES`.

Of ranges that will be read in order, two segments each fit in memory: the one that is read, and the next. A segment that
has been read to its end is the first to be dropped.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import InputError, MissingInputError
from recshuf.storage.requests import CHANGED, REMEDY, ChangedObject, MissingObject, is_strong
from recshuf.system.threads import TransientPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from recshuf.interfaces import Stamp
    from recshuf.storage.requests import Store


Range = tuple[int, int]
"""Bytes ``begin:end``."""
PART_BYTES = 16 << 20
"""Bytes of a request of many; `divide` lets it have a quarter more."""
UNIT_BYTES = 1 << 19
"""Least bytes of a request, but at the end of an object."""
_AHEAD_PARTS = 2
"""Segments in flight behind the one that is read."""
WORKER_BYTES = 128 << 20
"""Memory for segments, for each worker."""
_GROWTH = 4
_LARGE_BYTES = 2 << 20
"""A read of so many bytes is taken for one of many in order."""
_GAP_BYTES = 1 << 20
"""Expected ranges that are so close together are fetched together."""


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes ``begin:end`` of an object, in flight or in memory."""

    begin: int
    end: int
    content: Future[memoryview]
    wanted: int
    """Bytes that it was to have; it has fewer if another segment follows."""

    @property
    def size(self) -> int:
        return self.end - self.begin


class SegmentCache:
    """The segments of all objects of a run; those that were used least recently are dropped."""

    def __init__(self, most_bytes: int, workers: int) -> None:
        self.reader_bytes = most_bytes // workers
        """Memory for segments of each of the threads."""
        self.part_bytes = max(UNIT_BYTES, min(PART_BYTES, self.reader_bytes // 4))
        """Most bytes of a segment."""
        self._most_bytes = most_bytes
        self._order: OrderedDict[Segment, SegmentedObject] = OrderedDict()
        """The one to be dropped next is the first."""
        self.held_bytes = 0
        self._pool = TransientPool(max(8, min(32, 4 * workers)), "ranges")
        self.lock = threading.RLock()
        """Guards the cache and its objects."""

    def add(self, owner: SegmentedObject, begin: int, end: int) -> Segment:
        """Return a new segment, whose request waits for its turn; call with `lock` held."""
        segment = Segment(begin, end, self._pool.submit(partial(owner.fetch, begin, end)), end - begin)
        while self.held_bytes and self.held_bytes + segment.size > self._most_bytes:
            dropped, other = self._order.popitem(last=False)
            self.held_bytes -= dropped.size
            other.drop(dropped)
        self._order[segment] = owner
        self.held_bytes += segment.size
        return segment

    def touch(self, segment: Segment, *, is_last: bool = True) -> None:
        """Let a segment be the last one to be dropped, or the first; call with `lock` held."""
        if segment in self._order:
            self._order.move_to_end(segment, is_last)


class SegmentedObject:
    """One object, as it was when it was listed. Many threads may read it."""

    def __init__(self, name: str, key: str, stamp: Stamp, store: Store, cache: SegmentCache) -> None:
        self.stamp = stamp
        self._name = name
        self._key = key
        self._store = store
        self._cache = cache
        self.ahead_bytes = cache.reader_bytes
        """Most bytes that `expect` fetches at once."""
        self._segments: list[Segment] = []
        """In order; they do not overlap."""

    def fetch(self, begin: int, end: int) -> memoryview:
        try:
            return memoryview(self._store.get(self._key, begin, end, self.stamp))
        except ChangedObject as error:
            raise InputError(self._name, CHANGED, remedy=REMEDY) from error
        except MissingObject as error:
            raise MissingInputError(self._name, f"{CHANGED}: it is gone", remedy=REMEDY) from error

    @property
    def is_bound(self) -> bool:
        return self._store.is_bound and is_strong(self.stamp.etag)

    def find_stamp(self) -> Stamp:
        """Return the stamp that the object has now; FileNotFoundError if it is gone."""
        stamp = self._store.find(self._key)
        if stamp is None:
            raise FileNotFoundError(self._name)
        return stamp

    def readinto_at(self, offset: int, view: memoryview, expected: Sequence[Range]) -> int:
        """Fill `view`, or less at the end of the object; return the number of bytes.

        `expected` are ranges that will be read, each of them in order; they do not overlap.
        """
        end = min(offset + len(view), self.stamp.size)
        at = offset
        while at < end:
            with self._cache.lock:
                segment = self._find(at) or self._begin(at, end, expected)
                self._cache.touch(segment)
                self._read_ahead(segment, end, expected)
            stop = min(segment.end, end)
            view[at - offset : stop - offset] = segment.content.result()[
                at - segment.begin : stop - segment.begin
            ]
            if stop == segment.end <= _find_range(expected, segment.begin)[1]:
                with self._cache.lock:
                    self._cache.touch(segment, is_last=False)
            at = stop
        return max(0, at - offset)

    def expect(self, ranges: Iterable[Range]) -> list[Range]:
        """Return ranges that will be read, in order; fetches all of them at once if memory allows, else a part of each."""
        size, most = self.stamp.size, self.ahead_bytes
        inside = [(begin, min(end, size)) for begin, end in sorted(ranges) if 0 <= begin < min(end, size)]
        expected = _join(inside)
        with self._cache.lock:
            if sum(end - begin for begin, end in expected) <= most:
                for begin, end in expected:
                    self._fill(begin, end, divide(end - begin, self._cache.part_bytes), end)
                return expected
            part = self._share(inside)
            if len(inside) * part <= most:
                for begin, end in inside:
                    self._fill(begin, min(end, begin + part), part, end)
        return inside

    def release(self, ranges: Iterable[Range]) -> None:
        """Let the segments in some ranges be dropped first, as they will hardly be read again."""
        with self._cache.lock:
            for begin, end in ranges:
                for segment in [held for held in self._segments if begin <= held.begin and held.end <= end]:
                    self._cache.touch(segment, is_last=False)

    def drop(self, segment: Segment) -> None:
        """Drop a segment; call with the lock of the cache held."""
        self._segments.remove(segment)

    def _find(self, at: int) -> Segment | None:
        index = self._count_before(at) - 1
        if index >= 0 and at < self._segments[index].end:
            return self._segments[index]
        return None

    def _count_before(self, at: int) -> int:
        return bisect_right(self._segments, at, key=lambda segment: segment.begin)

    def _begin(self, at: int, end: int, expected: Sequence[Range]) -> Segment:
        """Return a new segment that holds byte `at`, for a read up to `end`."""
        part = self._cache.part_bytes
        before = self._segments[index] if (index := self._count_before(at) - 1) >= 0 else None
        least, most = _find_range(expected, at)
        if least < most:
            share = self._share(expected)
            if at == least or (before is not None and at == before.end):
                return self._add(at, min(most, at + share))
        if before is not None and at - before.end < UNIT_BYTES:
            begin = before.end
            return self._add(begin, begin + min(part, max(_GROWTH * before.wanted, end - begin)))
        if end - at >= min(_LARGE_BYTES, part):
            return self._add(at, at + part)
        begin = at - at % UNIT_BYTES
        if end == self.stamp.size:
            begin = min(begin, max(0, end - UNIT_BYTES))
        if before is not None:
            begin = max(begin, before.end)
        return self._add(begin, max(begin + UNIT_BYTES, end))

    def _share(self, expected: Sequence[Range]) -> int:
        return max(UNIT_BYTES, min(self._cache.part_bytes, self._cache.reader_bytes // (2 * len(expected))))

    def _count_ahead(self, expected: Sequence[Range]) -> int:
        share = self._share(expected)
        long = sum(end - begin > 2 * share for begin, end in expected)
        rest = sum(end - begin for begin, end in expected if end - begin <= 2 * share)
        fitting = (self._cache.reader_bytes - rest) // (max(1, long) * share) - 1
        return max(1, min(_AHEAD_PARTS, fitting))

    def _read_ahead(self, segment: Segment, end: int, expected: Sequence[Range]) -> None:
        """Begin to fetch what follows a segment of the full size, and the rest of a read up to `end`."""
        part, at = self._cache.part_bytes, segment.end
        _, most = _find_range(expected, at - 1)
        if most and segment.wanted >= self._share(expected):
            share = self._share(expected)
            reach = at + (self._count_ahead(expected) - 1) * share + 1
            self._fill(at, max(end, min(reach, most)), share, max(end, most))
        elif segment.wanted >= part:
            self._fill(at, max(end, at + (_AHEAD_PARTS - 1) * part + 1), part)
        else:
            self._fill(at, end, part if end - at >= _LARGE_BYTES else min(part, _GROWTH * segment.wanted))

    def _fill(self, begin: int, stop: int, part: int, limit: int | None = None) -> None:
        """Add segments of `part` bytes, up to `limit`, for the bytes up to `stop` that have none; the last one may end after `stop`."""
        limit = self.stamp.size if limit is None else limit
        while begin < min(stop, self.stamp.size):
            held = self._find(begin) or self._add(begin, min(begin + part, limit))
            self._cache.touch(held)
            begin = held.end

    def _add(self, begin: int, end: int) -> Segment:
        wanted, index = end - begin, self._count_before(begin)
        if index < len(self._segments) and self._segments[index].begin < end:
            end = self._segments[index].begin
        segment = self._cache.add(self, begin, min(end, self.stamp.size))
        segment.wanted = wanted
        self._segments.insert(self._count_before(begin), segment)
        return segment


def divide(size: int, part_bytes: int) -> int:
    """Return the size of equal segments of a range: at most a quarter more than `part_bytes`, as few as possible.

    >>> divide(33, 16), divide(40, 16), divide(41, 16)
    (17, 20, 14)
    """
    count = -(-size // (part_bytes + part_bytes // 4))
    return -(-size // max(1, count))


def _find_range(ranges: Sequence[Range], at: int) -> Range:
    """Return the range that holds a byte; an empty one if none does."""
    index = bisect_right(ranges, at, key=lambda span: span[0]) - 1
    return ranges[index] if index >= 0 and at < ranges[index][1] else (0, 0)


def _join(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges, given in order, those joined that are close together."""
    joined: list[Range] = []
    for begin, end in ranges:
        if joined and begin - joined[-1][1] <= _GAP_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined
