"""Pools of threads, all of which have ended when the pool is left."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import count
from typing import TYPE_CHECKING

from recshuf.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STARTING_SECONDS = 0.001
_STARTING_TRIES = 1000
_numbers = count()


class Pool(ThreadPoolExecutor):
    """Threads that have ended when `shutdown` returns, whenever a signal came.

    The base class forgets a thread that it was starting as a signal raised an exception in it, and does not wait for
    that one.

    Parameters
    ----------
    threads
        The most threads.
    name
        What they are for.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._prefix = f"recshuf-{name}-{next(_numbers)}-"
        super().__init__(threads, self._prefix)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and wait for the threads."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for thread in threading.enumerate():
                if thread.name.startswith(self._prefix):
                    _join(thread)


def run_tasks(name: str, threads: int, tasks: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run tasks in a pool of threads; the first error, or an interrupt of this thread, stops the others.

    Parameters
    ----------
    name, threads
        As of `Pool`.
    stop
        Makes tasks that run raise `Stopped` soon. Called once, and only if not all tasks succeeded.

    Raises
    ------
    Exception
        The first error of any task, `Stopped` last, after all threads have ended.
    """
    futures: list[Future[None]] = []
    with Pool(threads, name) as pool:
        try:
            futures += (pool.submit(task) for task in tasks)
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if len(futures) < len(tasks) or any(not one.done() or one.exception() for one in futures):
                stop()
                for future in futures:
                    future.cancel()
    done = [future for future in futures if not future.cancelled()]
    errors = [error for future in done if (error := future.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))


def _join(thread: threading.Thread) -> None:
    """Wait for the end of a thread that may not have begun yet, and perhaps never will."""
    for _ in range(_STARTING_TRIES):
        try:
            thread.join()
        except RuntimeError:  # not begun
            time.sleep(_STARTING_SECONDS)
        else:
            return
