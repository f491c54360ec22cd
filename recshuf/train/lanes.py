"""The lanes of global batches: streams of the records, or tokens, of stores, and how many of each come next.

A stream is a lane of a store, epoch after epoch. `RecordLane` knows from the step how many rows of each store come before.
`TokenLane` merges documents by their *tags*: the tokens before a document in its stream, since the weights are the present
ones, divided by the weight of its store. So no store is ahead of another by more than a document. Where a stream stands is
found from the tokens of groups, and from reading the last one or two of each store.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.records.arrays import has_offsets, view_offsets
from recshuf.train.documents import lack_tokens
from recshuf.train.loading import find_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.piles.groups import Groups
    from recshuf.train.documents import TokenCounter
    from recshuf.train.loading import GroupSource
    from recshuf.train.weights import Mixture, RecordShares, Stretch


class Position(NamedTuple):
    """Where a lane of a store stands."""

    epoch: int
    group: int
    """Number of the group in the epoch; 0 also stands for the first one of a lane."""
    rows: int
    """Records, or tokens, before it in the group."""


def find_position(
    open_groups: Callable[[int], Groups], counter: TokenCounter, lane: int, lanes: int, epoch: int, rows: int
) -> Position:
    """Return where a lane stands so many records, or tokens, after the beginning of an epoch."""
    total = counter.total if lanes == 1 else 0
    passed, rows = divmod(rows, total) if total else (0, rows)
    first, epoch = epoch, epoch + passed
    while True:
        groups = open_groups(epoch)
        numbers = find_lane(groups, epoch, lane, lanes)
        counts = counter.count(groups, numbers, rows)
        ends = np.cumsum(counts)
        if rows < ends[-1]:
            at = int(np.searchsorted(ends, rows, side="right"))
            return Position(epoch, int(numbers[at]), rows - int(ends[at] - counts[at]))
        if not ends[-1] and epoch > first:
            raise lack_tokens()
        rows, epoch = rows - int(ends[-1]), epoch + 1


class Place(NamedTuple):
    """The beginning of a group in a lane of a store."""

    epoch: int = 0
    group: int = 0
    """Its number; 0 also stands for the first one of a lane."""
    rows: int = 0
    """Records before the group, since epoch 0."""
    tokens: int = 0
    """Tokens before the group, since epoch 0."""


class StoreMap:
    """Where the groups of the lanes of a store begin.

    Parameters
    ----------
    lanes
        Number of lanes.
    counts
        Number of tokens in each region, shape ``(K, M)``.
    """

    def __init__(self, source: GroupSource, lanes: int, counts: NDArray[np.int64]) -> None:
        self._source, self._lanes, self._counts = source, lanes, counts

    def settle(self, lane: int, place: Place, row: int) -> Place:
        """Return the group that a record of a lane is in, which is not before a place."""
        walk = self.walk_groups(lane, place)
        while (following := next(walk)).rows <= row:
            place = following
        return place

    def walk_epochs(self, lane: int, place: Place) -> Iterator[Place]:
        """Yield the beginnings of the epochs after a place."""
        while True:
            rows, tokens = self._count_epoch(lane, place.epoch, place.group)
            place = Place(place.epoch + 1, 0, place.rows + rows, place.tokens + tokens)
            yield place

    def walk_groups(self, lane: int, place: Place) -> Iterator[Place]:
        """Yield the beginnings of the groups after a place."""
        epoch, first, rows, tokens = place
        while True:
            numbers, sizes, lengths = self._open(lane, epoch, first)
            sums = zip(np.cumsum(sizes).tolist(), np.cumsum(lengths).tolist(), strict=True)
            for number, (row, token) in zip(numbers[1:].tolist(), sums, strict=False):
                yield Place(epoch, number, rows + row, tokens + token)
            rows, tokens = rows + int(sizes.sum()), tokens + int(lengths.sum())
            epoch, first = epoch + 1, 0
            yield Place(epoch, 0, rows, tokens)

    def _count_epoch(self, lane: int, epoch: int, first: int = 0) -> tuple[int, int]:
        """Return the number of records and tokens of a lane of an epoch, from a group on."""
        if self._lanes == 1 and not first:
            return int(self._source.piles.counts.sum()), int(self._counts.sum())
        _, sizes, lengths = self._open(lane, epoch, first)
        return int(sizes.sum()), int(lengths.sum())

    def _open(
        self, lane: int, epoch: int, first: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return numbers, records and tokens of the groups of a lane of an epoch that have records, from one on."""
        groups = self._source.open(epoch)
        numbers = find_lane(groups, epoch, lane, self._lanes)
        numbers = numbers[numbers >= first]
        return numbers, groups.sizes[numbers], groups.sum(self._counts)[numbers]


