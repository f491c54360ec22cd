"""A run whose job is resolved, with its resources: work folder, scratch, quarantine, stream; and how a task opens it."""

from __future__ import annotations

import secrets
import sys
from collections import defaultdict
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.errors import (
    AlreadyCompleteError,
    CheckError,
    ConversionError,
    DiskFullError,
    InputError,
    OutputError,
    UnavailableInputError,
    UsageError,
)
from recshuf.formats import load_format
from recshuf.job.plan import sum_known
from recshuf.job.report import SilentProgress
from recshuf.output.run_log import RUN
from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.store import Store
from recshuf.records.digests import Digest, InputCount, InputCounts
from recshuf.run.header import Earlier, SharedRun, describe_job, find_tasks, fit_plan
from recshuf.run.resolve import find_destination, resolve_job, resolve_opened
from recshuf.run.saved_inputs import load_inputs, lock_inputs, save_inputs
from recshuf.run.set_folders import check_sets, choose_sets, open_sets
from recshuf.system.paths import choose_temp_dir, free_bytes
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack
    from types import TracebackType
    from typing import BinaryIO

    from recshuf.interfaces import Decoder
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.quarantine import Quarantine
    from recshuf.output.run_log import TaskFolder
    from recshuf.output.stage import Destination, Transaction
    from recshuf.run.address import RunAddress
    from recshuf.run.resolve import ResolvedJob


def adopt_set(store: Store, set_index: int, result: dict[str, Any], counts: InputCounts) -> None:
    """Adopt the pile set of a task, and add to the counts of its inputs."""
    if result["set"] is not None:
        store.adopt(set_index, result["set"], reads_all=False)
    for index, byte_count, *digest in result["counts"]:
        counts.include(index, InputCount(byte_count, Digest(*digest)))


