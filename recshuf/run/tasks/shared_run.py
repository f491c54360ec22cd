"""A run as several machines know it: JSON values from which each of them resolves the same job."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.engines.registry import LOCAL
from recshuf.errors import UsageError
from recshuf.formats.stored import pack, unpack
from recshuf.job.arguments import make_job
from recshuf.job.options import Options, refuse_unknown
from recshuf.job.task_plan import TaskPlan, divide, find_large_inputs
from recshuf.run.set_folders import choose_sets
from recshuf.storage.urls import is_url

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.output.task_folder import TaskFolder
    from recshuf.output.transaction import Destination
    from recshuf.run.resolving.resolve import ResolvedJob
    from recshuf.storage.settings import StorageOptions

_FORMAT = 3
_LEFT_OUT = ("stdin", "stdout", "resume", "ray_address", "endpoint_url", "storage_options")
"""Options that tasks do not need, and those of `storage`."""


def damaged_plan() -> UsageError:
    """Return the error for a plan that is not as recshuf has made it."""
    return UsageError("the plan is damaged; make it again")


def check_format(values: Any) -> None:
    """Refuse what `SharedRun.to_json` of another version of recshuf has returned.

    Raises
    ------
    UsageError
        Says so.
    """
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise UsageError("the plan is of another version of recshuf; make it again")


@dataclass(frozen=True, slots=True)
class SharedRun:
    """What all tasks of a run have in common."""

    id: str
    """Tells it from other runs with the same output."""
    inputs: tuple[str, ...]
    output: str
    options: str
    """Of `make_job`, as JSON, without those of `storage`."""
    folder: str
    """Folder that relative paths start from."""
    piles: str
    """Where the pile sets are; see `choose_sets`."""
    tasks: TaskPlan
    storage: StorageOptions

    @classmethod
    def of(cls, resolved: ResolvedJob, seed: int, piles: str | None = None) -> SharedRun:
        """Return the run of a job.

        Parameters
        ----------
        piles
            Where the pile sets are. Default: as the job says.
        """
        job, tasks = resolved.job, find_tasks(resolved.output.destination).private
        work = None if tasks is None else tasks.parent
        return cls(
            secrets.token_hex(8),
            job.inputs,
            job.output or "",
            _pack_options(job, seed),
            str(Path.cwd()),
            piles or choose_sets(job, work),
            divide_job(resolved),
            job.storage,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values, without the storage options, which may be secrets."""
        return {
            "format": _FORMAT,
            "id": self.id,
            "inputs": self.inputs,
            "output": self.output,
            "options": json.loads(self.options),
            "folder": self.folder,
            "piles": self.piles,
            "tasks": self.tasks.to_json(),
        }

    @classmethod
    def from_json(cls, values: Any, storage: StorageOptions) -> SharedRun:
        """Return the run that `to_json` returned, with storage options.

        Raises
        ------
        UsageError
            When another version of recshuf has written it.
        """
        check_format(values)
        return cls(
            values["id"],
            tuple(values["inputs"]),
            values["output"],
            json.dumps(values["options"]),
            values["folder"],
            values["piles"],
            TaskPlan.from_json(values["tasks"]),
            storage,
        )

    def make_job(self) -> Job:
        """Return the job, and make this process use the folder that its paths start from.

        Raises
        ------
        UsageError
            When that folder does not exist here, or options are damaged.
        """
        if not all(is_url(path) or os.path.isabs(path) for path in (*self.inputs, self.output)):  # noqa: PTH117 - texts
            try:
                os.chdir(self.folder)
            except OSError as error:
                raise UsageError(
                    f"{self.folder}: {error.strerror}; run tasks where this folder is shared, or give absolute paths"
                ) from error
        try:
            options = {name: unpack(value, ()) for name, value in json.loads(self.options).items()}
            refuse_unknown(options, Options)
        except (LookupError, TypeError, AttributeError, StopIteration) as error:
            raise damaged_plan() from error
        options |= {"endpoint_url": self.storage.endpoint_url, "storage_options": self.storage.options}
        return make_job(self.inputs, self.output, options)  # type: ignore[arg-type] # they are its own


def find_tasks(destination: Destination | None) -> TaskFolder:
    """Return the folder of the tasks of a run, which is beside its output.

    Raises
    ------
    UsageError
        When the output is a stream.
    """
    if destination is None or destination.is_stream:
        raise UsageError("--engine: other processes cannot write a stream; give a file or directory with -o")
    return destination.tasks


def _pack_options(job: Job, seed: int) -> str:
    """Return the options of a job as JSON; those that depend on the machine or the working folder are fixed."""
    given = {name: value for name, value in job.options.items() if name not in _LEFT_OUT}
    temp_dir = job.options["temp_dir"] if job.temp_dir is None else job.temp_dir.absolute()
    parsed = {
        "seed": seed,
        "engine": LOCAL if job.options["engine"] == LOCAL else "tasks",
        "memory": job.memory_bytes,
        "workers": job.workers,
        "datasets": job.read.datasets,
        "columns": job.read.columns,
        "schema": job.read.schema,
        "temp_dir": None if temp_dir is None else os.fspath(temp_dir),
        # The job has derived it from --zero-terminated, beside which it may not be given.
        "separator": None if job.options["zero_terminated"] else job.options["separator"],
    }
    return json.dumps({name: pack(value) for name, value in (given | parsed).items()})


def divide_job(resolved: ResolvedJob) -> TaskPlan:
    """Return the tasks of a job; large inputs that can be read in parts are."""
    plan, source = resolved.plan, resolved.inputs.source
    byte_counts = resolved.inputs.sizes.byte_counts.tolist()
    fragments = {
        index: [one.record_count for one in source.fragments(index, plan.block_bytes, plan.max_record_bytes)]
        for index in find_large_inputs(plan, byte_counts)
        if source.skips_fragments(index)
    }
    return divide(plan, byte_counts, fragments)


def fit_plan(resolved: ResolvedJob, tasks: TaskPlan) -> ResolvedJob:
    """Return a job that cuts inputs into fragments as the tasks of its run do."""
    return replace(resolved, plan=replace(resolved.plan, block_bytes=tasks.block_bytes))
