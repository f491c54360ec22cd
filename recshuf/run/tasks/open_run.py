"""A run that several machines work on, as a task sees it: its folders, and its job, resolved here."""

from __future__ import annotations

from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError, UsageError
from recshuf.job.progress import SilentProgress
from recshuf.piles.encoding.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.run_piles import RunPiles
from recshuf.run.resolving.resolve import find_destination, resolve_job, resolve_opened
from recshuf.run.resume import Earlier, describe_job
from recshuf.run.set_folders import check_sets, open_sets
from recshuf.run.tasks.results import RUN
from recshuf.run.tasks.saved_inputs import load_inputs, lock_inputs, save_inputs
from recshuf.run.tasks.shared_run import SharedRun, find_tasks, fit_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.job.job import Job
    from recshuf.output.task_folder import TaskFolder
    from recshuf.output.transaction import Destination
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.run.set_folders import SetFolder
    from recshuf.run.tasks.address import RunAddress


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose job this process has resolved."""

    run: SharedRun
    tasks: TaskFolder
    resolved: ResolvedJob
    sets: SetFolder
    """The pile sets of all tasks."""

    @classmethod
    def of(cls, run: SharedRun, tasks: TaskFolder, resolved: ResolvedJob) -> OpenRun:
        """Return a run whose job is resolved."""
        return cls(run, tasks, resolved, open_sets(resolved.job, run.piles))

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.resolved.job.options["seed"] or 0

    @contextmanager
    def open_piles(self, prefix: str = "set", expected: float | None = None) -> Iterator[RunPiles]:
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
            keeps_sets=True,
            set_prefix=prefix,
            syncs_sets=True,
        )
        codec = choose_codec(self.resolved.pile_schema)
        with (
            closing(self.sets.open_scratch(plan.spilled_bytes)) as scratch,
            closing(RunPiles(store_plan, codec, scratch)) as store,
        ):
            yield store


def begin_run(run: SharedRun, resolved: ResolvedJob, seed: int, planned: Earlier | None = None) -> None:
    """Write a run, its job and its inputs to its task folder, which exists, or compare them with those that are there.

    Parameters
    ----------
    planned
        What the saved plan of the run says, which the job must fit; None if it has none.

    Raises
    ------
    UsageError, InputError
        When the folder is that of another run, or this machine has other inputs or versions.
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
    """Return the run that a task folder holds; None if it holds none.

    Raises
    ------
    UsageError
        When it is another one.
    """
    found: dict[str, Any] | None = tasks.read(RUN)
    if found is not None and found["run"]["id"] != run.id:
        raise UsageError(f"{tasks.address}: holds tasks of another plan; finish them, or {tasks.removal}")
    return found


@lru_cache(maxsize=1)
def open_run(address: RunAddress) -> OpenRun:
    """Return a run from its task folder.

    Raises
    ------
    OutputError
        When the folder is gone, or that of another run.
    """
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

    Raises
    ------
    RecshufError
        As `begin_run` does, or when the job cannot be run.
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
        opened = OpenRun.of(run, tasks, fit_plan(resolved, run.tasks))
        begin_run(run, opened.resolved, opened.seed, planned)
    return opened
