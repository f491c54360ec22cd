"""Tasks of a run in other processes: small values that an engine hands to them, and what they do with these.

Arrow reads the settings of its allocators when it is imported, and only the run tells them. So nothing here imports it at once.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.errors import OutputError
from recshuf.output.local.log import FileResults
from recshuf.output.run_log import RUN, TaskResults, name_result
from recshuf.storage import is_url
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.run.resolve import Run
    from recshuf.storage import StorageOptions


class RunAddress(NamedTuple):
    """Where tasks find their run."""

    tasks: str
    """Address of its task folder."""
    output: str
    """Name of its output, for messages."""
    run_id: str
    memory_bytes: int
    """Memory limit of a task."""
    workers: int
    """Threads of a task."""
    processes: int
    """How many tasks of this machine run at a time; 0 if others do the work."""
    storage: StorageOptions
    """How object stores are reached, which nothing in the task folder tells."""

    def __hash__(self) -> int:  # the options are a dict
        return hash(self.run_id)

    def open_tasks(self) -> TaskResults:
        return _open_objects(self) if is_url(self.tasks) else FileResults(Path(self.tasks))


@lru_cache(maxsize=1)
def _open_objects(run: RunAddress) -> TaskResults:
    """Return a task folder in an object store; the next task of the run uses its connections again."""
    from recshuf.output.objects.log import ObjectResults

    return ObjectResults.open(run.tasks, run.storage, run.output)


def run_task(run: RunAddress, number: int) -> dict[str, Any]:
    """Run a task, and return its result, which is then in the folder of results. If it has been run, return that result."""
    result: dict[str, Any] | None = run.open_tasks().read(name_result(run.run_id, number))
    if result is not None:
        return result
    # The work imports Arrow, which reads its settings then.
    choose_allocators(run.memory_bytes)
    try:
        return do_work(_join(run), number)
    except Exception as error:
        from recshuf.formats import note_culprit

        note_culprit(error)
        raise


@lru_cache(maxsize=1)
def _join(address: RunAddress) -> Run:
    """Return the run of a task; the next task of the run finds it open."""
    from recshuf.run.header import Header
    from recshuf.run.open_run import join
    from recshuf.run.resolve import find_destination

    values = address.open_tasks().read(RUN)
    if values is None or values["id"] != address.run_id:
        raise OutputError(f"{address.tasks}: the run of this task has ended")
    header = Header.from_json(values, address.storage)
    # Those of the attempt that runs the task, which may not be the first one.
    share = {name: getattr(address, name) for name in ("memory_bytes", "workers", "processes")}
    job = replace(header.make_job(), **share)
    return join(header, job, find_destination(job))


def do_work(run: Run, number: int) -> dict[str, Any]:
    """Run a task that has no result yet, and return its result: the entries of what it has finished.

    Of two processes that do this at the same time, one deletes what it has written.
    """
    from recshuf.run.scatter_pass import count_part, scatter_set
    from recshuf.run.shards import gather_range

    results, tasks = run.results, run.tasks
    assert results is not None  # noqa: S101 - it is a task
    with ExitStack() as cleanup:
        if number in tasks.gather:
            entries = [shard.to_json() for shard in gather_range(run, number, cleanup)]
        elif number in tasks.scatter:
            entries = [scatter_set(run, number - tasks.scatter.start, cleanup).to_json()]
        else:
            entries = [count_part(run, number)]
        result = {"task": number, "by": secrets.token_hex(8), "entries": entries}
        try:
            placed: dict[str, Any] = results.place(name_result(run.header.id, number), result)
            if placed["by"] == result["by"]:
                cleanup.pop_all()
        except KeyboardInterrupt:  # a signal, perhaps when it is in place
            cleanup.pop_all()
            raise
    return placed
