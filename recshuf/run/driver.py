"""A run from end to end: resolve, scatter, gather, verify, commit.

The two passes of a run whose tasks an engine runs.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.errors import (
    AlreadyCompleteError,
    ConversionError,
    MemoryLimitError,
    OutputError,
    PileError,
    SchemaMismatch,
    UsageError,
)
from recshuf.job.planner import ORDERING
from recshuf.job.report import FileReport, PassReport
from recshuf.output.run_log import RUN, find_results, name_result
from recshuf.piles.epochs import EpochOrder, StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.kept.stored import StoredPiles
from recshuf.piles.regions import FilledRegions
from recshuf.records.digests import Digest, InputCounts
from recshuf.run.address import Task
from recshuf.run.bad_records import take_bad
from recshuf.run.engines import open_engine
from recshuf.run.gather import Gather, GatherTask, check_written
from recshuf.run.header import Earlier, SharedRun, describe_job, find_tasks, read_checksums
from recshuf.run.open_run import adopt_set, begin_output, begin_run, merge_states, open_workspace
from recshuf.run.passes import run_task
from recshuf.run.resolve import find_destination, resolve_job, resolve_opened
from recshuf.run.scatter_pass import observe_inputs, scatter_inputs
from recshuf.run.set_folders import check_sets, choose_sets, open_sets
from recshuf.run.shards import cut_shards, find_largest, name_output, open_shards, take_over_shards
from recshuf.run.stores.stored_inputs import adopt_stored, open_records, open_stored
from recshuf.run.summary import describe_inputs, make_manifest, make_report
from recshuf.run.verify import refuse_other_command, verify_committed, verify_written
from recshuf.system.memory import resident_bytes
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ShuffleReport
    from recshuf.output.stage import Destination, Transaction
    from recshuf.piles.layout import PileLayout
    from recshuf.run.engines import Engine
    from recshuf.run.open_run import Workspace
    from recshuf.run.resolve import ResolvedJob


def plan_job(job: Job, progress: Progress) -> Plan:
    """Return the plan of a job without running it."""
    destination = find_destination(job)
    if destination is not None:
        destination.check(overwrite=job.options["overwrite"] or job.options["resume"])
    check_sets(job)
    resolved = resolve_job(job, destination, progress)
    if not job.uses_tasks:
        return resolved.plan
    from recshuf.run.header import divide_job  # most runs use no tasks

    return divide_job(resolved).fit(resolved.plan)


def run_job(job: Job, progress: Progress, planned: tuple[SharedRun, Earlier] | None = None) -> ShuffleReport:
    """Run a job and return its figures.

    On an error the output is as it was, unless ``--verify`` finds that one in an object store is wrong. Finished parts
    are kept in a work folder beside it for ``--resume``; a note on the error names the folder.

    Parameters
    ----------
    planned
        The run of the saved plan of its tasks, and what that says, which the job must fit; None if it has none.
    """
    started = time.perf_counter()
    with ExitStack() as cleanup:
        destination = find_destination(job)
        check_sets(job)
        work = _begin(job, destination, progress, cleanup, is_planned=planned is not None)
        resolved, workspace, tasks = _open(job, destination, work, planned, progress, cleanup)
        base_bytes = resident_bytes()
        counts, scatter_report = _scatter(resolved, workspace, tasks, progress)
        resolved, bounds, gather_report = _gather(resolved, workspace, tasks, counts, progress)
        reports = [scatter_report, gather_report]
        verifies_late = _verifies_late(job, destination)
        if job.options["verify"] and not verifies_late:
            reports.append(verify_written(resolved, work, progress))
        inputs = describe_inputs(resolved, workspace, counts)
        shards, commit_report = _commit(resolved, workspace, inputs, bounds)
        reports.append(commit_report)
        if work is not None and verifies_late:
            work.remove()
            reports.append(verify_committed(resolved, progress))
    return make_report(
        resolved,
        workspace.seed,
        inputs,
        shards,
        reports,
        spilled_bytes=tasks.spilled_bytes if tasks else workspace.store.spilled_bytes,
        seconds=time.perf_counter() - started,
        base_bytes=base_bytes,
    )


def _begin(
    job: Job, destination: Destination | None, progress: Progress, cleanup: ExitStack, *, is_planned: bool
) -> Transaction | None:
    """Begin to write the output; see `begin_output`."""
    try:
        return begin_output(job, destination, progress, cleanup)
    except AlreadyCompleteError:
        if not is_planned and destination is not None:
            refuse_other_command(job, destination)
        # The run that put it in place may have died before it compared it.
        if _verifies_late(job, destination):
            verify_committed(_resolve(job, destination, progress, cleanup), progress)
        raise


def _open(
    job: Job,
    destination: Destination | None,
    work: Transaction | None,
    planned: tuple[SharedRun, Earlier] | None,
    progress: Progress,
    cleanup: ExitStack,
) -> tuple[ResolvedJob, Workspace, TaskPasses | None]:
    """Resolve the job, as the unfinished run in `work` has begun it, and open what its passes need, until `cleanup`."""
    earlier = Earlier.of(work.journal.entries) if work else None
    if earlier is not None:
        earlier.check_given(job)
    shared, begun = planned or _find_shared(job, destination, work)
    if begun is not None and job.options["seed"] is None:
        job = replace(job, options=job.options | {"seed": begun.seed})
    layout = shared.tasks.piles if shared else earlier.piles if earlier else None
    resolved = _resolve(job, destination, progress, cleanup, layout)
    if begun is not None:
        # Before the journal begins, since that keeps what it begins with for the next attempt.
        begun.check(describe_job(resolved, job.options["seed"] or 0, None))
    piles = _choose_sets(job, work, shared)
    workspace = open_workspace(resolved, work, earlier, cleanup, piles)
    return resolved, workspace, _open_tasks(shared, resolved, workspace, piles, progress, cleanup)


def _choose_sets(job: Job, work: Transaction | None, shared: SharedRun | None) -> str | None:
    """Return where the pile sets of tasks are; None if the job uses none."""
    if work is None or not job.uses_tasks:
        return None
    return shared.piles if shared else choose_sets(job, work.path if work.keeps_files else None)


def _find_shared(
    job: Job, destination: Destination | None, work: Transaction | None
) -> tuple[SharedRun | None, Earlier | None]:
    """Return the run whose tasks are in the work folder, unless the job uses no tasks, and its job; None for none."""
    if not job.uses_tasks and not (work is not None and work.is_continued):
        return None, None

    shared, begun = find_run(job, destination) or (None, None)
    return shared if job.uses_tasks else None, begun


def _open_tasks(
    shared: SharedRun | None,
    resolved: ResolvedJob,
    workspace: Workspace,
    piles: str | None,
    progress: Progress,
    cleanup: ExitStack,
) -> TaskPasses | None:
    """Return the passes of a job that uses tasks; None for any other."""
    if not resolved.job.uses_tasks:
        return None
    from recshuf.run.header import SharedRun

    run = shared or SharedRun.of(resolved, workspace.seed, piles)
    return TaskPasses(run, resolved, workspace, progress, cleanup)


def _verifies_late(job: Job, destination: Destination | None) -> bool:
    """Tell whether the output is to be compared after the commit, as nobody can read it before."""
    return job.options["verify"] and destination is not None and destination.local_path is None


def _resolve(
    job: Job,
    destination: Destination | None,
    progress: Progress,
    cleanup: ExitStack,
    layout: PileLayout | None = None,
) -> ResolvedJob:
    if job.epoch is not None:
        return _resolve_stored(job, destination, progress, cleanup)
    return resolve_job(job, destination, progress, layout)


def _resolve_stored(
    job: Job, destination: Destination | None, progress: Progress, cleanup: ExitStack
) -> ResolvedJob:
    piles = StoredPiles(Path(job.inputs[0]))
    cleanup.callback(piles.close)
    seed, epoch = job.options["seed"], job.epoch
    if seed in (None, piles.seed):
        inputs, layout = open_stored(piles)
        return resolve_opened(job, destination, inputs, layout, progress)
    if (epoch is not None and epoch.number) or job.options["provenance"]:
        option = "--provenance" if job.options["provenance"] else "--epoch"
        raise UsageError(
            f"{option} needs the keys of the store, and --seed {seed} draws new ones: its seed is {piles.seed}; leave out one "
            "of the options"
        )
    return resolve_opened(job, destination, open_records(piles), None, progress)


def _scatter(
    resolved: ResolvedJob, workspace: Workspace, tasks: TaskPasses | None, progress: Progress
) -> tuple[InputCounts, PassReport]:
    started = time.perf_counter()
    stored = resolved.inputs.stored
    if tasks is not None:
        counts = tasks.scatter()
    elif stored is None:
        counts = scatter_inputs(resolved, workspace, progress)
    else:
        counts = adopt_stored(workspace.store, stored, len(resolved.inputs.source.inputs))
    seconds = time.perf_counter() - started
    return counts, PassReport("scatter", seconds, counts.record_count, counts.byte_count)


def _gather(
    resolved: ResolvedJob,
    workspace: Workspace,
    tasks: TaskPasses | None,
    counts: InputCounts,
    progress: Progress,
) -> tuple[ResolvedJob, list[int], PassReport]:
    """Write all shards. If the schema inferred from a prefix fails, observe all records and write them again.

    Returns
    -------
    tuple
        The job with the decoder used; the first record of each shard in the shuffled order, and the end of the last;
        the figures of the pass.
    """
    started = time.perf_counter()
    bounds, byte_count = cut_shards(resolved, counts)
    empty = sum(start == stop for start, stop in pairwise(bounds)) if bounds[-1] else 0
    if empty:
        progress.warn(
            f"{empty:,} of {len(bounds) - 1:,} shards are empty, as there are {bounds[-1]:,} records"
        )
    is_written = False
    try:
        if tasks is None:
            _write_shards(resolved, workspace, bounds, byte_count, progress)
        else:
            tasks.gather(bounds, byte_count)
        is_written = True
    except (SchemaMismatch, ConversionError):
        if tasks is not None or not resolved.decoding.infers_from_prefix:
            raise
    if not is_written:
        resolved = resolved.scan_fully()
        observe_inputs(resolved, workspace, counts, progress)
        if workspace.work is not None:
            workspace.work.keep_only(set())
        _write_shards(resolved, workspace, bounds, byte_count, progress)
    return resolved, bounds, PassReport("gather", time.perf_counter() - started, bounds[-1], byte_count)


def _write_shards(
    resolved: ResolvedJob, workspace: Workspace, bounds: list[int], byte_count: int, progress: Progress
) -> None:
    progress.start("gather", bounds[-1], byte_count)
    target = resolved.open_target()
    finished = take_over_shards(resolved, workspace, target, bounds, progress)
    task = GatherTask(resolved.plan, bounds, finished.keys())
    with (
        name_output(resolved, None if workspace.work is None else workspace.work.path),
        open_shards(resolved, workspace, target, find_largest(bounds, byte_count)) as shards,
    ):
        groups = _open_groups(resolved, workspace)
        written = Gather(task, groups, shards, resolved.decoder, progress).run()
        check_written(groups, bounds[-1], [*finished.values(), *written.values()])


def _open_groups(resolved: ResolvedJob, workspace: Workspace) -> Groups:
    """Return the records in the order of the output."""
    stored, epoch = resolved.inputs.stored, resolved.job.epoch
    if stored is None or epoch is None:
        return Groups(FilledRegions(workspace.store), StoredOrder())
    column_count = None if resolved.job.options["provenance"] else len(resolved.inputs.source.schema)
    order = EpochOrder(stored.seed, epoch.number, epoch.reshuffle, stored.seed)
    if order.is_stored:
        return Groups(FilledRegions(workspace.store), StoredOrder(), column_count=column_count)
    groups = Groups(stored, order, epoch.mix, column_count)
    needed = int(ORDERING * groups.byte_counts.max(initial=0))
    if needed > resolved.job.memory_bytes:
        raise MemoryLimitError(
            f"{stored.path}: ordering a group of piles needs {format_size(round_up(needed))} of memory, and the limit is "
            f"{format_size(resolved.job.memory_bytes)}; raise --memory, lower --mix, or scatter into more --piles"
        )
    return groups


def _commit(
    resolved: ResolvedJob, workspace: Workspace, inputs: list[FileReport], bounds: list[int]
) -> tuple[list[FileReport], PassReport]:
    """Put the shards in place, and return them."""
    started = time.perf_counter()
    work, quarantine = workspace.work, workspace.quarantine
    destination = resolved.output.destination
    if quarantine is not None:
        quarantine.finish()
    sizes = [stop - start for start, stop in pairwise(bounds)]
    if work is None or destination is None:
        shards = [FileReport(resolved.output.name, sizes[0], None)]
    else:
        checksums = read_checksums(work.journal)
        files = zip(work.list_files(), sizes, strict=True)
        shards = [
            FileReport(name, records, size, checksum=checksums.get(name)) for (name, size), records in files
        ]
        manifest = None
        if destination.is_directory:
            manifest = make_manifest(resolved, workspace.seed, inputs, shards)
        work.commit(manifest)
    if quarantine is not None:
        quarantine.settle()
    return shards, PassReport("commit", time.perf_counter() - started, bounds[-1], 0)


def find_run(job: Job, destination: Destination | None) -> tuple[SharedRun, Earlier] | None:
    """Return the run whose tasks are in the work folder of a job that uses tasks, and its job; None if there is none."""
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
        """Have all pile sets written, and adopt them; return the counts of each input."""
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
        """Have all shards written, and put them into the work folder."""
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
        check_written(Groups(FilledRegions(self._workspace.store), StoredOrder()), record_count, digests)
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
            with closing(self._engine.run(run_task, missing, self._resolved.job.workers)) as results:
                for result in results:
                    found[result["task"]] = result
                    self._progress.advance(result.get("records", 0), result.get("bytes", 0))
        return found
