"""A run that begins or is continued: its job resolved, its header compared, its resources open; and how a task joins it."""

from __future__ import annotations

import secrets
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from recshuf.errors import (
    AlreadyCompleteError,
    CheckError,
    ConversionError,
    DiskFullError,
    InputError,
    UnavailableInputError,
    UsageError,
)
from recshuf.job.plan import sum_known
from recshuf.job.report import Progress, SilentProgress
from recshuf.output.run_log import RUN, TaskResults
from recshuf.piles.layout import StorePlan
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import RecordCodec
from recshuf.piles.store import Store
from recshuf.run.features import adopt_parts, settle_parts
from recshuf.run.header import Header, check_sets, choose_sets, divide_job, make_header, open_sets
from recshuf.run.inputs import Inputs, load_inputs, lock_inputs, save_inputs
from recshuf.run.resolve import Run, resolve_job, resolve_opened
from recshuf.system.files import bytes_of
from recshuf.system.paths import choose_temp_dir, free_bytes
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from recshuf.job.job import Job
    from recshuf.job.parts import TaskPlan
    from recshuf.output import Destination, Stage
    from recshuf.output.quarantine import Quarantine


_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""


def find_results(destination: Destination | None) -> TaskResults:
    """Return the folder of the results of tasks, which is beside the output."""
    if destination is None or destination.is_stream:
        raise UsageError("--engine: other processes cannot write a stream; give a file or directory with -o")
    return destination.tasks


def read_header(results: TaskResults, header: Header) -> Header | None:
    """Return the header that a folder of results holds, which must be of the same run; None if it holds none."""
    values = results.read(RUN)
    found = None if values is None else Header.from_json(values, header.storage)
    if found is not None and found.id != header.id:
        raise UsageError(f"{results.address}: holds tasks of another plan; finish them, or {results.removal}")
    return found


def share_run(run: Run, header: Header) -> None:
    """Write header and inputs of a run to its folder of results, or compare them with those that are there."""
    results = find_results(run.output.destination)
    if read_header(results, header) is None:
        results.place(RUN, header.to_json())
    found = read_header(results, header)
    (found or header).check(make_header(run))
    save_inputs(results, run.inputs)


def join(header: Header, job: Job, destination: Destination | None) -> Run:
    """Return a run for its tasks, which begins if the folder of results holds none.

    The first process opens the inputs, while others wait; they take what it found.
    """
    results, layout = find_results(destination), header.layout
    read_header(results, header)
    inputs = load_inputs(results, header.storage)
    with nullcontext() if inputs else lock_inputs(results):
        inputs = inputs or load_inputs(results, header.storage)
        if inputs is None:
            check_sets(job)
            run = resolve_job(job, destination, SilentProgress(), layout)
        else:
            run = resolve_opened(job, destination, inputs, layout, SilentProgress())
        # Inputs are cut into fragments as all tasks do it.
        plan = replace(run.plan, block_bytes=header.division.block_bytes)
        run = replace(run, plan=plan, seed=job.options["seed"] or 0, header=header, results=results)
        run = adopt_parts(run, header)
        if header.is_plan:
            header.check(make_header(run))
        share_run(run, header)
    return run


@contextmanager
def open_task_store(run: Run, prefix: str = "set", expected: float | None = None) -> Iterator[Store]:
    """Give a store for the sets of all tasks, or for a set whose name begins with `prefix`, and that is to hold so many records."""
    plan = replace(_plan_store(run, (expected,), prefix), resident_bytes=0, syncs_sets=True)
    with (
        closing(open_sets(run.job, run.header.sets or "", run.plan.spilled_bytes)) as folder,
        closing(Store(plan, RecordCodec(run.pile_schema), folder)) as store,
    ):
        yield store


def _plan_store(run: Run, set_sizes: tuple[float | None, ...], set_prefix: str | None) -> StorePlan:
    plan = run.plan
    return StorePlan(
        plan.pile_count,
        set_sizes,
        plan.resident_bytes,
        plan.output_count,
        plan.spill_compression,
        run.job.options["spill_compression"] is None,
        set_prefix,
    )


