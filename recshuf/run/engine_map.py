"""Where the passes of a run are done: at once by threads of this process, or by the numbered tasks of an engine."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError, PileError
from recshuf.job.options import LOCAL
from recshuf.job.plan import sum_known
from recshuf.output.entries import FinishedShard, find_sets, find_shards
from recshuf.output.run_log import TaskResults, find_results, name_result, refuse_missing
from recshuf.run.scatter_pass import check_set, scatter
from recshuf.run.shards import Bounds, find_unchanged, gather
from recshuf.run.task import RunAddress, run_task

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from recshuf.job.job import Job
    from recshuf.piles.layout import SealedSet
    from recshuf.run.engines import Engine
    from recshuf.run.resolve import Run


class LocalMap:
    """Lists what the passes of a run have finished, and does the rest: one call of each pass, with all numbers.

    Piles that fit in memory stay there.
    """

    def list_sets(self, run: Run) -> list[SealedSet]:
        """Return the sealed sets, by number."""
        if (stored := run.inputs.stored) is not None:
            sets = zip(stored.info.sets, stored.descriptions, strict=True)
            return [replace(one, number=number, base=base) for number, (one, (base, _)) in enumerate(sets)]
        return [] if run.stage is None else find_sets(run.stage.log.entries)

    def forget_set(self, run: Run, entry: SealedSet, error: PileError) -> str:  # noqa: ARG002 - of others
        """Note that a set is lost, so that `scatter` makes it again, and return who does; else raise the error."""
        if run.inputs.stored is not None:
            raise error
        return "its inputs are read again"

    def scatter(self, run: Run, numbers: Sequence[int]) -> list[SealedSet]:
        """Fill the store with the sets of these numbers, all that it lacks, and return those that are on disk."""
        if run.inputs.stored is not None:
            return []
        inputs = run.inputs
        records = sum_known(inputs.counts or [one.record_count for one in inputs.source.inputs])
        run.progress.start("scatter", records, run.plan.byte_count)
        return scatter(run, numbers)

    def list_shards(self, run: Run, bounds: Bounds) -> dict[int, FinishedShard]:
        """Return the finished shards, which are in the stage, by number; what else is there is deleted."""
        return find_unchanged(run, bounds)

    def gather(self, run: Run, numbers: Sequence[int], bounds: Bounds) -> dict[int, FinishedShard]:
        """Write the shards of these numbers to the stage, and return them by number."""
        return gather(run, numbers, bounds)


class TaskMap(LocalMap):
    """One task of an engine for each number, unless it has a result. `cleanup` closes the engine."""

    def __init__(self, run: Run, results: TaskResults, cleanup: ExitStack) -> None:
        self._run = run
        self._header = run.header
        self._tasks = run.tasks
        self._results = results
        self._cleanup = cleanup

    @cached_property
    def _engine(self) -> Engine:
        from recshuf.run.engines import open_engine  # most runs use no tasks

        job = self._run.job
        engine = open_engine(job.options["engine"] or "", job.options["ray_address"], job.workers)
        self._cleanup.callback(engine.close)
        return engine

    def list_sets(self, run: Run) -> list[SealedSet]:  # noqa: ARG002 - it is that of the constructor
        return find_sets(self._list_done(self._tasks.scatter))

    def forget_set(self, run: Run, entry: SealedSet, error: PileError) -> str:  # noqa: ARG002 - as above
        number = self._tasks.scatter.start + entry.number
        self._results.remove(name_result(self._header.id, number))
        return f"task {number} writes it again"

    def scatter(self, run: Run, numbers: Sequence[int]) -> list[SealedSet]:
        run.progress.start("scatter", run.plan.record_count, run.plan.byte_count)
        if numbers:
            self._finish(range(len(self._tasks.counted)))
        sets = find_sets(self._finish(self._tasks.scatter[number] for number in numbers))
        for entry in sets:
            check_set(run, run.store, entry, run.quarantine)
        return sets

    def list_shards(self, run: Run, bounds: Bounds) -> dict[int, FinishedShard]:
        shards = find_shards(self._list_done(self._tasks.gather))
        lost = self._adopt(run, shards)
        for task in self._tasks.gather:
            own = set(self._tasks.choose_shards(task, bounds.shard_count))
            named = [shard.name for shard in lost if shard.number in own]
            if named:
                run.progress.warn(f"{named[0]}: is missing or damaged; task {task} writes it again")
                self._results.remove(name_result(self._header.id, task))
                shards = {number: shard for number, shard in shards.items() if number not in own}
        return shards

    def gather(self, run: Run, numbers: Sequence[int], bounds: Bounds) -> dict[int, FinishedShard]:
        wanted = set(numbers)
        tasks = [
            task
            for task in self._tasks.gather
            if not wanted.isdisjoint(self._tasks.choose_shards(task, bounds.shard_count))
        ]
        shards = find_shards(self._finish(tasks))
        for shard in self._adopt(run, shards):
            raise OutputError(f"{shard.name}: is missing or damaged; to start anew, {self._results.removal}")
        return shards

    def _adopt(self, run: Run, shards: dict[int, FinishedShard]) -> list[FinishedShard]:
        assert run.stage is not None  # noqa: S101 - tasks do not write to a stream
        return run.stage.adopt(list(shards.values())) if shards else []

    def _list_done(self, tasks: Iterable[int]) -> list[dict[str, Any]]:
        """Return the entries of those tasks that have a result."""
        found = find_results(self._results, self._header.id, tasks)
        return [entry for result in found.values() if result is not None for entry in result["entries"]]

    def _finish(self, tasks: Iterable[int]) -> list[dict[str, Any]]:
        """Have those tasks run that have no result, and return the entries of all."""
        numbers = list(tasks)
        found = find_results(self._results, self._header.id, numbers)
        lacking = [number for number, result in found.items() if result is None]
        if lacking:
            job = self._run.job.share(len(lacking))
            with closing(self._run_tasks(lacking, job)) as results:
                for result in results:
                    found[result["task"]] = result
                    self._report(result["entries"])
        return [entry for number in numbers for entry in found[number]["entries"]]

    def _run_tasks(self, numbers: Sequence[int], job: Job) -> Generator[dict[str, Any]]:
        """Yield the result of each task in order of completion; each may use what the job has."""
        header, share = self._header, (job.memory_bytes, job.workers, job.processes)
        address = RunAddress(self._results.address, header.output, header.id, *share, header.storage)
        engine, run = job.options["engine"], partial(run_task, address)
        if engine in (None, LOCAL):  # each has threads of its own
            yield from map(run, numbers)
        elif engine == "tasks":
            raise refuse_missing(numbers)
        else:
            yield from self._engine.run(run, numbers, job.processes)

    def _report(self, entries: list[dict[str, Any]]) -> None:
        found: list[SealedSet | FinishedShard] = [*find_sets(entries), *find_shards(entries).values()]
        for entry in found:
            self._run.progress.advance(entry.records, entry.byte_count)
