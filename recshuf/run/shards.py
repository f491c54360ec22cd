"""Shards of the second pass: where they are cut, what writes them, those of an earlier run, and those of one task."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.errors import DamagedSetError, OutputError, PileError, RecshufError, UsageError
from recshuf.interfaces import SupportsStream
from recshuf.job.plan import shard_bounds
from recshuf.job.report import SilentProgress
from recshuf.output.run_log import name_result, read_results
from recshuf.output.stage import FinishedShard
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.regions import FilledRegions
from recshuf.records.digests import InputCounts
from recshuf.run.gather import Gather, GatherTask
from recshuf.run.header import describe_shard
from recshuf.run.open_run import adopt_set, merge_states
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path
    from typing import BinaryIO

    from recshuf.interfaces import Sink, Target
    from recshuf.job.report import Progress
    from recshuf.output.run_log import Entry
    from recshuf.output.stage import ShardKeeper, ShardPlace
    from recshuf.records.digests import Digest
    from recshuf.run.gather import Shards
    from recshuf.run.open_run import OpenRun, Workspace
    from recshuf.run.resolve import ResolvedJob


class _KeptShards:
    """Shards as local files, or as streams of a keeper, which takes them over once they are closed."""

    def __init__(
        self, resolved: ResolvedJob, place: ShardPlace, target: Target, keeper: ShardKeeper, shard_bytes: int
    ) -> None:
        self._place = place
        self._shard_bytes = shard_bytes
        self._target = target
        self._keeper = keeper
        self._threads = resolved.plan.sink_threads
        self._schema = resolved.find_table_schema()

    def open(self, shard: int) -> Sink:
        path = self._place.path_of(shard, self._target.suffix)
        if isinstance(self._target, SupportsStream):
            stream = self._keeper.open_stream(path, self._shard_bytes)
            if stream is not None:
                return self._target.open_stream(stream, self._threads)
        return self._target.open(path, self._threads)

    def finish(self, shard: int, digest: Digest) -> None:
        path = self._place.path_of(shard, self._target.suffix)
        self._keeper.add(FinishedShard(shard, path, digest, self._schema))


class _StreamedShard:
    """The only shard, in a stream."""

    def __init__(self, resolved: ResolvedJob, stream: BinaryIO | None, target: Target) -> None:
        if stream is None or not isinstance(target, SupportsStream):
            raise UsageError(f"{resolved.output.format} cannot be written to a stream; give a file with -o")
        self._stream, self._target = stream, target
        self._threads = resolved.plan.sink_threads

    def open(self, shard: int) -> Sink:  # noqa: ARG002 - there is one
        return self._target.open_stream(self._stream, self._threads)

    def finish(self, shard: int, digest: Digest) -> None:
        pass


class ShardWriter(NamedTuple):
    """Writes shards in the order of some groups."""

    resolved: ResolvedJob
    target: Target
    place: ShardPlace | None
    """None if the only shard goes to the stream."""
    note: Callable[[Entry], None]
    """Called with the entry of each durable shard."""
    stream: BinaryIO | None = None

    def write(
        self,
        groups: Groups,
        bounds: list[int],
        byte_count: int,
        finished: Collection[int],
        progress: Progress,
    ) -> dict[int, Digest]:
        """Write all shards that are not finished, and return their digests; all are durable and noted then.

        Parameters
        ----------
        bounds
            First record of each shard, and the end of the last.
        byte_count
            Bytes of all records, about.
        """
        largest = max((stop - start for start, stop in pairwise(bounds)), default=0)
        task = GatherTask(self.resolved.plan, bounds, finished)
        with self._open(byte_count * largest // max(1, bounds[-1])) as shards:
            return Gather(task, groups, shards, self.resolved.decoder, progress).run()

    @contextmanager
    def _open(self, shard_bytes: int) -> Iterator[Shards]:
        if self.place is None:
            yield _StreamedShard(self.resolved, self.stream, self.target)
            return
        keeper = self.place.open_keeper(
            lambda shard: self.note(describe_shard(shard)),
            drop_page_cache=self.resolved.inputs.drop_page_cache,
        )
        try:
            yield _KeptShards(self.resolved, self.place, self.target, keeper, shard_bytes)
            keeper.finish()
        finally:
            # Only when no thread writes entries is it known whether finished parts are left for a later run.
            keeper.close()


def take_over_shards(
    resolved: ResolvedJob, workspace: Workspace, target: Target, bounds: Sequence[int], progress: Progress
) -> dict[int, Digest]:
    """Return the unchanged shards of an earlier run; delete all others."""
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


def cut_shards(resolved: ResolvedJob, counts: InputCounts) -> tuple[list[int], int]:
    """Return the bounds of the shards, independent of the plan, and their approximate bytes."""
    records, head_count = counts.record_count, resolved.job.options["head_count"]
    wanted = records if head_count is None else min(records, head_count)
    file_bytes = resolved.inputs.sizes.file_bytes
    if file_bytes is None or not resolved.keeps_size:
        file_bytes = counts.byte_count
    bounds = shard_bounds(resolved.output.cut, wanted, file_bytes * wanted // max(1, records))
    return bounds, counts.byte_count * wanted // max(1, records)


@contextmanager
def name_output(resolved: ResolvedJob, folder: Path | None) -> Iterator[None]:
    """Have errors of the operating system name the output.

    Parameters
    ----------
    folder
        Where shards are written; None for a stream.
    """
    try:
        yield
    except (BrokenPipeError, RecshufError):
        raise
    except OSError as error:
        needed = resolved.plan.peak_disk_bytes
        raise write_error(error, resolved.output.name, folder, needed) from error


def gather_shards(opened: OpenRun, number: int, cleanup: ExitStack) -> dict[str, Any]:
    """Write some shards to a folder of its own, and describe them; `cleanup` deletes them."""
    results = [*read_results(opened.tasks, opened.run.id, opened.run.tasks.scatter).values()]
    resolved = opened.resolved.scan_fully()
    merge_states(resolved.decoder, results)
    destination = resolved.output.destination
    if destination is None:
        raise RuntimeError("tasks do not write to a stream")
    written = destination.begin_task(opened.run.id)
    cleanup.callback(written.discard)
    with name_output(resolved, written.folder), opened.open_piles() as store:
        counts = InputCounts(len(resolved.inputs.files))
        for set_index, result in enumerate(results):
            try:
                adopt_set(store, set_index, result, counts)
            except PileError as error:
                raise PileError(
                    f"{error}; share its folder between all machines; if it is lost, give --resume, or run recshuf task "
                    f"{result['task']} again"
                ) from error
        bounds, byte_count = cut_shards(resolved, counts)
        own = opened.run.tasks.choose_shards(number, len(bounds) - 1)
        others = {*range(len(bounds) - 1)} - {*own}
        entries: list[Entry] = []
        writer = ShardWriter(resolved, resolved.open_target(), written, entries.append)
        groups = Groups(FilledRegions(store), StoredOrder())
        with _forget_damaged(opened, results):
            writer.write(groups, bounds, byte_count, others, SilentProgress())
    written.finish()
    return {
        "folder": written.folder.name,
        "shards": entries,
        "records": bounds[own.stop] - bounds[own.start],
        "bytes": sum(entry["bytes"] for entry in entries),
    }


@contextmanager
def _forget_damaged(opened: OpenRun, results: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Delete the result of a task whose pile set turns out to be damaged, so that it runs again.

    Only the gather reads whole sets: `adopt_set` reads their ends.
    """
    try:
        yield
    except DamagedSetError as error:
        written = PurePath(error.name).name
        number = next(result["task"] for result in results if result["set"] == written)
        opened.tasks.remove(name_result(opened.run.id, number))
        remedy = f"give --resume, or run recshuf task {number} again"
        raise DamagedSetError(error.name, error.problem, remedy) from error
