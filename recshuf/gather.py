"""Pass 2: loads pile after pile, orders each with an index array, and writes the shards.

Shard k holds records ``bounds[k]`` to ``bounds[k + 1]`` of the shuffled order. A task writes consecutive
shards one after the other; a pile on the border of two tasks is loaded by both.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import Stopped
from recshuf.order import MAX_PILES, sort_by_key
from recshuf.records import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, Sink
    from recshuf.plans import Plan
    from recshuf.progress import Progress
    from recshuf.store import PileStore


@dataclass(frozen=True, slots=True)
class Unit:
    """A pile small enough to be ordered at once."""

    store: PileStore
    pile: int
    first: int
    """Place of its first record in the shuffled order."""

    @property
    def count(self) -> int:
        """Number of records."""
        return int(self.store.counts[self.pile])


def load_ordered(unit: Unit, decoder: Decoder | None) -> pa.RecordBatch:
    """Return the records of a unit in shuffled order, in table form if there is a decoder."""
    records = unit.store.load(unit.pile)
    if records is None:
        raise RuntimeError(f"pile {unit.pile} should hold {unit.count} records and is empty")
    if len(records) != unit.count:
        raise RuntimeError(f"pile {unit.pile} should hold {unit.count} records and holds {len(records)}")
    batch = take_rows(records.batch, sort_by_key(records.keys))
    del records
    return batch if decoder is None else decoder.decode(batch)


def iterate_units(
    store: PileStore, first: int, stop: int, largest_bytes: int, place: int = 0
) -> Iterator[Unit | PileStore]:
    """Yield the units that cover records ``first`` to ``stop`` of the shuffled order.

    A pile larger than `largest_bytes` is split. The store of its parts is yielded after their units: the
    caller closes it once it is through with everything that came before.
    """
    ends = place + np.cumsum(store.counts)
    for pile in range(int(np.searchsorted(ends, first, side="right")), store.pile_count):
        begin, end = int(ends[pile] - store.counts[pile]), int(ends[pile])
        if begin >= stop:
            return
        if begin < end:
            yield from _units_of_pile(store, pile, begin, (first, stop), largest_bytes)


def _units_of_pile(
    store: PileStore, pile: int, begin: int, wanted: tuple[int, int], largest_bytes: int
) -> Iterator[Unit | PileStore]:
    size = store.pile_bytes(pile)
    if size <= largest_bytes or store.counts[pile] == 1 or not store.key_range.shift:
        yield Unit(store, pile, begin)
        return
    parts = store.split(pile, min(MAX_PILES, max(2, -(-2 * size // largest_bytes))))
    yield from iterate_units(parts, *wanted, largest_bytes, begin)
    yield parts


class Gather:
    """Writes all shards from a filled pile store.

    Parameters
    ----------
    open_sink
        Opens the sink of shard number k.
    bounds
        First record of each shard in the shuffled order, and the end of the last.
    """

    def __init__(
        self,
        store: PileStore,
        plan: Plan,
        bounds: Sequence[int],
        open_sink: Callable[[int], Sink],
        decoder: Decoder | None,
        progress: Progress,
    ) -> None:
        self._store = store
        self._plan = plan
        self._bounds = bounds
        self._open_sink = open_sink
        self._decoder = decoder
        self._progress = progress
        self._stopped = threading.Event()
        self._giants = threading.Lock()

    def run(self) -> None:
        """Write every shard.

        Raises
        ------
        Exception
            The first error of any thread, after all threads have ended; open sinks have been aborted.
        """
        tasks = plan_tasks(self._bounds, self._plan.shard_writers, int(np.count_nonzero(self._store.counts)))
        with (
            ThreadPoolExecutor(self._plan.gather_workers, thread_name_prefix="order") as loaders,
            ThreadPoolExecutor(self._plan.shard_writers, thread_name_prefix="write") as writers,
        ):
            futures = [writers.submit(self._write_shards, task, loaders) for task in tasks]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # Sets the flag on an error, and when this thread is interrupted.
                if any(not future.done() or future.exception() for future in futures):
                    self._stopped.set()
                    for future in futures:
                        future.cancel()
        done = [future for future in futures if not future.cancelled()]
        errors = [error for future in done if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, Stopped))
        if errors:
            raise errors[0]

    def _write_shards(self, shards: range, loaders: ThreadPoolExecutor) -> None:
        batches = self._order(self._bounds[shards.start], self._bounds[shards.stop], loaders)
        rest: pa.RecordBatch | None = None
        for shard in shards:
            wanted = self._bounds[shard + 1] - self._bounds[shard]
            with self._open_sink(shard) as sink:
                while wanted:
                    batch = rest if rest is not None else next(batches)
                    rest = batch.slice(wanted) if batch.num_rows > wanted else None
                    batch = batch.slice(0, wanted)
                    sink.write(batch)
                    wanted -= batch.num_rows
                    self._progress.advance(batch.num_rows, int(batch.nbytes))
                    if self._stopped.is_set():
                        raise Stopped

    def _is_giant(self, unit: Unit) -> bool:
        """Tell whether a unit is larger than planned, since a single record is: then no other is in memory."""
        return unit.store.pile_bytes(unit.pile) > self._plan.pile_bytes

    def _order(self, first: int, stop: int, loaders: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        """Yield records ``first`` to ``stop`` of the shuffled order, ordering some units ahead."""
        ahead: deque[tuple[Unit, Future[pa.RecordBatch]]] = deque()
        try:
            for unit in iterate_units(self._store, first, stop, self._plan.pile_bytes):
                if isinstance(unit, Unit) and not self._is_giant(unit):
                    ahead.append((unit, loaders.submit(load_ordered, unit, self._decoder)))
                    if len(ahead) >= self._plan.units_in_flight:
                        yield _cut(*ahead.popleft(), first, stop)
                    continue
                while ahead:
                    yield _cut(*ahead.popleft(), first, stop)
                if isinstance(unit, Unit):
                    with self._giants:
                        yield _cut(unit, loaders.submit(load_ordered, unit, self._decoder), first, stop)
                else:
                    unit.close()
            while ahead:
                yield _cut(*ahead.popleft(), first, stop)
        finally:
            for _, future in ahead:
                future.cancel()
            wait([future for _, future in ahead])


def _cut(unit: Unit, future: Future[pa.RecordBatch], first: int, stop: int) -> pa.RecordBatch:
    """Return the part of a unit that lies in ``first`` to ``stop`` of the shuffled order."""
    batch = future.result()
    begin = max(first - unit.first, 0)
    return batch.slice(begin, min(stop - unit.first, batch.num_rows) - begin)


def plan_tasks(bounds: Sequence[int], writers: int, pile_count: int) -> list[range]:
    """Return ranges of consecutive shards, one for each task, of about the same number of records.

    More tasks than writers even out their ends; tasks of less than a few piles would load piles repeatedly.

    >>> plan_tasks([0, 10, 20, 30, 40], 2, 1000)
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    """
    shards = len(bounds) - 1
    most = max(writers, pile_count // 8)
    count = max(1, min(shards, most))
    edges = [shards * task // count for task in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]