class Stream:
    """The records, or tokens, of a lane of a store from a place on. Nothing is read before it is needed.

    Parameters
    ----------
    open_tables
        Gives the tables, or tokens of groups, and how many of the first rows to skip.
    measured
        Number of the column whose values have lengths that count, if any.
    is_extra
        Whether nobody wants its values.
    """

    def __init__(
        self,
        open_tables: Callable[[], tuple[Generator[Any], int]],
        measured: int | None = None,
        is_extra: bool = False,
    ) -> None:
        self._open_tables, self._measured, self._is_extra = open_tables, measured, is_extra
        self._tables: Generator[Any] | None = None
        self._held: deque[Any] = deque()
        self._behind = 0

    def load(self) -> NDArray[np.int64]:
        """Hold the next table; return the lengths of its values that count."""
        if self._tables is None:
            self._tables, skipped = self._open_tables()
            self._behind += skipped
        table, lengths = next(self._tables), np.zeros(0, np.int64)
        if self._measured is not None:
            lengths = _measure(table.column(self._measured))
            table = table.remove_column(self._measured) if self._is_extra else table
        self._held.append(table)
        return lengths

    def take(self, skip: int, count: int) -> list[Any]:
        """Return the next rows in parts, after some that are skipped."""
        self._behind += skip
        parts: list[Any] = []
        while True:
            while self._held and self._behind >= self._held[0].num_rows:
                self._behind -= self._held.popleft().num_rows  # freed before the next one is there
            if not count:
                return parts
            if self._held:
                part = self._held[0].slice(self._behind, count)
                parts.append(part)
                self._behind, count = self._behind + part.num_rows, count - part.num_rows
            else:
                self.load()

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._tables is not None:
            self._tables.close()
        self._held.clear()


def _measure(column: pa.Array) -> NDArray[np.int64]:
    """Return the length of each value of text, binary, lists or maps as stores count it."""
    if has_offsets(column.type):
        return np.diff(view_offsets(column)).astype(np.int64)
    return np.full(len(column), column.type.list_size, np.int64)


class RecordLane:
    """A lane where the step alone decides how many rows of each store come next.

    Parameters
    ----------
    step
        Where the lane begins.
    open_stream
        Returns the stream of a store from a row on.
    """

    def __init__(self, shares: RecordShares, step: int, open_stream: Callable[[int, int], Stream]) -> None:
        self._shares, self._step = shares, step
        self._before = shares.before(step)
        self.streams = [open_stream(store, row) for store, row in enumerate(self._before)]

    def count(self) -> list[int]:
        """Return how many rows of each store the next batch takes."""
        if len(self.streams) == 1:  # of a small batch, the numbers below would take as long as all else
            return [self._shares.rows]
        self._step += 1
        after = self._shares.before(self._step)
        counts = [new - old for new, old in zip(after, self._before, strict=True)]
        self._before = after
        return counts


def read_lanes(
    mixture: Mixture,
    open_lane: Callable[[int], RecordLane | TokenLane],
    epoch: int,
    steps: Iterable[int],
    every: int,
    unit: int = 1,
) -> Generator[tuple[int, list[Any], list[NDArray[np.intp]]]]:
    """Yield steps, this rank's part of the batch of each, by lane and store, and the store of each row in order, by lane.

    Lanes are opened by their numbers; their threads end with the iterator.

    Parameters
    ----------
    steps
        One of `every`.
    unit
        Records, or tokens, of a row.
    """
    lanes: dict[int, RecordLane | TokenLane] = {}
    try:
        for number in mixture.sharding.own_lanes:
            lanes[number] = open_lane(number)
        left_out = 0
        for step in steps:
            for lane in lanes.values():
                for _ in range(left_out):
                    for stream, count in zip(lane.streams, lane.count(), strict=True):
                        stream.take(count * unit, 0)
            yield step, *_take(mixture, lanes, epoch, step, unit)
            left_out = every - 1
    finally:
        for lane in lanes.values():
            for stream in lane.streams:
                stream.close()


def _take(
    mixture: Mixture, lanes: dict[int, RecordLane | TokenLane], epoch: int, step: int, unit: int
) -> tuple[list[Any], list[NDArray[np.intp]]]:
    rows = mixture.sharding.own_rows
    parts: list[Any] = []
    labels: list[NDArray[np.intp]] = []
    for number, lane in lanes.items():
        counts = lane.count()
        if len(counts) == 1:
            labels.append(np.zeros(rows.stop - rows.start, np.intp))
            skipped, taken = [rows.start], [rows.stop - rows.start]
        else:
            drawn = mixture.draw_labels(number, epoch, step, counts)
            labels.append(drawn[rows])
            skipped = np.bincount(drawn[: rows.start], minlength=len(counts)).tolist()
            taken = np.bincount(labels[-1], minlength=len(counts)).tolist()
        for stream, count, skip, take in zip(lane.streams, counts, skipped, taken, strict=True):
            parts += stream.take(skip * unit, take * unit)
            stream.take((count - skip - take) * unit, 0)
    return parts, labels


