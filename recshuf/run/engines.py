"""Engines of tasks: what runs numbered tasks, here or elsewhere."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from recshuf.job.options import ENGINES
from recshuf.output.run_log import refuse_missing

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
        """
        ...

    def close(self) -> None:
        """Leave the machines. Idempotent."""
        ...


class OneByOne:
    """An `Engine` that runs tasks in this process, one after the other: each has threads of its own."""

    def __init__(self, address: str | None, cores: int) -> None:
        """Ignore the arguments."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        workers: int,  # noqa: ARG002 - as many as there are, but one at a time
    ) -> Generator[Result, None, None]:
        """Yield the result of each task, in their order."""
        yield from map(function, tasks)

    def close(self) -> None:
        pass


class FinishedTasks:
    """The engine of a run whose tasks `recshuf task` has done: it refuses what lacks."""

    def __init__(self, address: str | None, cores: int) -> None:
        """Ignore the arguments."""

    def run(
        self,
        function: Callable[[Task], Result],  # noqa: ARG002 # nothing is run
        tasks: Sequence[Task],
        workers: int,  # noqa: ARG002 # as above
    ) -> Generator[Result, None, None]:
        """See `Engine`."""
        yield from ()
        if tasks:
            raise refuse_missing(tasks)

    def close(self) -> None:
        pass


def can_start_processes() -> bool:
    """Tell whether this program knows an interpreter that other processes can run."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def open_engine(name: str, address: str | None, cores: int) -> Engine:
    """Return an engine of tasks, importing its library only now."""
    module, _, kind = ENGINES[name].partition(":")
    return cast("Engine", getattr(import_module(module), kind)(address, cores))
