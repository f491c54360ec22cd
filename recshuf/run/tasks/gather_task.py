"""Tasks of the second pass: read the pile sets of all tasks, and write some shards each."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from recshuf.errors import DamagedSetError, PileError
from recshuf.job.progress import SilentProgress
from recshuf.output.transaction import FinishedShard
from recshuf.piles.reader import PileReader
from recshuf.records.digests import Digest
from recshuf.records.input_counts import InputCount, InputCounts
from recshuf.run.passes.gather import Gather, GatherTask
from recshuf.run.passes.shards import cut_shards, find_largest, open_sink
from recshuf.run.passes.write_errors import name_output
from recshuf.run.resume import describe_shard
from recshuf.run.tasks.results import name_result, read_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from recshuf.interfaces import Decoder, Sink
    from recshuf.output.transaction import TaskShards
    from recshuf.piles.run_piles import RunPiles
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.run.tasks.open_run import OpenRun


def adopt_set(store: RunPiles, set_index: int, result: dict[str, Any], counts: InputCounts) -> None:
    """Adopt the pile set of a task, and add to the counts of its inputs.

    Raises
    ------
    PileError
        When the set is missing or damaged.
    """
    if result["set"] is not None:
        store.adopt(set_index, result["set"], reads_all=False)
    for index, byte_count, *digest in result["counts"]:
        counts.include(index, InputCount(byte_count, Digest(*digest)))


def merge_states(decoder: Decoder | None, results: Sequence[dict[str, Any]]) -> None:
    """Let a decoder learn what those of the tasks have learned.

    Raises
    ------
    InputError
        When their types cannot be reconciled.
    """
    if decoder is not None:
        for result in results:
            decoder.merge(result["state"])


def gather_shards(opened: OpenRun, number: int, cleanup: ExitStack) -> dict[str, Any]:
    """Write some shards to a folder of its own, and describe them; `cleanup` deletes them.

    Raises
    ------
    UsageError
        When pile sets are missing.
    RecshufError
        When they cannot be read, or shards cannot be written.
    """
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
        task = GatherTask(resolved.plan, bounds, {*range(len(bounds) - 1)} - {*own})
        shards = _OpenShards(written, resolved, find_largest(bounds, byte_count))
        with closing(shards):
            with _forget_damaged(opened, results):
                Gather(task, PileReader(store), shards, resolved.decoder, SilentProgress()).run()
            entries = shards.finish_all()
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


class _OpenShards:
    """The shards of a task, each described once it is durable."""

    def __init__(self, written: TaskShards, resolved: ResolvedJob, shard_bytes: int) -> None:
        self._written = written
        self._target = resolved.open_target()
        self._shard_bytes = shard_bytes
        self._threads = resolved.plan.sink_threads
        self._schema = resolved.find_table_schema()
        self._entries: list[dict[str, Any]] = []
        self._keeper = written.open_keeper(self._describe, drop_page_cache=resolved.inputs.drop_page_cache)

    def _describe(self, shard: FinishedShard) -> None:
        self._entries.append(describe_shard(shard))

    def _path_of(self, shard: int) -> Path:
        return self._written.path_of(shard, self._target.suffix)

    def open(self, shard: int) -> Sink:
        return open_sink(self._keeper, self._target, self._path_of(shard), self._shard_bytes, self._threads)

    def finish(self, shard: int, digest: Digest) -> None:
        self._keeper.add(FinishedShard(shard, self._path_of(shard), digest, self._schema))

    def finish_all(self) -> list[dict[str, Any]]:
        """Return the entries of all shards, which are then durable."""
        self._keeper.finish()
        return self._entries

    def close(self) -> None:
        self._keeper.close()
