"""The two passes of a run by the tasks of an engine, whose results are put together here."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError, PileError
from recshuf.output.run_log import RUN, find_results, name_result
from recshuf.records.digests import Digest, InputCounts
from recshuf.run.address import Task
from recshuf.run.bad_records import take_bad
from recshuf.run.engines import open_engine
from recshuf.run.gather import check_written
from recshuf.run.header import Earlier, SharedRun, find_tasks
from recshuf.run.open_run import adopt_set, begin_run, merge_states
from recshuf.run.passes import run_task
from recshuf.run.run_passes import RunPasses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.stage import Destination
    from recshuf.run.engines import Engine
    from recshuf.run.open_run import Workspace
    from recshuf.run.resolve import ResolvedJob


def find_run(job: Job, destination: Destination | None) -> tuple[SharedRun, Earlier] | None:
    """Return the run whose tasks are in the work folder of a job that uses tasks, and its job; None if there is none."""
    found = find_tasks(destination).read(RUN)
    if found is None:
        return None
    return SharedRun.from_json(found["run"], job.storage), Earlier(found["job"], [], {})


class TaskPasses(RunPasses):
    """Has tasks done by an engine, and puts together what they leave.

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
        super().__init__(resolved, workspace, progress)
        if workspace.work is None:
            raise RuntimeError("tasks do not write to a stream")
        self._work = workspace.work
        self._tasks = find_tasks(resolved.output.destination)
        self._cleanup = cleanup
        self._spilled_bytes = 0
        self._tasks.make()
        self._run = run
        self._sets = workspace.store.folder
        workspace.work.on_remove(self._sets.remove)
        begin_run(self._run, resolved, workspace.seed)

    @property
    def spilled_bytes(self) -> int:
        return self._spilled_bytes

    @cached_property
    def _engine(self) -> Engine:
        job = self.resolved.job
        engine = open_engine(job.options["engine"], job.options["ray_address"], job.workers)
        self._cleanup.callback(engine.close)
        return engine

    def scatter(self) -> InputCounts:
        """Have all pile sets written, and adopt them; return the counts of each input."""
        tasks, plan = self._run.tasks, self.resolved.plan
        self._progress.start("scatter", plan.record_count, plan.byte_count)
        self._finish(range(len(tasks.counted)))
        results = self._finish(tasks.scatter)
        counts = InputCounts(len(self.resolved.inputs.files))
        # The bad records first: a task that runs again since its pile set is lost sets aside the same ones.
        quarantine, store = self.workspace.quarantine, self.workspace.store
        if quarantine is not None:
            self._use_each(results, lambda _, result: take_bad(quarantine, self._sets, result))
        self._use_each(
            results, lambda number, result: adopt_set(store, number - tasks.scatter.start, result, counts)
        )
        ordered = [results[number] for number in tasks.scatter]
        merge_states(self.resolved.decoder, ordered)
        self._spilled_bytes = sum(result["spilled_bytes"] for result in ordered)
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

    def gather(self, bounds: list[int], byte_count: int) -> None:  # noqa: ARG002 - tasks find it anew
        """Have all shards written, and put them into the work folder."""
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
        check_written(self.open_groups(), record_count, digests)
        return entries

    def _repeat(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Have tasks run again whose output is lost, and return their results."""
        repeated = list(numbers)
        for number in repeated:
            self._tasks.remove(name_result(self._run.id, number))
        return self._finish(repeated)

    def _finish(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Have those tasks run that have no result, and return the results of all by number."""
        address = self._run.find_address(self._tasks)
        found = find_results(self._tasks, self._run.id, numbers)
        missing = [Task(address, number) for number, result in found.items() if result is None]
        if missing:
            with closing(self._engine.run(run_task, missing, self.resolved.job.workers)) as results:
                for result in results:
                    found[result["task"]] = result
                    self._progress.advance(result.get("records", 0), result.get("bytes", 0))
        return found
