"""A pool is left only when none of its threads is at work any more; functions in threads stop each other."""

import os
import signal
import threading
from collections.abc import Callable

import pytest

import recshuf.system.threads as threads
from recshuf.errors import Interrupted, Stopped
from recshuf.system.threads import (
    NoAnswerError,
    Pool,
    call_while_stopping,
    run_threads,
)


class Work:
    """A function of a thread: waits until it may go on, and is still at work when somebody leaves who does not wait."""

    def __init__(self) -> None:
        self.leaving, self.ended = threading.Event(), threading.Event()

    def __call__(self) -> None:
        assert self.leaving.wait(60)
        assert sum(range(3_000_000)) > 0
        self.ended.set()


def test_a_thread_in_whose_start_a_signal_came_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    work = Work()

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    pool = Pool(1, "work")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(work)
    work.leaving.set()
    pool.shutdown()
    assert work.ended.is_set()


def leave(pool: Pool, work: Callable[[], None], error: BaseException) -> None:
    """Leave a pool because of an error while it works."""
    with pool:
        pool.submit(work)
        raise error


def interrupted_within() -> RuntimeError:
    """Return an error that was raised while an interruption was handled."""
    error = RuntimeError("cannot release un-acquired lock")
    error.__context__ = Interrupted(signal.SIGTERM)
    return error


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (Interrupted(signal.SIGINT), False),
        (interrupted_within(), False),
        (ValueError("no"), True),
        (KeyboardInterrupt(), True),
    ],
    ids=["signal", "within", "error", "interrupt"],
)
def test_a_run_that_fails_waits_for_its_threads_and_a_process_that_is_to_end_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, waits: bool
):
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0.01)
    work, pool = Work(), Pool(1, "work")
    if waits:
        work.leaving.set()
    with pytest.raises(type(error)):
        leave(pool, work, error)
    assert work.ended.is_set() == waits
    work.leaving.set()
    pool.shutdown()
    assert work.ended.is_set()


def interrupt_and_wait(waiting: threading.Event, function: Callable[[], object]) -> None:
    """Call a function as the end of a run does that a signal has stopped."""
    try:
        raise Interrupted(signal.SIGTERM)
    except Interrupted:
        call_while_stopping(lambda: (waiting.set(), function()))


def test_another_signal_ends_a_call_of_a_run_that_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "STOPPING_SECONDS", 60)
    before, came = signal.getsignal(signal.SIGTERM), []
    handler = lambda number, _: came.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, handler)
    waiting, answered = threading.Event(), threading.Event()
    try:
        with pytest.raises(NoAnswerError):
            interrupt_and_wait(waiting, lambda: (os.kill(os.getpid(), signal.SIGTERM), answered.wait(60)))
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
        answered.set()
    assert came == []


# Functions in threads: the first error or an interrupt stops the others


def test_no_more_functions_run_at_a_time_than_there_are_workers():
    lock, together = threading.Lock(), threading.Barrier(2)
    at_work = most = 0

    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait(60)
        with lock:
            at_work -= 1

    run_threads("work", [work] * 10, 2, lambda: None)
    assert most == 2


def test_the_first_error_stops_the_other_tasks_and_is_raised_after_they_have_ended():
    stopped, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert stopped.wait(60)
        ended.set()
        raise Stopped

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_threads("work", [work, fail, work], 2, stopped.set)
    assert ended.is_set()


@pytest.mark.parametrize("begun", [0, 1])
def test_an_interrupt_while_tasks_are_begun_stops_those_that_run(monkeypatch: pytest.MonkeyPatch, begun: int):
    stopped = threading.Event()
    submitted: list[object] = []
    submit = Pool.submit

    def interrupt(pool: Pool, *task: object) -> object:
        submitted.append(task)
        if len(submitted) > begun:
            raise KeyboardInterrupt
        return submit(pool, *task)

    monkeypatch.setattr(Pool, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_threads("work", [lambda: stopped.wait(60)] * 2, 2, stopped.set)
    assert stopped.is_set()
