"""Tasks of a run, each a small value that any machine can run; imports little, so that allocators can be chosen first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.run.tasks.results import name_result
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.run.tasks.address import RunAddress


class Task(NamedTuple):
    """A task of a run."""

    run: RunAddress
    number: int

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"task {self.number}"


def run_task(task: Task) -> dict[str, Any]:
    """Run a task, and return its result, which is then in the task folder. If it has been run, return that result.

    Raises
    ------
    UsageError
        When results that it needs are missing, or options or versions differ from those of other tasks.
    RecshufError
        When it fails.
    """
    tasks = task.run.open_tasks()
    result: dict[str, Any] | None = tasks.read(name_result(task.run.run_id, task.number))
    if result is not None:
        return result
    # The work imports Arrow, which reads its settings then.
    choose_allocators(task.run.memory_bytes)
    from recshuf.run.tasks.open_run import open_run
    from recshuf.run.tasks.work import do_work

    return do_work(open_run(task.run), task.number)
