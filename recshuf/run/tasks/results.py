"""Results of tasks, in the task folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.engines.finished import refuse_missing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recshuf.output.task_folder import TaskFolder

RUN = "run"
"""Name of the file of the run."""


def name_result(run_id: str, number: int) -> str:
    """Return the name of the result of a task of a run; those of other runs have others.

    >>> name_result("8d41be0720cc913f", 3)
    'task-8d41be0720cc913f-000003'
    """
    return f"task-{run_id}-{number:06d}"


def find_results(tasks: TaskFolder, run_id: str, numbers: Iterable[int]) -> dict[int, Any]:
    """Return the results of some tasks, by number; None for those that are not done."""
    some = list(numbers)
    return dict(zip(some, tasks.read_all(name_result(run_id, number) for number in some), strict=True))


def read_results(tasks: TaskFolder, run_id: str, numbers: range) -> dict[int, Any]:
    """Return the results of some tasks, by number.

    Raises
    ------
    UsageError
        When one is missing.
    """
    found = find_results(tasks, run_id, numbers)
    missing = [f"task {number}" for number, result in found.items() if result is None]
    if missing:
        raise refuse_missing(missing)
    return found
