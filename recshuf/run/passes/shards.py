"""Destinations of shards: the work folder, with a journal entry for each synced shard, or a stream."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, UsageError
from recshuf.interfaces import SupportsStream
from recshuf.job.plan import shard_bounds
from recshuf.output.transaction import FinishedShard
from recshuf.run.resume import describe_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recshuf.interfaces import Sink, Target
    from recshuf.job.progress import Progress
    from recshuf.output.transaction import ShardKeeper, Transaction
    from recshuf.records.digests import Digest
    from recshuf.records.input_counts import InputCounts
    from recshuf.run.passes.gather import Shards
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.run.workspace import Workspace


class _ShardFiles:
    """Shards as local files, or as streams of a keeper, which takes them over once they are closed."""

    def __init__(
        self,
        resolved: ResolvedJob,
        work: Transaction,
        target: Target,
        keeper: ShardKeeper,
        shard_bytes: int,
    ) -> None:
        self._work = work
        self._shard_bytes = shard_bytes
        self._target = target
        self._keeper = keeper
        self._threads = resolved.plan.sink_threads
        self._schema = resolved.find_table_schema()

    def open(self, shard: int) -> Sink:
        path = self._work.path_of(shard, self._target.suffix)
        return open_sink(self._keeper, self._target, path, self._shard_bytes, self._threads)

    def finish(self, shard: int, digest: Digest) -> None:
        path = self._work.path_of(shard, self._target.suffix)
        self._keeper.add(FinishedShard(shard, path, digest, self._schema))


class _StreamedShard:
    """The only shard, in a stream."""

    def __init__(self, resolved: ResolvedJob, workspace: Workspace, target: Target) -> None:
        if workspace.stream is None or not isinstance(target, SupportsStream):
            raise UsageError(f"{resolved.output.format} cannot be written to a stream; give a file with -o")
        self._stream, self._target = workspace.stream, target
        self._threads = resolved.plan.sink_threads

    def open(self, shard: int) -> Sink:  # noqa: ARG002 - there is one
        return self._target.open_stream(self._stream, self._threads)

    def finish(self, shard: int, digest: Digest) -> None:
        pass


def open_sink(keeper: ShardKeeper, target: Target, path: Path, shard_bytes: int, threads: int) -> Sink:
    """Return the sink of a shard of about this size: in a stream of the keeper, or else in a file."""
    if isinstance(target, SupportsStream):
        stream = keeper.open_stream(path, shard_bytes)
        if stream is not None:
            return target.open_stream(stream, threads)
    return target.open(path, threads)


@contextmanager
def open_shards(
    resolved: ResolvedJob, workspace: Workspace, target: Target, shard_bytes: int
) -> Iterator[Shards]:
    """Give where shards of about this size go; at the end all are durable and noted, unless there is an error."""
    work = workspace.work
    if work is None:
        yield _StreamedShard(resolved, workspace, target)
        return

    def note(shard: FinishedShard) -> None:
        work.journal.note(describe_shard(shard))

    keeper = work.open_keeper(note, drop_page_cache=resolved.inputs.drop_page_cache)
    try:
        yield _ShardFiles(resolved, work, target, keeper, shard_bytes)
        keeper.finish()
    finally:
        # Only when no thread writes entries is it known whether finished parts are left for a later run.
        keeper.close()


def take_over_shards(
    resolved: ResolvedJob, workspace: Workspace, target: Target, bounds: Sequence[int], progress: Progress
) -> dict[int, Digest]:
    """Return the unchanged shards of an earlier run; delete all others.

    Raises
    ------
    OutputError
        When a committed shard has changed.
    """
    work, earlier = workspace.work, workspace.earlier
    if work is None or earlier is None:
        return {}
    names = [work.path_of(shard, target.suffix).name for shard in range(len(bounds) - 1)]
    finished, damaged = earlier.find_shards(bounds, names, resolved.find_table_schema(), work)
    if damaged and work.is_committed:
        raise OutputError(
            f"{resolved.output.name}: is complete, but {damaged[0]} has changed since; delete {work.name} to "
            "start anew"
        )
    for name in damaged:
        progress.warn(f"{name}: has changed since it was written; it is written again")
    work.keep_only({names[shard] for shard in finished})
    return finished


def find_largest(bounds: Sequence[int], byte_count: int) -> int:
    """Return the approximate bytes of the largest of some shards, which have `byte_count` bytes together."""
    largest = max((stop - start for start, stop in pairwise(bounds)), default=0)
    return byte_count * largest // max(1, bounds[-1])


def cut_shards(resolved: ResolvedJob, counts: InputCounts) -> tuple[list[int], int]:
    """Return the bounds of the shards, independent of the plan, and their approximate bytes."""
    records, head_count = counts.record_count, resolved.job.options["head_count"]
    wanted = records if head_count is None else min(records, head_count)
    file_bytes = resolved.inputs.sizes.file_bytes
    if file_bytes is None or not resolved.keeps_size:
        file_bytes = counts.byte_count
    bounds = shard_bounds(resolved.output.cut, wanted, file_bytes * wanted // max(1, records))
    return bounds, counts.byte_count * wanted // max(1, records)