def begin_output(
    job: Job, destination: Destination | None, progress: Progress, cleanup: ExitStack
) -> Stage | None:
    """Check the destination, and begin to write it until `cleanup` ends that; None if the output is a stream."""
    if destination is None:
        return None
    if not job.options["resume"]:
        destination.check(overwrite=job.options["overwrite"])
    if destination.is_stream:
        return None
    stage = destination.begin()
    cleanup.push(partial(_leave, stage, job))
    stage.enter(progress.warn, resumes=job.options["resume"])
    if job.options["resume"] and stage.log.last("commit") is None:
        if not stage.is_continued and not job.options["overwrite"] and destination.is_complete():
            raise AlreadyCompleteError(
                f"{destination.name}: exists, and no unfinished run of it is left; nothing to resume"
            )
        destination.check(overwrite=job.options["overwrite"])
    return stage


def explain_again(job: Job) -> str:
    """Return how a user continues a run that has failed."""
    is_task = job.options["engine"] == "tasks"
    return "run this task again" if is_task else "continue with the same command and --resume"


def _leave(
    stage: Stage,
    job: Job,
    _: type[BaseException] | None,
    error: BaseException | None,
    __: TracebackType | None,
) -> None:
    try:
        _remove_or_release(stage, job, error)
    except KeyboardInterrupt as interrupt:  # only the first signal raises, and it must not cut this short
        _remove_or_release(stage, job, error or interrupt)
        raise


def _remove_or_release(stage: Stage, job: Job, error: BaseException | None) -> None:
    # A new run on the same inputs would fail the same way, and data that failed a check may be wrong.
    is_final = isinstance(error, InputError | ConversionError | UsageError) and not (
        stage.is_continued or isinstance(error, UnavailableInputError)
    )
    if error is None or is_final or isinstance(error, CheckError) or not stage.is_resumable:
        stage.remove()
        if error is not None and stage.is_left:
            error.add_note(f"parts of this run are left in {stage.name}{_explain_ways(stage, job, error)}")
        return
    error.add_note(f"finished parts are kept in {stage.name}{_explain_ways(stage, job, error)}")
    stage.release()


def _explain_ways(stage: Stage, job: Job, error: BaseException) -> str:
    """Return what a user can do after an error with what is kept, to follow its name."""
    # A task may lack what others have to do first. Any other command that is wrong fails again.
    is_wrong = isinstance(error, UsageError) and job.options["engine"] != "tasks"
    if is_wrong or isinstance(error, CheckError):
        return f": to start anew, {stage.removal}" if stage.removal else ""
    again = explain_again(job)
    return f": {again}, or {stage.removal}" if stage.removal else f": {again}"


def find_header(job: Job, destination: Destination | None, stage: Stage | None) -> Header | None:
    """Return the header of the unfinished run that is continued; None for a new run."""
    values = None if stage is None else stage.log.header
    if job.uses_tasks or (stage is not None and stage.is_continued):
        # A run may have gone on with tasks.
        values = find_results(destination).read(RUN) or values
    return None if values is None else Header.from_json(values, job.storage)


def _divide(run: Run, before: Header | None) -> tuple[str | None, TaskPlan | None]:
    """Return where the pile sets of tasks go, and the tasks; None for both if the run uses none."""
    if not run.job.uses_tasks:
        return None, None
    if before is not None and before.tasks is not None:
        return before.sets, before.tasks
    assert run.stage is not None  # noqa: S101 - tasks do not write to a stream
    work = run.stage.path if run.stage.keeps_files else None
    return choose_sets(run.job, work), divide_job(run)


