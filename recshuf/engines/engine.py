"""The interface of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Task = TypeVar("Task")
    Result = TypeVar("Result")


class Engine(Protocol):
    """Runs independent tasks."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
    ) -> Generator[Result, None, None]:
        """Yield the result of each task in order of completion; a generator, which its user closes.

        A task may run twice, also at the same time, if a machine is lost; its result comes once.

        Parameters
        ----------
        function
            Runs a task. Unless the engine is local, function, tasks and results are pickled.
        workers
            Most tasks at a time, unless the engine itself knows what its machines can do.

        Raises
        ------
        Exception
            The first error of any task. No task is at work any more, or its machine was told to end it.
        """
        ...

    def close(self) -> None:
        """Leave the machines. Idempotent."""
        ...
