"""Thread pools that wait for their threads, with a time limit after an interrupt."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import count
from typing import TYPE_CHECKING

from recshuf.errors import Interrupted, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE_SECONDS = 1.0
_STARTING_SECONDS = 0.001
_numbers = count()


class Pool(ThreadPoolExecutor):
    """A thread pool whose `shutdown` waits until all threads have ended.

    After an `Interrupted` it waits for `PATIENCE_SECONDS` only, because nothing wakes a thread that reads a silent pipe or
    writes to a full one. After other exceptions no thread may still use files that are then closed. Unlike the base
    class, it also waits for a thread that was being started when a signal raised an exception.

    Parameters
    ----------
    threads
        Number of threads.
    name
        Part of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._prefix = f"recshuf-{name}-{next(_numbers)}-"
        super().__init__(threads, self._prefix)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse more work, and wait for the threads."""
        super().shutdown(False, cancel_futures=cancel_futures)
        if wait:
            try:
                self._join(time.monotonic() + PATIENCE_SECONDS if _is_interrupted(sys.exception()) else None)
            except Interrupted:
                self._join(time.monotonic() + PATIENCE_SECONDS)
                raise

    def _join(self, deadline: float | None) -> None:
        """Wait for the threads; some may not have started, and may never do."""
        for thread in threading.enumerate():
            if thread.name.startswith(self._prefix):
                _join(thread, deadline)


def run_tasks(name: str, threads: int, tasks: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run tasks in a pool of threads; the first error, or an interrupt of this thread, stops the others.

    Parameters
    ----------
    name, threads
        See `Pool`.
    stop
        Makes running tasks raise `Stopped` soon. Called once if a task failed.

    Raises
    ------
    Exception
        The first error of any task, preferably not `Stopped`, after all threads have ended.
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


def _is_interrupted(error: BaseException | None) -> bool:
    """Tell whether an error is an `Interrupted`, or was raised while one was handled."""
    return error is not None and (isinstance(error, Interrupted) or _is_interrupted(error.__context__))


def _join(thread: threading.Thread, deadline: float | None) -> None:
    """Wait for the end of a thread, but not beyond `deadline` by the monotonic clock."""
    started_by = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except RuntimeError:  # not begun
            if time.monotonic() > started_by:
                return
            time.sleep(_STARTING_SECONDS)
        else:
            return
