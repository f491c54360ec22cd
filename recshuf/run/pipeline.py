"""A run from end to end: resolve, scatter, gather, verify, commit."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import (
    AlreadyCompleteError,
    ConversionError,
    MemoryLimitError,
    SchemaMismatch,
    UsageError,
)
from recshuf.job.planner import ORDERING
from recshuf.job.report import FileReport, PassReport
from recshuf.piles.order.epoch_reader import EpochReader
from recshuf.piles.order.epochs import EpochOrder
from recshuf.piles.order.rekeyed import RekeyedPiles
from recshuf.piles.reader import PileReader
from recshuf.piles.store.stored import StoredPiles
from recshuf.run.complete_output import refuse_other_command
from recshuf.run.passes.gather import Gather, GatherTask, check_written
from recshuf.run.passes.scatter_pass import observe_inputs, scatter_inputs
from recshuf.run.passes.shards import cut_shards, find_largest, open_shards, take_over_shards
from recshuf.run.passes.write_errors import name_output
from recshuf.run.resolving.resolve import find_destination, resolve_job, resolve_opened
from recshuf.run.resume import Earlier, describe_job, read_checksums
from recshuf.run.set_folders import check_sets, choose_sets
from recshuf.run.stores.stored_inputs import adopt_stored, open_stored
from recshuf.run.summary import describe_inputs, make_manifest, make_report
from recshuf.run.verify_pass import verify_committed, verify_written
from recshuf.run.workspace import begin_output, open_workspace
from recshuf.system.memory import resident_bytes
from recshuf.system.paths import choose_temp_dir
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.job.report import ShuffleReport
    from recshuf.output.transaction import Destination, Transaction
    from recshuf.piles.layout import PileLayout
    from recshuf.piles.order.groups import CheckedRegions
    from recshuf.records.input_counts import InputCounts
    from recshuf.run.passes.gather import OrderedReader
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.run.tasks.passes import TaskPasses
    from recshuf.run.tasks.shared_run import SharedRun
    from recshuf.run.workspace import Workspace


def plan_job(job: Job, progress: Progress) -> Plan:
    """Return the plan of a job without running it.

    Raises
    ------
    RecshufError
        When the job cannot be run.
    """
    destination = find_destination(job)
    if destination is not None:
        destination.check(overwrite=job.options["overwrite"] or job.options["resume"])
    check_sets(job)
    resolved = resolve_job(job, destination, progress)
    if not job.uses_tasks:
        return resolved.plan
    from recshuf.run.tasks.shared_run import divide_job  # most runs use no tasks

    return divide_job(resolved).fit(resolved.plan)


def run_job(job: Job, progress: Progress, planned: tuple[SharedRun, Earlier] | None = None) -> ShuffleReport:
    """Run a job and return its figures.

    On an error the output is as it was, unless ``--verify`` finds that one in an object store is wrong. Finished parts
    are kept in a work folder beside it for ``--resume``; a note on the error names the folder.

    Parameters
    ----------
    planned
        The run of the saved plan of its tasks, and what that says, which the job must fit; None if it has none.

    Raises
    ------
    RecshufError
        When the run fails.
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
    """Begin to write the output; see `begin_output`.

    Raises
    ------
    AlreadyCompleteError
        When it is complete, and no difference from that of this command is known.
    """
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
    from recshuf.run.tasks.passes import find_run  # most runs use no tasks

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
    from recshuf.run.tasks.passes import TaskPasses
    from recshuf.run.tasks.shared_run import SharedRun

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
    inputs, layout = open_stored(piles)
    seed = job.options["seed"]
    if seed not in (None, piles.seed):
        raise UsageError(f"--seed {seed}: the records of {piles.path} have seed {piles.seed}; leave it out")
    return resolve_opened(job, destination, inputs, layout, progress)


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
        _open_reader(resolved, workspace) as reader,
    ):
        written = Gather(task, reader, shards, resolved.decoder, progress).run()
        check_written(reader, bounds[-1], [*finished.values(), *written.values()])


@contextmanager
def _open_reader(resolved: ResolvedJob, workspace: Workspace) -> Iterator[OrderedReader]:
    """Give the reader of the records, in the order of the output."""
    stored, epoch = resolved.inputs.stored, resolved.job.epoch
    if stored is None or epoch is None:
        yield PileReader(workspace.store)
        return
    column_count = None if resolved.job.options["provenance"] else len(resolved.inputs.source.schema)
    order = EpochOrder(stored.seed, epoch.number, epoch.reshuffle, stored.seed)
    if order.is_stored:
        yield PileReader(workspace.store, column_count=column_count)
        return
    with _open_regions(stored, order, resolved.job) as regions:
        reader = EpochReader(regions, order, epoch.mix, column_count)
        needed = int(ORDERING * reader.largest_bytes)
        if needed > resolved.job.memory_bytes:
            raise MemoryLimitError(
                f"{stored.path}: ordering a group of piles needs {format_size(round_up(needed))} of memory, and the limit is "
                f"{format_size(resolved.job.memory_bytes)}; raise --memory, lower --mix, or scatter into more --piles"
            )
        yield reader


def _open_regions(stored: StoredPiles, order: EpochOrder, job: Job) -> AbstractContextManager[CheckedRegions]:
    """Return the regions of an epoch: those of the store, unless their records get new keys."""
    if not order.needs_keys:
        return nullcontext(stored)
    folder = choose_temp_dir(job.temp_dir)
    return RekeyedPiles(stored, order).fill(folder, "choose another --temp-dir")


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
