"""Results of tasks, in the task folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.engines.finished import describe_missing
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from recshuf.output.task_folder import TaskFolder

RUN = "run"
"""Name of the file of the run."""


def name_result(number: int) -> str:
    """Return the name of the result of a task in its folder.

    >>> name_result(3)
    'task-000003'
    """
    return f"task-{number:06d}"


def read_results(tasks: TaskFolder, numbers: range) -> dict[int, Any]:
    """Return the results of some tasks, by number.

    Raises
    ------
    UsageError
        When one is missing.
    """
    found = {number: tasks.read(name_result(number)) for number in numbers}
    missing = [f"task {number}" for number, result in found.items() if result is None]
    if missing:
        raise UsageError(f"{describe_missing(missing)}: not done; run recshuf task with these numbers first")
    return found
