"""Threads: pools that wait for theirs, and calls that wait for others, with a time limit after an interrupt."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import Interrupted, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
PATIENCE_SECONDS = 1.0
STOPPING_SECONDS = 5.0
"""Limit of all calls of `call_while_stopping` after a signal."""
_STEP_SECONDS = 0.05
_STARTING_SECONDS = 0.001
_numbers = count()


def read_idle_clock() -> float:
    """Return the seconds of a clock that runs while this thread waits for a disk, say, and backwards while it waits for a core.

    It stands still while the thread works, and where the system does not tell.
    """
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            worked, queued, _ = map(int, os.read(descriptor, 99).split())
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return 0.0
    return time.perf_counter() - (worked + 2 * queued) / 1e9 if worked else 0.0


class NoAnswerError(TimeoutError):
    """A store did not answer a run that a signal has stopped. Never reaches the user."""


class Pool(ThreadPoolExecutor):
    """A thread pool whose `shutdown` waits until all threads have ended.

    After an `Interrupted` it waits for `PATIENCE_SECONDS` only, because nothing wakes a thread that reads a silent pipe or
    writes to a full one. After other exceptions no thread may still use files that are then closed. Unlike the base
    class, it also waits for a thread that was being started when a signal raised an exception.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._prefix = f"recshuf-{name}-{next(_numbers)}-"
        super().__init__(threads, self._prefix)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse more work, and wait for the threads."""
        super().shutdown(False, cancel_futures=cancel_futures)
        if wait:
            try:
                is_stopped = _find_interrupt(sys.exception()) is not None
                self._join(time.monotonic() + PATIENCE_SECONDS if is_stopped else None)
            except Interrupted:
                self._join(time.monotonic() + PATIENCE_SECONDS)
                raise

    def _join(self, deadline: float | None) -> None:
        """Wait for the threads; some may not have started, and may never do."""
        for thread in threading.enumerate():
            if thread.name.startswith(self._prefix):
                _join(thread, deadline)


class TaskQueue:
    """Runs work in threads, and uses the results in order in the caller's thread; if there is one, that does all work."""

    def __init__(self, threads: int) -> None:
        self._pool = Pool(threads, "encode") if threads > 1 else None
        self._most = threads
        self._waiting: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()

    def put(self, work: Callable[[], T], use: Callable[[T], None]) -> None:
        """Submit work whose result is used in order; wait if too much is in progress."""
        if self._pool is None:
            use(work())
            return
        self.drain(self._most)
        self._waiting.append((self._pool.submit(work), use))

    def drain(self, most: int = 0) -> None:
        """Wait until no more than so much work waits to be used."""
        while len(self._waiting) > most:
            future, use = self._waiting.popleft()
            use(future.result())

    def close(self) -> None:
        """Cancel pending work. Idempotent."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class TransientPool:
    """A pool of at most so many threads at a time, which end as soon as nothing waits: nobody must shut it down."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = f"recshuf-{name}"
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._active = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Have a function called, in the order of calls of this method."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, function))
            is_new = self._active < self._threads
            self._active += is_new
        if is_new:
            threading.Thread(target=self._work, name=self._name).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._active -= 1
                    return
                future, function = self._waiting.popleft()
            _call(future, function)
            del future, function


def call_interruptibly(function: Callable[[], T]) -> T:
    """Call a function that may wait in a library: in the main thread, handlers of signals run while it waits.

    Python runs them between its own instructions, and a library that waits by itself does not return to those. If a
    handler raises, a thread goes on with the function.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    result: T = TransientPool(1, "call").submit(function).result()
    return result


def call_while_stopping(function: Callable[[], T]) -> T:
    """Call a function that asks others, such as a store, and may wait long for them.

    After an `Interrupted`, all such calls together have `STOPPING_SECONDS`, and each ends at the next signal; a thread
    goes on with the function then. A `NoAnswerError` says that the time has passed, or a signal has come.
    """
    interrupt = _find_interrupt(sys.exception())
    if interrupt is None:
        return function()
    if interrupt.deadline is None:
        interrupt.deadline = time.monotonic() + STOPPING_SECONDS
    with _noting_signals() as came:
        future = TransientPool(1, "stop").submit(function)
        while not wait([future], _STEP_SECONDS).done:
            if came or time.monotonic() > interrupt.deadline:
                raise NoAnswerError("the store gave no answer while the run was being stopped")
    result: T = future.result()
    return result


@contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Give a list that gets the signals that come and that this program handles itself; other threads get none."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    old = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in numbers
        if is_main and callable(signal.getsignal(number))
    }
    try:
        yield came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _call(future: Future[Any], function: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # raised again by `Future.result`
            future.set_exception(error)


def _find_interrupt(error: BaseException | None) -> Interrupted | None:
    """Return the `Interrupted` that an error is, or during whose handling it was raised."""
    if error is None or isinstance(error, Interrupted):
        return error
    return _find_interrupt(error.__context__)


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


def run_threads(
    name: str, work: Sequence[Callable[[], None]], workers: int, stop: Callable[[], None]
) -> None:
    """Call functions in threads; the first error, or an interrupt of this thread, stops the others.

    `stop` makes functions that run raise `Stopped` soon, and is called at most once. The first error of any function, preferably
    not `Stopped`, is raised after all threads have ended.
    """
    futures: list[Future[None]] = []
    with Pool(workers, name) as pool:
        try:
            futures += map(pool.submit, work)
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if len(futures) < len(work) or any(not one.done() or one.exception() for one in futures):
                stop()
                deque(map(Future.cancel, futures), maxlen=0)
    # This frame is in the traceback of what it raises, and would hold its own error until garbage is collected.
    errors = [one.exception() for one in futures if not one.cancelled() and one.exception()]
    first = min(errors, key=lambda error: isinstance(error, Stopped), default=None)
    del futures, errors
    try:
        if first is not None:
            raise first
    finally:
        del first