class _Documents:
    """The documents of a store that are loaded, and not yet merged."""

    def __init__(self, stream: Stream, place: Place) -> None:
        self.stream, self.place = stream, place
        self.row, self.token = place.rows, place.tokens
        """Where the next document begins."""
        self.begins = np.zeros(0, np.int64)
        """Tokens before each document."""
        self.end = place.tokens
        """Tokens before the first one that is not loaded."""

    def load(self) -> None:
        lengths = self.stream.load()
        ends = self.end + np.cumsum(lengths)
        self.begins, self.end = np.concatenate([self.begins, ends - lengths]), int(ends[-1])

    def drop(self, count: int) -> None:
        """Go on behind the next documents."""
        self.begins, self.row = self.begins[count:], self.row + count
        self.token = int(self.begins[0]) if len(self.begins) else self.end


class TokenLane:
    """A lane where the tokens of its documents decide which store comes next.

    Parameters
    ----------
    stretches
        Starts in steps.
    rows
        Documents of a batch.
    open_stream
        Returns the stream of a store from the group of a place on.
    step
        Where the lane begins.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        rows: int,
        maps: Sequence[StoreMap],
        open_stream: Callable[[int, Place], Stream],
        lane: int,
        step: int,
    ) -> None:
        self._rows, self._maps, self._open_stream, self._lane = rows, maps, open_stream, lane
        self._step, self._later = step, deque(stretches)
        self._documents = [_Documents(open_stream(store, Place()), Place()) for store in range(len(maps))]
        self._begin()
        while self._later and self._later[0].start < step:
            self._jump((self._later[0].start - self._start) * rows)
            self._begin()
        self._jump((step - self._start) * rows)

    @property
    def streams(self) -> list[Stream]:
        return [documents.stream for documents in self._documents]

    def count(self) -> list[int]:
        """Return how many documents of each store the next batch takes."""
        if self._later and self._later[0].start == self._step:
            self._begin()
        self._step += 1
        return self._merge(self._rows)

    def _begin(self) -> None:
        self._start, weights = self._later.popleft()
        self._weights = {store: float(weight) for store, weight in enumerate(weights) if weight}
        self._origins = [documents.token for documents in self._documents]

    def _merge(self, rows: int) -> list[int]:
        """Return how many of the next documents are of each store, and drop these."""
        active = [
            (self._documents[store], self._origins[store], weight) for store, weight in self._weights.items()
        ]
        while True:
            tags = [(one.begins[:rows] - origin) / weight for one, origin, weight in active]
            ends = [(one.end - origin) / weight for one, origin, weight in active]
            first = ends.index(min(ends))
            # What is not loaded comes after everything below this end, and after the same tag of this store or one before it:
            # documents without tokens, perhaps all of a lane.
            sizes = [
                int(np.searchsorted(own, ends[first], "right" if place <= first else "left"))
                for place, own in enumerate(tags)
            ]
            if sum(sizes) >= rows:
                break
            active[first][0].load()
        joined = np.concatenate([own[:size] for own, size in zip(tags, sizes, strict=True)])
        taken = np.repeat([*self._weights], sizes)[np.argsort(joined, kind="stable")[:rows]]
        counts: list[int] = np.bincount(taken, minlength=len(self._documents)).tolist()
        for documents, count in zip(self._documents, counts, strict=True):
            documents.drop(count)
        return counts

    def _jump(self, rows: int) -> None:
        """Go on behind the next documents. What surely lies before is not read, epochs and groups."""
        starts = {store: self._documents[store].row for store in self._weights}
        for is_whole in (True, False):
            self._pass(starts, rows, is_whole)
        done = sum(self._documents[store].row - row for store, row in starts.items())
        if rows > done:
            for stream, count in zip(self.streams, self._merge(rows - done), strict=True):
                stream.take(count, 0)
        for store in self._weights:
            documents = self._documents[store]
            documents.place = self._maps[store].settle(self._lane, documents.place, documents.row)

    def _pass(self, starts: dict[int, int], rows: int, is_whole: bool) -> None:
        """Pass the epochs, or groups, of stores that surely lie in so many documents after the rows of `starts`.

        What ends with the smallest tag is next. No document before that end comes after one behind what any store is in.
        """
        walks, ends, queue = {}, {}, []
        for store in starts:
            walker = self._maps[store].walk_epochs if is_whole else self._maps[store].walk_groups
            walks[store] = walker(self._lane, self._documents[store].place)
            ends[store] = next(walks[store])
            queue.append((self._find_tag(store, ends[store]), store))
        heapq.heapify(queue)
        most, passed = sum(ends[store].rows - row for store, row in starts.items()), {}
        while most <= rows:
            store = queue[0][1]
            passed[store], ends[store] = ends[store], next(walks[store])
            most += ends[store].rows - passed[store].rows
            heapq.heapreplace(queue, (self._find_tag(store, ends[store]), store))
        for store, place in passed.items():
            self._documents[store].stream.close()
            self._documents[store] = _Documents(self._open_stream(store, place), place)

    def _find_tag(self, store: int, place: Place) -> float:
        return (place.tokens - self._origins[store]) / self._weights[store]
