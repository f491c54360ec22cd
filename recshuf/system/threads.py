"""Thread pools that wait for their threads, with a time limit after an interrupt."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from recshuf.errors import Interrupted

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
