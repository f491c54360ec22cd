"""A run from end to end: resolve, scatter, gather, verify, commit."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import AlreadyCompleteError, UsageError
from recshuf.job.report import FileReport, PassReport
from recshuf.run.header import Earlier, SharedRun, describe_job, read_checksums
from recshuf.run.open_run import begin_output, open_workspace
from recshuf.run.resolve import find_destination, resolve_job, resolve_opened
from recshuf.run.run_passes import LocalPasses, StoredPasses
from recshuf.run.set_folders import check_sets, choose_sets
from recshuf.run.shards import cut_shards
from recshuf.run.summary import describe_inputs, make_manifest, make_report
from recshuf.system.memory import resident_bytes

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ShuffleReport
    from recshuf.output.stage import Destination, Transaction
    from recshuf.piles.layout import PileLayout
    from recshuf.records.digests import InputCounts
    from recshuf.run.open_run import Workspace
    from recshuf.run.resolve import ResolvedJob
    from recshuf.run.run_passes import RunPasses


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
        passes = _open(job, destination, work, planned, progress, cleanup)
        base_bytes = resident_bytes()
        counts, scatter_report = _time_scatter(passes)
        bounds, gather_report = _time_gather(passes, counts, progress)
        reports = [scatter_report, gather_report]
        resolved, workspace = passes.resolved, passes.workspace
        verifies_late = _verifies_late(job, destination)
        if job.options["verify"]:
            from recshuf.run.verify import verify_committed, verify_written  # reads data sets of any format
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
        spilled_bytes=passes.spilled_bytes,
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
        from recshuf.run.verify import refuse_other_command, verify_committed

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
) -> RunPasses:
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
    if job.uses_tasks:
        from recshuf.run.task_passes import TaskPasses  # most runs use no tasks

        run = shared or SharedRun.of(resolved, workspace.seed, piles)
        return TaskPasses(run, resolved, workspace, progress, cleanup)
    kind = LocalPasses if resolved.inputs.stored is None else StoredPasses
    return kind(resolved, workspace, progress)


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

    from recshuf.run.task_passes import find_run

    shared, begun = find_run(job, destination) or (None, None)
    return shared if job.uses_tasks else None, begun


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
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.run.stores.stored_inputs import open_records, open_stored

    piles = StoredPiles(Path(job.inputs[0]))
    cleanup.callback(piles.close)
    seed, epoch = job.options["seed"], job.epoch
    if seed in (None, piles.seed):
        inputs, layout = open_stored(piles)
        return resolve_opened(job, destination, inputs, layout, progress)
    if (epoch is not None and epoch.number) or job.options["provenance"]:
        option = "--provenance" if job.options["provenance"] else "--epoch"
        raise UsageError(
            f"{option} needs the keys of the store, and --seed {seed} draws new ones; leave out one of them, or give the seed of "
            f"the store, {piles.seed}"
        )
    return resolve_opened(job, destination, open_records(piles), None, progress)


def _time_scatter(passes: RunPasses) -> tuple[InputCounts, PassReport]:
    started = time.perf_counter()
    counts = passes.scatter()
    seconds = time.perf_counter() - started
    return counts, PassReport("scatter", seconds, counts.record_count, counts.byte_count)


def _time_gather(passes: RunPasses, counts: InputCounts, progress: Progress) -> tuple[list[int], PassReport]:
    """Write all shards; return the first record of each in the shuffled order, and the end of the last."""
    started = time.perf_counter()
    bounds, byte_count = cut_shards(passes.resolved, counts)
    empty = sum(start == stop for start, stop in pairwise(bounds)) if bounds[-1] else 0
    if empty:
        progress.warn(
            f"{empty:,} of {len(bounds) - 1:,} shards are empty, as there are {bounds[-1]:,} records"
        )
    progress.start("gather", bounds[-1], byte_count)
    passes.gather(bounds, byte_count)
    return bounds, PassReport("gather", time.perf_counter() - started, bounds[-1], byte_count)


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
