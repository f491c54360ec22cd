"""Tasks of a run, each a small value that any machine can run; imports little, so that allocators can be chosen first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from recshuf.output.task_folder import TaskFolder
from recshuf.run.task_results import name_result


class Task(NamedTuple):
    """A task of a run."""

    folder: str
    """Task folder of the run."""
    run_id: str
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
    tasks = TaskFolder(Path(task.folder))
    result: dict[str, Any] | None = tasks.read(name_result(task.number))
    if result is not None:
        return result
    # The work imports Arrow.
    from recshuf.run.open_run import open_run
    from recshuf.run.task_work import do_work

    return do_work(open_run(task.folder, task.run_id), task.number)
