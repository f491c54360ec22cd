"""A run that several machines work on, as a task sees it: its folders, and its job, resolved here."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, UsageError
from recshuf.job.progress import SilentProgress
from recshuf.output.task_folder import TaskFolder
from recshuf.piles.encoding.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.run_piles import RunPiles
from recshuf.run.resolve import find_destination, resolve_job
from recshuf.run.resume import Earlier, describe_job
from recshuf.run.set_folders import open_sets
from recshuf.run.shared_run import SharedRun, find_tasks, fit_plan
from recshuf.run.task_results import RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.run.resolve import ResolvedJob
    from recshuf.run.set_folders import SetFolder


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


def begin_run(run: SharedRun, resolved: ResolvedJob, seed: int) -> None:
    """Write a run and its job to its task folder, which exists, or compare them with those that are there.

    Raises
    ------
    UsageError, InputError
        When the folder is that of another run, or this machine has other inputs or versions.
    """
    tasks = find_tasks(resolved.job)
    header = describe_job(resolved, seed, None)
    found = tasks.place(RUN, {"run": run.to_json(), "job": header})
    if found["run"]["id"] != run.id:
        raise UsageError(
            f"{tasks.path.parent}: holds tasks of another plan; finish them, or delete that folder"
        )
    Earlier(found["job"], [], {}).check(header)


@lru_cache(maxsize=1)
def open_run(folder: str, run_id: str) -> OpenRun:
    """Return a run from its task folder.

    Raises
    ------
    OutputError
        When the folder is gone, or that of another run.
    """
    tasks = TaskFolder(Path(folder))
    found = tasks.read(RUN)
    if found is None or found["run"]["id"] != run_id:
        raise OutputError(f"{folder}: the run of this task has ended")
    run = SharedRun.from_json(found["run"])
    resolved = resolve_shared(run)
    opened = OpenRun.of(run, tasks, resolved)
    begin_run(run, resolved, opened.seed)
    return opened


def resolve_shared(run: SharedRun) -> ResolvedJob:
    """Return the job of a run, resolved for its tasks."""
    job = run.make_job()
    return fit_plan(resolve_job(job, find_destination(job), SilentProgress(), run.tasks.piles), run.tasks)