def merge_states(decoder: Decoder | None, results: Sequence[dict[str, Any]]) -> None:
    """Let a decoder learn what those of the tasks have learned."""
    if decoder is not None:
        for result in results:
            decoder.merge(result["state"])


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose job this process has resolved."""

    run: SharedRun
    tasks: TaskFolder
    resolved: ResolvedJob

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.resolved.job.options["seed"] or 0

    @contextmanager
    def open_piles(self, prefix: str = "set", expected: float | None = None) -> Iterator[Store]:
        """Give a store for the sets of all tasks, or for a set with a name of its own.

        Parameters
        ----------
        prefix
            Beginning of the name of a new set.
        expected
            Number of records to expect in it, if known.
        """
        plan = self.resolved.plan
        store_plan = StorePlan(
            plan.pile_count,
            (expected,),
            resident_bytes=0,
            output_count=plan.output_count,
            region_piles=plan.region_piles,
            compression=plan.spill_compression,
            set_prefix=prefix,
            syncs_sets=True,
        )
        codec = choose_codec(self.resolved.pile_schema)
        with (
            closing(open_sets(self.resolved.job, self.run.piles, plan.spilled_bytes)) as folder,
            closing(Store(store_plan, codec, folder)) as store,
        ):
            yield store


def begin_run(run: SharedRun, resolved: ResolvedJob, seed: int, planned: Earlier | None = None) -> None:
    """Write a run, its job and its inputs to its task folder, which exists, or compare them with those that are there.

    Parameters
    ----------
    planned
        What the saved plan of the run says, which the job must fit; None if it has none.
    """
    tasks = find_tasks(resolved.output.destination)
    header = describe_job(resolved, seed, None)
    if planned is not None:
        planned.check(header)
    if read_run(run, tasks) is None:
        tasks.place(RUN, {"run": run.to_json(), "job": header})
    found = read_run(run, tasks) or {}
    Earlier(found["job"], [], {}).check(header)
    save_inputs(tasks, resolved.inputs)


def read_run(run: SharedRun, tasks: TaskFolder) -> dict[str, Any] | None:
    """Return the run that a task folder holds; None if it holds none."""
    found: dict[str, Any] | None = tasks.read(RUN)
    if found is not None and found["run"]["id"] != run.id:
        raise UsageError(f"{tasks.address}: holds tasks of another plan; finish them, or {tasks.removal}")
    return found


@lru_cache(maxsize=1)
def open_run(address: RunAddress) -> OpenRun:
    """Return a run from its task folder."""
    tasks = address.open_tasks()
    found = tasks.read(RUN)
    if found is None or found["run"]["id"] != address.run_id:
        raise OutputError(f"{address.tasks}: the run of this task has ended")
    run = SharedRun.from_json(found["run"], address.storage)
    job = run.make_job()
    return join_run(run, tasks, job, find_destination(job))


def join_run(
    run: SharedRun,
    tasks: TaskFolder,
    job: Job,
    destination: Destination | None,
    planned: Earlier | None = None,
) -> OpenRun:
    """Return a run for its tasks, which is begun if its folder holds none.

    The first process opens the inputs, while others wait; they take what it found.

    Parameters
    ----------
    planned
        As for `begin_run`.
    """
    piles = run.tasks.piles
    read_run(run, tasks)
    inputs = load_inputs(tasks, run.storage)
    with nullcontext() if inputs else lock_inputs(tasks):
        inputs = inputs or load_inputs(tasks, run.storage)
        if inputs is None:
            check_sets(job)
            resolved = resolve_job(job, destination, SilentProgress(), piles)
        else:
            resolved = resolve_opened(job, destination, inputs, piles, SilentProgress())
        opened = OpenRun(run, tasks, fit_plan(resolved, run.tasks))
        begin_run(run, opened.resolved, opened.seed, planned)
    return opened


@dataclass(frozen=True, slots=True)
class Workspace:
    """The resources of a run."""

    seed: int
    work: Transaction | None
    """None if the output is a stream."""
    earlier: Earlier | None
    """Finished parts of the run to continue; None for a new run."""
    stream: BinaryIO | None
    """Stream of the output; None for files."""
    quarantine: Quarantine | None
    """None if bad records are errors."""
    store: Store


def begin_output(
    job: Job, destination: Destination | None, progress: Progress, cleanup: ExitStack
) -> Transaction | None:
    """Check the destination, and begin to write it until `cleanup` ends that; None if the output is a stream."""
    if destination is None:
        return None
    if not job.options["resume"]:
        destination.check(overwrite=job.options["overwrite"])
    if destination.is_stream:
        return None
    work = destination.begin()
    cleanup.push(partial(_leave, work, job))
    work.enter(progress.warn, resumes=job.options["resume"])
    if job.options["resume"] and work.journal.last("commit") is None:
        _check_incomplete(job, destination, work)
        destination.check(overwrite=job.options["overwrite"])
    return work


def explain_again(job: Job) -> str:
    """Return how a user continues a run that has failed."""
    is_task = job.options["engine"] == "tasks"
    return "run this task again" if is_task else "continue with the same command and --resume"


def _check_incomplete(job: Job, destination: Destination, work: Transaction) -> None:
    """Raise `AlreadyCompleteError` if there is nothing to resume, and the output exists and is not to be replaced."""
    if not work.is_continued and not job.options["overwrite"] and destination.is_complete():
        raise AlreadyCompleteError(
            f"{destination.name}: exists, and no unfinished run of it is left; nothing to resume"
        )


def _leave(
    work: Transaction,
    job: Job,
    _: type[BaseException] | None,
    error: BaseException | None,
    __: TracebackType | None,
) -> None:
    """Leave the work folder at the end of a run."""
    try:
        _remove_or_release(work, job, error)
    except KeyboardInterrupt as interrupt:  # only the first signal raises, and it must not cut this short
        _remove_or_release(work, job, error or interrupt)
        raise


def _remove_or_release(work: Transaction, job: Job, error: BaseException | None) -> None:
    # A new run on the same inputs would fail the same way, and data that failed a check may be wrong.
    is_final = isinstance(error, InputError | ConversionError | UsageError) and not (
        work.is_continued or isinstance(error, UnavailableInputError)
    )
    if error is None or is_final or isinstance(error, CheckError) or not work.is_resumable:
        work.remove()
        if error is not None and work.is_left:
            error.add_note(f"parts of this run are left in {work.name}{_explain_ways(work, job, error)}")
        return
    error.add_note(f"finished parts are kept in {work.name}{_explain_ways(work, job, error)}")
    work.release()


def _explain_ways(work: Transaction, job: Job, error: BaseException) -> str:
    """Return what a user can do after an error with what is kept, to follow its name."""
    # A task may lack what others have to do first. Any other command that is wrong fails again.
    is_wrong = isinstance(error, UsageError) and job.options["engine"] != "tasks"
    if is_wrong or isinstance(error, CheckError):
        return f": to start anew, {work.removal}" if work.removal else ""
    again = explain_again(job)
    return f": {again}, or {work.removal}" if work.removal else f": {again}"


def open_workspace(
    resolved: ResolvedJob,
    work: Transaction | None,
    earlier: Earlier | None,
    cleanup: ExitStack,
    piles: str | None = None,
) -> Workspace:
    """Open the resources of a run until `cleanup`, and begin its journal or check it against `earlier`.

    Parameters
    ----------
    piles
        Where its tasks keep pile sets; see `choose_sets`. None without tasks.
    """
    job, folder = resolved.job, work.path if work else None
    stored = resolved.inputs.stored
    seed = job.options["seed"] if stored is None else stored.seed
    if seed is None:
        seed = earlier.seed if earlier else secrets.randbits(128)
    stream = _open_stream(resolved, cleanup)
    sets = open_folder(resolved, work, earlier, piles)
    if work is not None:
        header = describe_job(resolved, seed, sets.kept if stored is None else None)
        if earlier is None:
            work.journal.note(header)
        else:
            earlier.check(header)
            if piles is None and stored is None and sets.kept not in (None, *earlier.pile_folders):
                work.journal.note({"piles": str(sets.kept)})
    cleanup.callback(sets.close)
    if not job.options["no_space_check"] and job.temp_url is None:
        _check_space(resolved, sets.parent, folder)
    quarantine = open_quarantine(resolved, work, sets.parent, cleanup)
    keeps_sets = work is not None and work.keeps_files and not job.reads_stdin and stored is None
    store = make_store(resolved, sets, keeps_sets=keeps_sets)
    cleanup.callback(store.close)
    return Workspace(seed, work, earlier, stream, quarantine, store)


def _open_stream(resolved: ResolvedJob, cleanup: ExitStack) -> BinaryIO | None:
    destination, stdout = resolved.output.destination, resolved.job.options.get("stdout")
    if destination is not None:
        if not destination.is_stream:
            return None
        stream = cleanup.enter_context(destination.open_stream())
        _refuse_terminal(stream, resolved, destination.name, "name a file")
        return stream
    if stdout is not None:
        return stdout
    if sys.stdout is None:
        raise UsageError("standard output is closed; give a file or directory with -o")
    _refuse_terminal(sys.stdout.buffer, resolved, "standard output", "redirect it")
    return sys.stdout.buffer


def _refuse_terminal(stream: BinaryIO, resolved: ResolvedJob, name: str, remedy: str) -> None:
    """Refuse to write compressed records to a terminal."""
    compression = resolved.stream_compression
    if compression != "none" and stream.isatty():
        raise UsageError(
            f"{name} is a terminal, and the output is compressed ({compression}); {remedy}, or give --compression none"
        )


def open_folder(
    resolved: ResolvedJob, work: Transaction | None, earlier: Earlier | None, piles: str | None = None
) -> SetFolder:
    """Return the folder of spilled piles, which a continued run keeps; with tasks, that of their sets.

    A continued run reads the sets of all earlier attempts. New ones go to ``--temp-dir``, or if that is not given, to the
    folder of the last attempt.
    """
    job, needed = resolved.job, resolved.plan.spilled_bytes
    if piles is not None:
        return open_sets(job, piles, needed)
    parent = choose_temp_dir(job.temp_dir, work.path if work and work.keeps_files else None)
    if resolved.inputs.stored is not None:
        return SetFolder(parent, resolved.inputs.stored.sets_folder, of_store=True)
    if work is None or not work.keeps_files:
        return SetFolder(parent, needed_bytes=needed)
    newest_first = earlier.pile_folders[::-1] if earlier else ()
    kept = _choose_kept(job, work, newest_first)
    if job.temp_dir is None and kept.parent != work.path:
        parent = kept.parent
    shown = work.path.parent if parent == work.path else None
    return SetFolder(parent, kept, [folder for folder in newest_first if folder != kept], needed, shown)


def _choose_kept(job: Job, work: Transaction, newest_first: Sequence[Path]) -> Path:
    """Return the folder of new pile sets: of an earlier attempt, if there is one where they are to go."""
    usable = [folder for folder in newest_first if folder.parent.is_dir()]
    if job.temp_dir is None and usable:
        return usable[0]
    new = Path(choose_sets(job, work.path))
    return next((folder for folder in usable if folder.parent == new.parent), new)


def open_quarantine(
    resolved: ResolvedJob, work: Transaction | None, parent: Path, cleanup: ExitStack
) -> Quarantine | None:
    """Return the quarantine, None if bad records are errors; `cleanup` withdraws it unless it was settled."""
    path = resolved.job.quarantine
    if path is None:
        return None
    from recshuf.output.quarantine import check_path  # it brings what formats lines as JSON

    folder, run = (parent, secrets.token_hex(8)) if work is None else (work.path, work.name)
    destination = resolved.output.destination
    inputs = [file.path for file in resolved.inputs.files if file.path is not None and file.stamp is not None]
    overwrite = resolved.job.options["overwrite"] or resolved.job.options["resume"]
    check_path(path, inputs, destination.local_path if destination else None, overwrite=overwrite)
    quarantine = make_quarantine(resolved, path, folder, run)
    cleanup.callback(quarantine.close)
    cleanup.callback(quarantine.withdraw)
    return quarantine


def make_quarantine(resolved: ResolvedJob, path: Path, folder: Path, run: str) -> Quarantine:
    """Return a quarantine of a job; see `Quarantine`."""
    read, names = resolved.job.read, [summary.name for summary in resolved.inputs.source.inputs]
    from recshuf.output.quarantine import Quarantine

    return Quarantine(
        path,
        folder,
        names,
        run,
        header_lines=0 if load_format(resolved.inputs.format).traits.spans_lines else read.header_lines,
        separator_bytes=len(read.separator),
    )


def make_store(resolved: ResolvedJob, folder: SetFolder, *, keeps_sets: bool) -> Store:
    """Return an empty pile store; with `keeps_sets`, a later run can adopt its sets."""
    plan = resolved.plan
    set_counts: list[list[int | None]] = [[] for _ in range(plan.set_count)]
    for set_index, size in zip(plan.set_of_input, resolved.inputs.sizes, strict=True):
        set_counts[set_index].append(size.record_count)
    store_plan = StorePlan(
        plan.pile_count,
        tuple(map(sum_known, set_counts)),
        plan.resident_bytes,
        plan.output_count,
        plan.region_piles,
        plan.spill_compression,
        "set" if keeps_sets else None,
    )
    return Store(store_plan, choose_codec(resolved.pile_schema), folder)


def _check_space(resolved: ResolvedJob, scratch: Path, output: Path | None) -> None:
    """Refuse a run if the plan needs more disk space than is free.

    The size of an output in another format or compression is unknown; only the scratch counts then.

    Parameters
    ----------
    output
        None for a stream.
    """
    plan = resolved.plan
    output_bytes = plan.peak_disk_bytes - plan.spilled_bytes if resolved.keeps_size else 0
    needs = [("spilled records", scratch, plan.spilled_bytes)]
    if output is not None:
        needs.append(("the output", output, output_bytes))
    by_device = defaultdict(list)
    for need in needs:
        if need[2]:
            by_device[need[1].stat().st_dev].append(need)
    for parts in by_device.values():
        folder, needed = parts[0][1], sum(part[2] for part in parts)
        free = free_bytes(folder)
        if free is not None and needed > free:
            raise DiskFullError(
                f"{folder}: {' and '.join(part[0] for part in parts)}: about {format_size(needed)} needed, and "
                f"{format_size(free)} are free; free some, choose another --temp-dir or output, or give "
                "--no-space-check"
            )