def open_run(run: Run, stage: Stage | None, before: Header | None, cleanup: ExitStack) -> Run:
    """Open the resources of a run until `cleanup`, and begin its log, or compare it with the run that is continued."""
    job, stored = run.job, run.inputs.stored
    seed = job.options["seed"] if stored is None else stored.seed
    run = replace(run, seed=secrets.randbits(128) if seed is None else seed, stage=stage)
    stream = _open_stream(run, cleanup)
    results = find_results(run.output.destination) if job.uses_tasks else None
    sets, tasks = _divide(run, before)
    if before is not None:
        # Before the log begins, since that keeps what it begins with for the next attempt.
        before.check(make_header(run))
    run = settle_parts(run, before)
    folder = open_folder(run, sets)
    kept = None if folder.kept is None or stored is not None else str(folder.kept)
    header = before or make_header(run, sets or kept, tasks)
    if stage is not None:
        if stage.log.header is None:
            stage.log.note(header.to_json())
        elif sets is None and kept not in (None, *stage.log.pile_folders):
            stage.log.note({"piles": kept})
    cleanup.callback(folder.close)
    if not job.options["no_space_check"] and job.temp_url is None:
        _check_space(run, folder.parent)
    destination = run.output.destination
    quarantine = open_quarantine(
        run.job,
        run.inputs,
        destination.local_path if destination else None,
        folder.parent if stage is None else stage.path,
        secrets.token_hex(8) if stage is None else stage.name,
        cleanup,
        may_replace=job.options["overwrite"] or (stage is not None and stage.is_continued),
    )
    can_resume = not (job.reads_stdin or job.holds_tables) and stored is None
    keeps_sets = stage is not None and stage.keeps_files and can_resume
    store = make_store(run, folder, keeps_sets=keeps_sets)
    cleanup.callback(store.close)
    run = replace(run, header=header, results=results, stream=stream, quarantine=quarantine, store=store)
    if results is not None and stage is not None:
        results.make()
        share_run(run, header)
    return run


def _open_stream(run: Run, cleanup: ExitStack) -> BinaryIO | None:
    """Return the stream of the output; None for files. Compressed records are not written to a terminal."""
    destination, stdout = run.output.destination, run.job.options.get("stdout")
    compression = run.stream_compression
    if run.job.streams or (destination is not None and not destination.is_stream):
        return None
    if destination is not None:
        stream, remedy = cleanup.enter_context(destination.open_stream()), "name a file"
    elif stdout is not None:
        return stdout
    else:
        stream = bytes_of(sys.stdout, "standard output", "give a file or directory with -o")
        remedy = "redirect it"
    if compression != "none" and stream.isatty():
        raise UsageError(
            f"{run.output.name} is a terminal, and the output is compressed ({compression}); {remedy}, or give --compression none"
        )
    return stream


def open_folder(run: Run, sets: str | None) -> SetFolder:
    """Return the folder of spilled piles, which a continued run keeps; with tasks, that of their sets.

    A continued run reads the sets of all earlier attempts. New ones go to ``--temp-dir``, or if that is not given, to the
    folder of the last attempt.
    """
    job, stage, needed = run.job, run.stage, run.plan.spilled_bytes
    if sets is not None:
        return open_sets(job, sets, needed)
    parent = choose_temp_dir(job.temp_dir, stage.path if stage and stage.keeps_files else None)
    if run.inputs.stored is not None:
        return run.inputs.stored.open_sets(parent)
    if stage is None or not stage.keeps_files:
        return SetFolder(parent, needed_bytes=needed)
    newest_first = [Path(folder) for folder in reversed(stage.log.pile_folders)]
    kept = _choose_kept(job, stage, newest_first)
    if job.temp_dir is None and kept.parent != stage.path:
        parent = kept.parent
    shown = stage.path.parent if parent == stage.path else None
    return SetFolder(parent, kept, [folder for folder in newest_first if folder != kept], needed, shown)


