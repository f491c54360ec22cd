"""Pools of threads that are waited for, but not for ever once the run is interrupted."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

PATIENCE_SECONDS = 1.0
_STARTING_SECONDS = 0.001
_numbers = count()


class Pool(ThreadPoolExecutor):
    """Threads that have ended when `shutdown` returns, unless the run is interrupted.

    While a `KeyboardInterrupt` is handled, threads that go on for longer than `PATIENCE_SECONDS` are left behind: nothing
    wakes one that reads a silent pipe or writes to a full one. The base class forgets a thread that it was starting as a
    signal raised an exception in it; here that one is waited for, too.

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
        super().shutdown(False, cancel_futures=cancel_futures)
        if wait:
            is_interrupted = isinstance(sys.exception(), KeyboardInterrupt)
            try:
                self._join(time.monotonic() + PATIENCE_SECONDS if is_interrupted else None)
            except KeyboardInterrupt:
                self._join(time.monotonic() + PATIENCE_SECONDS)
                raise

    def _join(self, deadline: float | None) -> None:
        """Wait for the threads, some of which may not have begun yet, and perhaps never will."""
        for thread in threading.enumerate():
            if thread.name.startswith(self._prefix):
                _join(thread, deadline)


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
