"""Pass 2: loads pile after pile, orders each with an index array, and writes the shards.

Shard k holds records ``bounds[k]`` to ``bounds[k + 1]`` of the shuffled order. A task writes consecutive
shards one after the other; a pile on the border of two tasks is loaded by both. What a shard is given is digested
after it was ordered, and compared with what was thrown on the piles.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError, Stopped
from recshuf.records.byte_sizes import count_bytes
from recshuf.records.digests import Digest, Digests, sum_digests
from recshuf.records.keys import MAX_PILES, sort_by_key
from recshuf.system.threads import Pool, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, Sink
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.piles.reader import PileReader


JOINED_BYTES = 2 << 20
"""Up to this size, piles cost more in calls than in bytes."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Piles that follow each other, small enough to be ordered at once; mostly one."""

    store: PileReader
    piles: range
    first: int
    """Place of the first record in the shuffled order."""
    count: int
    """Number of records."""
    byte_count: int
    """Bytes that they take."""

    def suits(self, after: Unit, most_bytes: int) -> bool:
        """Tell whether the next unit can be joined, and has no more bytes than that together with this one."""
        return (
            self.store is after.store
            and self.byte_count + after.byte_count <= most_bytes
            and self.store.is_resident(self.piles.start) == self.store.is_resident(after.piles.start)
        )

    def join(self, after: Unit) -> Unit:
        """Return the unit of this one and the next."""
        piles = range(self.piles.start, after.piles.stop)
        return Unit(
            self.store, piles, self.first, self.count + after.count, self.byte_count + after.byte_count
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Records in shuffled order that all go to one shard, in table form if there is a decoder."""

    batch: pa.RecordBatch
    digest: Digest
    """Of the records in native form."""


def load_ordered(unit: Unit, edges: Sequence[int], decoder: Decoder | None) -> list[Piece]:
    """Return the records of a unit in shuffled order, a piece for each range ``edges[k]:edges[k + 1]`` of them.

    Raises
    ------
    CheckError
        When the pile does not hold the records that were thrown on it.
    PileError
        When they do not read back as they were written.
    """
    records = unit.store.load(unit.piles)
    if records is None:
        raise RuntimeError(f"piles {unit.piles} are empty")
    records = records.take(sort_by_key(records.keys))
    digests = Digests.find(records, np.array(edges))
    batch = records.batch
    del records
    if decoder is not None:
        batch = decoder.decode(batch)
    return [
        Piece(batch.slice(start, stop - start), digest)
        for (start, stop), digest in zip(pairwise(edges), digests, strict=True)
    ]


def iterate_units(
    store: PileReader,
    first: int,
    stop: int,
    largest_bytes: int,
    joined_bytes: int = JOINED_BYTES,
    place: int = 0,
) -> Iterator[Unit | PileReader]:
    """Yield the units that cover records ``first`` to ``stop`` of the shuffled order.

    Piles of `joined_bytes` or less together are joined. A pile larger than `largest_bytes` is split; the store of its parts is yielded after their
    units: the caller closes it once it is through with everything that came before.
    """
    held: Unit | None = None
    for unit in _iterate_piles(store, first, stop, largest_bytes, joined_bytes, place):
        if not isinstance(unit, Unit):
            if held is not None:
                yield held
            held = None
            yield unit
        elif held is None:
            held = unit
        elif held.suits(unit, min(joined_bytes, largest_bytes)):
            held = held.join(unit)
        else:
            yield held
            held = unit
    if held is not None:
        yield held


def _iterate_piles(
    store: PileReader, first: int, stop: int, largest_bytes: int, joined_bytes: int, place: int
) -> Iterator[Unit | PileReader]:
    """Yield what `iterate_units` does, without joining piles of this store."""
    ends = place + np.cumsum(store.counts)
    for piles in store.runs(int(np.searchsorted(ends, first, side="right"))):
        begin = int(ends[piles.start] - store.counts[piles.start])
        count = int(ends[piles.stop - 1]) - begin
        if begin >= stop:
            return
        if not count:
            continue
        size = store.run_bytes(piles)
        if size <= largest_bytes or count == 1 or not store.key_range.shift:
            yield Unit(store, piles, begin, count, size)
            continue
        parts = store.split(piles, min(MAX_PILES, max(2, -(-2 * size // largest_bytes))))
        yield from iterate_units(parts, first, stop, largest_bytes, joined_bytes, begin)
        yield parts


class Gather:
    """Writes all shards from a filled pile store.

    Parameters
    ----------
    open_sink
        Opens the sink of shard number k.
    bounds
        First record of each shard in the shuffled order, and the end of the last.
    on_shard
        Called with the number of a shard and the digest of its records when it is written.
    finished
        Digests of the shards that an earlier run has written.
    joined_bytes
        Piles that follow each other are ordered together up to this size.
    """

    def __init__(
        self,
        store: PileReader,
        plan: Plan,
        bounds: Sequence[int],
        open_sink: Callable[[int], Sink],
        decoder: Decoder | None,
        progress: Progress,
        on_shard: Callable[[int, Digest], None] | None = None,
        finished: Mapping[int, Digest] | None = None,
        joined_bytes: int = JOINED_BYTES,
    ) -> None:
        self._joined_bytes = joined_bytes
        self._store = store
        self._plan = plan
        self._bounds = bounds
        self._open_sink = open_sink
        self._decoder = decoder
        self._progress = progress
        self._on_shard = on_shard
        self._written = dict(finished or {})
        self._stopped = threading.Event()
        self._giants = threading.Lock()

    def run(self) -> None:
        """Write every shard.

        Raises
        ------
        CheckError
            When the shards together were not given what was thrown on the piles.
        Exception
            The first error of any thread, after all threads have ended; open sinks have been aborted.
        """
        counts = self._store.counts
        runs = sum(bool(counts[piles.start : piles.stop].any()) for piles in self._store.runs())
        tasks = plan_tasks(len(self._bounds) - 1, self._plan.shard_writers, runs, self._written)
        with Pool(self._plan.gather_workers, "order") as loaders:
            writes = [partial(self._write_shards, task, loaders) for task in tasks]
            run_tasks("write", self._plan.shard_writers, writes, self._stopped.set)
        self._check_written()

    def _check_written(self) -> None:
        """Compare what all shards were given with what was thrown on the piles, where all of it is wanted."""
        if self._bounds[-1] != self._store.counts.sum():
            return
        found = sum_digests(self._written.values())
        given = self._store.digest(range(self._store.pile_count))
        if found != given:
            raise CheckError(
                f"gather: all shards: {found.compare(given)}; run again, and report this as a fault"
            )

    def _write_shards(self, shards: range, loaders: Pool) -> None:
        pieces = self._order(self._bounds[shards.start : shards.stop + 1], loaders)
        for shard in shards:
            wanted = self._bounds[shard + 1] - self._bounds[shard]
            digest = Digest()
            with self._open_sink(shard) as sink:
                while digest.records < wanted:
                    piece = next(pieces)
                    sink.write(piece.batch)
                    digest += piece.digest
                    self._progress.advance(piece.batch.num_rows, count_bytes(piece.batch))
                    del piece
                    if self._stopped.is_set():
                        raise Stopped
            self._finish_shard(shard, sink, digest)

    def _finish_shard(self, shard: int, sink: Sink, digest: Digest) -> None:
        """Make sure that a shard holds what it was meant to, and pass it on."""
        wanted = self._bounds[shard + 1] - self._bounds[shard]
        for count, what in ((digest.records, "given"), (sink.record_count, "written")):
            if count != wanted:
                raise CheckError(
                    f"gather: shard {shard}: {count:,} records {what}, {wanted:,} planned; run again, and report "
                    "this as a fault"
                )
        self._written[shard] = digest
        if self._on_shard is not None:
            self._on_shard(shard, digest)

    def _is_giant(self, unit: Unit) -> bool:
        """Tell whether a unit is larger than planned, since a single record is: then no other is in memory."""
        return unit.byte_count > self._plan.pile_bytes

    def _order(self, bounds: Sequence[int], loaders: Pool) -> Iterator[Piece]:
        """Yield the records of consecutive shards in shuffled order, ordering some units ahead."""
        ahead: deque[Future[list[Piece]]] = deque()

        def submit(unit: Unit) -> Future[list[Piece]]:
            return loaders.submit(load_ordered, unit, _find_edges(unit, bounds), self._decoder)

        try:
            largest, joined = self._plan.pile_bytes, self._joined_bytes
            for unit in iterate_units(self._store, bounds[0], bounds[-1], largest, joined):
                if isinstance(unit, Unit) and not self._is_giant(unit):
                    ahead.append(submit(unit))
                    if len(ahead) >= self._plan.units_in_flight:
                        yield from ahead.popleft().result()
                    continue
                while ahead:
                    yield from ahead.popleft().result()
                if isinstance(unit, Unit):
                    with self._giants:
                        yield from submit(unit).result()
                else:
                    unit.close()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            wait(ahead)


def _find_edges(unit: Unit, bounds: Sequence[int]) -> list[int]:
    """Return where a unit is cut, counted from its first record: at its ends, or where wanted ones end, and bounds."""
    begin, end = max(unit.first, bounds[0]), min(unit.first + unit.count, bounds[-1])
    inner = bounds[bisect_right(bounds, begin) : bisect_left(bounds, end)]
    return [place - unit.first for place in (begin, *inner, end)]


def plan_tasks(
    shard_count: int, writers: int, run_count: int, finished: Container[int] = frozenset()
) -> list[range]:
    """Return ranges of consecutive shards, one for each task, of about the same number of records.

    More tasks than writers even out their ends; tasks of less than a few runs of piles would load them repeatedly.

    >>> plan_tasks(4, 2, 1000)
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    >>> plan_tasks(5, 1, 8, finished={2})
    [range(0, 2), range(3, 5)]
    """
    count = max(1, min(shard_count, max(writers, run_count // 8)))
    edges = [shard_count * task // count for task in range(count + 1)]
    cuts = {*edges, *(shard for shard in range(shard_count) if shard in finished)}
    cuts |= {shard + 1 for shard in range(shard_count) if shard in finished}
    return [range(start, stop) for start, stop in pairwise(sorted(cuts)) if start not in finished]
