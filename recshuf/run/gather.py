"""Pass 2, gather: loads one pile after another, sorts each by key, and writes the shards.

Shard k holds records ``bounds[k]`` to ``bounds[k + 1]`` of the shuffled order. A task writes consecutive
shards; a pile on the border of two tasks is loaded by both. Records are digested after sorting, and the sum is
compared with the digest of the records scattered to the piles.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from recshuf.errors import CheckError, Stopped
from recshuf.job.plan import Plan, count_parts
from recshuf.piles.groups import Content, Groups, Regions
from recshuf.records.arrays import count_bytes
from recshuf.records.digests import Digest, sum_digests
from recshuf.system.threads import Pool, run_threads

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, Sink
    from recshuf.job.report import Progress

    Chunk = tuple[pa.RecordBatch, Content]
    """Records in shuffled order that all go to one shard, and what they are."""


_JOINED_BYTES = 2 << 20
"""Smaller groups cost more in calls than in bytes."""


class GroupRange(NamedTuple):
    """Consecutive groups, small enough to be ordered at once; mostly one."""

    groups: Groups
    numbers: list[int]
    first: int
    """Position of the first record in the order."""
    record_count: int
    byte_count: int


def load_chunks(
    run: GroupRange, edges: Sequence[int], decoder: Decoder | None, *, is_giant: bool = False
) -> list[Chunk]:
    """Return the records of groups in order, in table form if there is a decoder, a chunk for each ``edges[k]:edges[k + 1]``."""
    records, kept_edges, contents = run.groups.load_parts(run.numbers, edges, is_giant=is_giant)
    batch = records.batch
    del records
    if decoder is not None:
        batch = decoder.decode(batch)
    return [
        (batch.slice(start, stop - start), content)
        for (start, stop), content in zip(pairwise(kept_edges), contents, strict=True)
    ]


def iterate_ranges(
    groups: Groups,
    first: int,
    stop: int,
    largest_bytes: int,
    place: int = 0,
) -> Iterator[GroupRange | Regions]:
    """Yield the ranges of groups that cover records ``first`` to ``stop`` of the order.

    Small consecutive groups are joined. A group larger than `largest_bytes` is split, if it can be. The
    regions of its parts are yielded after their ranges; the caller closes them when it has finished those.
    """
    ends = place + np.cumsum(groups.sizes)
    begins = ends - groups.sizes
    wanted = np.flatnonzero((groups.sizes > 0) & (ends > first) & (begins < stop))
    for held in groups.bundle(wanted.tolist(), min(_JOINED_BYTES, largest_bytes)):
        begin, count = int(begins[held[0]]), int(groups.sizes[held].sum())
        size = int(groups.byte_counts[held].sum())
        if len(held) > 1 or not groups.must_split(held[0], largest_bytes):
            yield GroupRange(groups, held, begin, count, size)
            continue
        (group,) = held
        parts, regions = groups.split(group, _count_parts(groups, group, largest_bytes))
        yield from iterate_ranges(parts, first, stop, largest_bytes, begin)
        yield regions


_LEAST_VALUE_PARTS = 16
"""A pile with a value that fills most of what is ordered at once is split once, and not again and again."""


def _count_parts(groups: Groups, group: int, largest_bytes: int) -> int:
    """Return into how many parts a group is split."""
    count = count_parts(int(groups.byte_counts[group]), largest_bytes)
    return max(count, _LEAST_VALUE_PARTS) if groups.keeps_values else count


def settle_edges(groups: Groups, edges: Sequence[int], largest_bytes: int, place: int = 0) -> list[int]:
    """Return ascending positions in an order by values, each moved to the first one at or after it where a value begins.

    Groups larger than `largest_bytes` are split for that.
    """
    ends = place + np.cumsum(groups.sizes)
    settled = list(edges)
    for group, held in groupby(range(len(edges)), key=lambda one: int(np.searchsorted(ends, edges[one]))):
        inner = [one for one in held if place < edges[one] < ends[group]]  # no value is in two groups
        if not inner:
            continue
        begin, wanted = int(ends[group] - groups.sizes[group]), [edges[one] for one in inner]
        if groups.must_split(group, largest_bytes):
            parts, regions = groups.split(group, _count_parts(groups, group, largest_bytes))
            with closing(regions):
                found = settle_edges(parts, wanted, largest_bytes, begin)
        else:
            starts = np.append(groups.find_starts(group), groups.sizes[group])
            found = (begin + starts[np.searchsorted(starts, np.array(wanted) - begin)]).tolist()
        for one, edge in zip(inner, found, strict=True):
            settled[one] = edge
    return settled


class Shards(Protocol):
    """Destination of shards. Both methods are called in many threads."""

    def open(self, shard: int) -> Sink:
        """Open the sink of shard number `shard`."""
        ...

    def finish(self, shard: int, content: Content) -> None:
        """Take over a shard whose sink is closed, with what is in it."""
        ...


class Gather:
    """Writes shards from the groups of an order, or yields the records of the only one.

    The bounds are the first record of each shard in the shuffled order, and the end of the last. Piles larger than
    `largest_bytes` are split. Locks: `_giants` comes before those of the store, of sinks and of `Shards`, which are taken while it
    is held.
    """

    def __init__(
        self,
        plan: Plan,
        bounds: Sequence[int],
        largest_bytes: int,
        groups: Groups,
        decoder: Decoder | None,
        progress: Progress,
    ) -> None:
        self._plan, self._bounds, self._largest_bytes = plan, bounds, largest_bytes
        self._groups = groups
        self._decoder = decoder
        self._progress = progress
        self._written: dict[int, Content] = {}
        self._stopped = threading.Event()
        self._giants = threading.Lock()

    def run(self, shards: Shards, finished: Collection[int]) -> dict[int, Content]:
        """Write every shard that is not finished, and return what is in each."""
        filled = int(np.count_nonzero(self._groups.sizes))
        tasks = plan_tasks(len(self._bounds) - 1, self._plan.shard_writers, filled, finished)
        with Pool(self._plan.gather_workers, "order") as loaders:
            writes = [partial(self._write_shards, shards, one, loaders) for one in tasks]
            run_threads("write", writes, self._plan.shard_writers, self._stopped.set)
        return self._written

    def iterate(self) -> Generator[pa.RecordBatch]:
        """Yield the records of the only shard in place of writing it, ordering some ahead; threads end with the iterator."""
        wanted, digest = self._bounds[-1], Digest()  # of the records in piles
        with Pool(self._plan.gather_workers, "order") as loaders:
            for batch, content in self._order(self._bounds, loaders):
                digest += content.total
                self._progress.advance(content.total.records, count_bytes(batch))
                yield batch
        if digest.records != wanted:
            raise _miscounted(0, digest.records, "given", wanted)
        check_written(self._groups, wanted, [digest])

    def _write_shards(self, shards: Shards, numbers: range, loaders: Pool) -> None:
        # An error keeps this frame: what waits in it would keep the lock of large groups, for which other writers wait.
        with closing(self._order(self._bounds[numbers.start : numbers.stop + 1], loaders)) as chunks:
            for shard in numbers:
                self._write_shard(shards, shard, chunks)

    def _write_shard(self, shards: Shards, shard: int, chunks: Iterator[Chunk]) -> None:
        wanted = self._bounds[shard + 1] - self._bounds[shard]
        content = Content()
        with shards.open(shard) as sink:
            while content.total.records < wanted:
                batch, part = next(chunks)
                sink.write(batch)
                content = content.join(part)
                self._progress.advance(part.total.records, count_bytes(batch))
                del batch
                if self._stopped.is_set():
                    raise Stopped
        wanted -= content.dropped.records
        for count, what in ((content.digest.records, "given"), (sink.record_count, "written")):
            if count != wanted:
                raise _miscounted(shard, count, what, wanted)
        self._written[shard] = content
        shards.finish(shard, content)

    def _decode_parts(self, batch: pa.RecordBatch, content: Content) -> Iterator[Chunk]:
        """Yield native records in table form, a part as large as a pile at a time: a table may take many times as much.

        The last part has the content of all.
        """
        if self._decoder is None:
            yield batch, content
            return
        count, size = batch.num_rows, max(1, count_bytes(batch))
        rows = max(1, count * self._plan.pile_bytes // size)
        *starts, last = range(0, max(1, count), rows)
        for start in starts:
            yield self._decoder.decode(batch.slice(start, rows)), Content()
        yield self._decoder.decode(batch.slice(last)), content

    def _order(self, bounds: Sequence[int], loaders: Pool) -> Generator[Chunk]:
        """Yield the records of consecutive shards in shuffled order, ordering some runs ahead."""
        ahead: deque[Future[list[Chunk]]] = deque()

        def submit(run: GroupRange, *, is_giant: bool = False) -> Future[list[Chunk]]:
            load, decoder = partial(load_chunks, is_giant=is_giant), None if is_giant else self._decoder
            return loaders.submit(load, run, _find_edges(run, bounds), decoder)

        try:
            for run in iterate_ranges(self._groups, bounds[0], bounds[-1], self._largest_bytes):
                # One that exceeds the plan, because of a record or of those of one value, is alone in memory.
                if isinstance(run, GroupRange) and run.byte_count <= self._plan.pile_bytes:
                    ahead.append(submit(run))
                    if len(ahead) >= self._plan.units_in_flight:
                        yield from ahead.popleft().result()
                    continue
                while ahead:
                    yield from ahead.popleft().result()
                if isinstance(run, GroupRange):
                    with self._giants:
                        for batch, content in submit(run, is_giant=True).result():
                            yield from self._decode_parts(batch, content)
                else:
                    run.close()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            wait(ahead)


def _miscounted(shard: int, count: int, what: str, wanted: int) -> CheckError:
    return CheckError(
        f"gather: shard {shard}: {count:,} records {what}, {wanted:,} planned; run again, and report this as a fault"
    )


def check_written(groups: Groups, wanted: int, shards: Iterable[Digest]) -> None:
    """Compare the digest of all shards with that of all piles, unless only a sample of `wanted` records is written."""
    if wanted != groups.sizes.sum():
        return
    found = sum_digests(shards)
    given = groups.digest(range(len(groups.sizes)))
    if found != given:
        raise CheckError(f"gather: all shards: {found.compare(given)}; run again, and report this as a fault")


def _find_edges(run: GroupRange, bounds: Sequence[int]) -> list[int]:
    """Return the positions in a run, relative to its first record, at which it is cut into chunks."""
    begin, end = max(run.first, bounds[0]), min(run.first + run.record_count, bounds[-1])
    inner = bounds[bisect_right(bounds, begin) : bisect_left(bounds, end)]
    return [position - run.first for position in (begin, *inner, end)]


def plan_tasks(
    shard_count: int, writers: int, group_count: int, finished: Collection[int] = ()
) -> list[range]:
    """Return ranges of consecutive shards, one for each task, of about the same number of records.

    There are more tasks than writers, so that writers finish together. But tasks of few groups would load them repeatedly.

    >>> plan_tasks(4, 2, 1000)
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    >>> plan_tasks(5, 1, 8, finished={2})
    [range(0, 2), range(3, 5)]
    """
    count = max(1, min(shard_count, max(writers, group_count // 8)))
    edges = [shard_count * task // count for task in range(count + 1)]
    cuts = {*edges, *(shard for shard in range(shard_count) if shard in finished)}
    cuts |= {shard + 1 for shard in range(shard_count) if shard in finished}
    return [range(start, stop) for start, stop in pairwise(sorted(cuts)) if start not in finished]