def _choose_kept(job: Job, stage: Stage, newest_first: Sequence[Path]) -> Path:
    """Return the folder of new pile sets: of an earlier attempt, if there is one where they are to go."""
    usable = [folder for folder in newest_first if folder.parent.is_dir()]
    if job.temp_dir is None and usable:
        return usable[0]
    new = Path(choose_sets(job, stage.path))
    return next((folder for folder in usable if folder.parent == new.parent), new)


def open_quarantine(
    job: Job,
    inputs: Inputs,
    output: Path | None,
    folder: Path,
    name: str,
    cleanup: ExitStack,
    *,
    may_replace: bool,
) -> Quarantine | None:
    """Return the quarantine, None if bad records are errors; `cleanup` withdraws it unless it was settled.

    `output` is the local file or folder that the run writes, if there is one, `folder` that of the unnamed file, and `name` tells runs
    apart.
    """
    path = job.quarantine
    if path is None:
        return None
    from recshuf.output.quarantine import check_path  # it brings what formats lines as JSON

    files = [file.path for file in inputs.files if file.path is not None and file.stamp is not None]
    check_path(path, files, output, overwrite=may_replace)
    return make_quarantine(inputs, path, folder, name, cleanup)


def make_quarantine(inputs: Inputs, path: Path, folder: Path, name: str, cleanup: ExitStack) -> Quarantine:
    from recshuf.formats import load_format
    from recshuf.output.quarantine import Quarantine

    traits = load_format(inputs.format).traits
    quarantine = Quarantine(
        path,
        folder,
        [summary.name for summary in inputs.source.inputs],
        name,
        header_lines=0 if inputs.source.spans_lines else inputs.source.header_lines,
        separator_bytes=inputs.source.end_bytes if traits.is_lines and not traits.is_framed else 0,
    )
    cleanup.callback(quarantine.close)
    cleanup.callback(quarantine.withdraw)
    return quarantine


def make_store(run: Run, folder: SetFolder, *, keeps_sets: bool) -> Store:
    """Return an empty pile store; with `keeps_sets`, a later run can adopt its sets."""
    set_counts: list[list[int | None]] = [[] for _ in range(run.plan.set_count)]
    for set_index, size in zip(run.plan.set_of_input, run.inputs.sizes, strict=True):
        set_counts[set_index].append(size.record_count)
    plan = _plan_store(run, tuple(map(sum_known, set_counts)), "set" if keeps_sets else None)
    return Store(plan, RecordCodec(run.pile_schema), folder)


def _check_space(run: Run, scratch: Path) -> None:
    """Refuse a run if the plan needs more disk space than is free, with what a run that is continued has written.

    The size of an output in another format or compression is unknown; only the scratch counts then, as for streams.
    """
    plan, stage = run.plan, run.stage
    output_bytes = plan.peak_disk_bytes - plan.spilled_bytes if run.keeps_size else 0
    needs = [("spilled records", scratch, plan.spilled_bytes)]
    if stage is not None:
        needs.append(("the output", stage.path, output_bytes))
    by_device = defaultdict(list)
    for need in needs:
        if need[2]:
            by_device[need[1].stat().st_dev].append(need)
    written = _count_written(stage)
    for device, parts in by_device.items():
        folder, needed = parts[0][1], sum(part[2] for part in parts) - written[device]
        free = free_bytes(folder)
        if free is not None and needed > free:
            raise DiskFullError(
                f"{folder}: {' and '.join(part[0] for part in parts)}: about {format_size(needed)} needed, and "
                f"{format_size(free)} are free; free some, choose another --temp-dir or output, or give "
                "--no-space-check"
            )


def _count_written(stage: Stage | None) -> Counter[int]:
    """Return the bytes on each device that a run which is continued has written."""
    written = Counter[int]()
    folders = {stage.path, *map(Path, stage.log.pile_folders)} if stage and stage.is_continued else ()
    for path in {path for folder in folders for path in folder.rglob("*") if path.is_file()}:
        status = path.lstat()
        written[status.st_dev] += _BLOCK_BYTES * status.st_blocks
    return written
