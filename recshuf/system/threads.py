"""Pools of threads, all of which have ended when the pool is left."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

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


def _join(thread: threading.Thread) -> None:
    """Wait for the end of a thread that may not have begun yet, and perhaps never will."""
    for _ in range(_STARTING_TRIES):
        try:
            thread.join()
        except RuntimeError:  # not begun
            time.sleep(_STARTING_SECONDS)
        else:
            return
