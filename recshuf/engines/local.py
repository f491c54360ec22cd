"""Threads of this process."""

from __future__ import annotations

from concurrent.futures import as_completed
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from recshuf.errors import Stopped
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from concurrent.futures import Future

    Task = TypeVar("Task")
    Result = TypeVar("Result")


class LocalEngine:
    """An `Engine` of threads.

    Parameters
    ----------
    name
        Part of the threads' names.
    stop
        Makes running tasks raise `Stopped` soon. Called once if a task failed, or the results are not wanted any more.
    """

    def __init__(self, name: str = "task", stop: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._stop = stop

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
    ) -> Generator[Result, None, None]:
        """See `Engine`. An error is preferably not `Stopped`."""
        futures: list[Future[Result]] = []
        with Pool(workers, self._name) as pool:
            try:
                futures += (pool.submit(function, task) for task in tasks)
                for future in as_completed(futures):
                    if future.exception() is not None:
                        break
                    yield future.result()
            finally:
                if len(futures) < len(tasks) or any(not one.done() or one.exception() for one in futures):
                    self._stop()
                    for future in futures:
                        future.cancel()
        done = [future for future in futures if not future.cancelled()]
        errors = [error for future in done if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Stopped))

    def close(self) -> None:
        """See `Engine`."""


class OneByOne:
    """An `Engine` of this process that runs one task after the other; each has threads of its own."""

    def __init__(self, address: str | None, cores: int) -> None:
        """Ignore the arguments."""

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        workers: int,  # noqa: ARG002 # as said above
    ) -> Generator[Result, None, None]:
        """See `Engine`."""
        yield from map(function, tasks)

    def close(self) -> None:
        """See `Engine`."""


def run_threads(
    name: str, work: Sequence[Callable[[], None]], workers: int, stop: Callable[[], None]
) -> None:
    """Call functions in threads; the first error, or an interrupt of this thread, stops the others.

    Parameters
    ----------
    name, stop
        See `LocalEngine`.

    Raises
    ------
    Exception
        The first error of any function, preferably not `Stopped`, after all threads have ended.
    """
    with closing(LocalEngine(name, stop).run(_call, work, workers)) as results:
        for _ in results:
            pass


def _call(function: Callable[[], None]) -> None:
    function()
