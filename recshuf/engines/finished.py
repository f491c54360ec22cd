"""The engine of a run whose tasks have been done by `recshuf task`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Task = TypeVar("Task")
    Result = TypeVar("Result")


class FinishedTasks:
    """An `Engine` that runs nothing."""

    def __init__(self, address: str | None, cores: int) -> None:
        """Ignore the arguments."""

    def run(
        self,
        function: Callable[[Task], Result],  # noqa: ARG002 # nothing is run
        tasks: Sequence[Task],
        workers: int,  # noqa: ARG002 # as above
    ) -> Generator[Result, None, None]:
        """See `Engine`.

        Raises
        ------
        UsageError
            When there are any tasks.
        """
        yield from ()
        if tasks:
            raise refuse_missing(tasks)

    def close(self) -> None:
        """See `Engine`."""


def refuse_missing(tasks: Sequence[object]) -> UsageError:
    """Return the error of a task for others that it needs, and that are not done."""
    return UsageError(
        f"{describe_missing(tasks)}: not done; run recshuf task with these numbers, then this one"
    )


def describe_missing(tasks: Sequence[object]) -> str:
    """Return the names of some tasks, of many the first.

    >>> describe_missing(["task 3", "task 5"]), describe_missing(range(9))
    ('task 3, task 5', '0, 1, 2, 3, 4 and 4 more')
    """
    few = ", ".join(map(str, tasks[:5]))
    return few if len(tasks) <= 5 else f"{few} and {len(tasks) - 5} more"
