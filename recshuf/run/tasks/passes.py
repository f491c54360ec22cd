"""The two passes of a run whose tasks an engine runs."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recshuf.engines.registry import open_engine
from recshuf.errors import OutputError, PileError
from recshuf.piles.reader import PileReader
from recshuf.records.digests import Digest
from recshuf.records.input_counts import InputCounts
from recshuf.run.passes.gather import check_written
from recshuf.run.resume import Earlier
from recshuf.run.set_folders import open_sets
from recshuf.run.tasks.address import RunAddress
from recshuf.run.tasks.bad_records import take_bad
from recshuf.run.tasks.gather_task import adopt_set, merge_states
from recshuf.run.tasks.open_run import begin_run
from recshuf.run.tasks.results import RUN, find_results, name_result
from recshuf.run.tasks.shared_run import SharedRun, find_tasks
from recshuf.run.tasks.task import Task, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from recshuf.engines.engine import Engine
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress
    from recshuf.output.transaction import Destination
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.run.workspace import Workspace


def find_run(job: Job, destination: Destination | None) -> tuple[SharedRun, Earlier] | None:
    """Return the run whose tasks are in the work folder of a job that uses tasks, and its job; None if there is none.

    Raises
    ------
    UsageError
        When the output is a stream.
    OutputError
        When the run is damaged.
    """
    found = find_tasks(destination).read(RUN)
    if found is None:
        return None
    return SharedRun.from_json(found["run"], job.storage), Earlier(found["job"], [], {})


class TaskPasses:
    """Has tasks done, and puts together what they leave.

    Parameters
    ----------
    run
        The run to begin or to continue.
    cleanup
        Closes the engine.
    """

    def __init__(
        self,
        run: SharedRun,
        resolved: ResolvedJob,
        workspace: Workspace,
        progress: Progress,
        cleanup: ExitStack,
    ) -> None:
        if workspace.work is None:
            raise RuntimeError("tasks do not write to a stream")
        self._resolved = resolved
        self._workspace = workspace
        self._work = workspace.work
        self._tasks = find_tasks(resolved.output.destination)
        self._progress = progress
        self._cleanup = cleanup
        self.spilled_bytes = 0
        """Bytes of records in pile sets, after compression."""
        self._tasks.make()
        self._run = run
        self._sets = open_sets(resolved.job, run.piles)
        workspace.work.on_remove(self._sets.remove)
        begin_run(self._run, resolved, workspace.seed)

    @cached_property
    def _engine(self) -> Engine:
        job = self._resolved.job
        engine = open_engine(job.options["engine"], job.options["ray_address"], job.workers)
        self._cleanup.callback(engine.close)
        return engine

    def scatter(self) -> InputCounts:
        """Have all pile sets written, and adopt them; return the counts of each input.

        Raises
        ------
        RecshufError
            When a task fails.
        """
        tasks, plan = self._run.tasks, self._resolved.plan
        self._progress.start("scatter", plan.record_count, plan.byte_count)
        self._finish(range(len(tasks.counted)))
        results = self._finish(tasks.scatter)
        counts = InputCounts(len(self._resolved.inputs.files))
        # The bad records first: a task that runs again since its pile set is lost sets aside the same ones.
        quarantine, store = self._workspace.quarantine, self._workspace.store
        if quarantine is not None:
            self._use_each(results, lambda _, result: take_bad(quarantine, self._sets, result))
        self._use_each(
            results, lambda number, result: adopt_set(store, number - tasks.scatter.start, result, counts)
        )
        ordered = [results[number] for number in tasks.scatter]
        merge_states(self._resolved.decoder, ordered)
        self.spilled_bytes = sum(result["spilled_bytes"] for result in ordered)
        return counts

    def _use_each(
        self, results: dict[int, dict[str, Any]], use: Callable[[int, dict[str, Any]], None]
    ) -> None:
        """Use what tasks have written, by their numbers and results; what is lost is written again."""
        for number in list(results):
            try:
                use(number, results[number])
            except PileError as error:
                self._progress.warn(f"{error}; task {number} writes it again")
                results |= self._repeat([number])
                use(number, results[number])

    def gather(self, bounds: list[int], byte_count: int) -> None:
        """Have all shards written, and put them into the work folder.

        Raises
        ------
        RecshufError
            When a task fails, or the shards do not hold the records of the piles.
        """
        self._progress.start("gather", bounds[-1], byte_count)
        results = self._finish(self._run.tasks.gather)
        lost = self._work.adopt(self._check(results, bounds[-1]))
        if lost:
            again = [n for n, one in results.items() if any(entry["name"] in lost for entry in one["shards"])]
            writer = next(n for n in again if any(entry["name"] == lost[0] for entry in results[n]["shards"]))
            self._progress.warn(f"{lost[0]}: is missing or damaged; task {writer} writes it again")
            results |= self._repeat(again)
            lost = self._work.adopt(self._check(results, bounds[-1]))
        if lost:
            raise OutputError(f"{lost[0]}: is missing or damaged; to start anew, {self._tasks.removal}")

    def _check(self, results: dict[int, dict[str, Any]], record_count: int) -> list[dict[str, Any]]:
        """Return the entries of all shards, which hold all records."""
        entries = [entry | {"folder": one["folder"]} for one in results.values() for entry in one["shards"]]
        digests = [Digest(*entry["digest"]) for entry in entries]
        check_written(PileReader(self._workspace.store), record_count, digests)
        return entries

    def _repeat(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Have tasks run again whose output is lost, and return their results."""
        repeated = list(numbers)
        for number in repeated:
            self._tasks.remove(name_result(self._run.id, number))
        return self._finish(repeated)

    def _finish(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Have those tasks run that have no result, and return the results of all by number."""
        address = RunAddress.of(self._tasks, self._run)
        found = find_results(self._tasks, self._run.id, numbers)
        missing = [Task(address, number) for number, result in found.items() if result is None]
        if missing:
            with closing(self._engine.run(run_task, missing, self._resolved.job.workers)) as results:
                for result in results:
                    found[result["task"]] = result
                    self._progress.advance(result.get("records", 0), result.get("bytes", 0))
        return found
