"""A pool is left only when none of its threads is at work any more; functions in threads stop each other."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

import recshuf.system.threads as threads
from recshuf.errors import Interrupted, Stopped
from recshuf.system.threads import (
    NoAnswerError,
    Pool,
    TransientPool,
    call_interruptibly,
    call_while_stopping,
    run_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize("error", [Interrupted(signal.SIGINT), interrupted_within()], ids=["plain", "within"])
def test_a_process_that_is_to_end_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0.01)
    work = Work()
    pool = Pool(1, "work")
    with pytest.raises(type(error)):
        leave(pool, work, error)
    assert not work.ended.is_set()
    work.leaving.set()
    pool.shutdown()
    assert work.ended.is_set()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_run_that_fails_waits_for_its_threads(error: BaseException):
    work = Work()
    work.leaving.set()
    with pytest.raises(type(error)):
        leave(Pool(1, "work"), work, error)
    assert work.ended.is_set()


def test_threads_of_a_transient_pool_end_when_nothing_waits():
    pool = TransientPool(3, "transient")
    barrier = threading.Barrier(4)
    futures = [pool.submit(partial(barrier.wait, 60)) for _ in range(3)]
    barrier.wait(60)  # three run at once
    futures += [pool.submit(partial(divmod, 7, number)) for number in range(50)]
    assert [future.result(60) for future in futures[4:]] == [divmod(7, number) for number in range(1, 50)]
    with pytest.raises(ZeroDivisionError):
        futures[3].result(60)
    for thread in threading.enumerate():
        if thread.name == "recshuf-transient":
            thread.join(60)
            assert not thread.is_alive()


def interrupt_and_wait(waiting: threading.Event, function: Callable[[], object]) -> None:
    """Call a function as the end of a run does that a signal has stopped."""
    try:
        raise Interrupted(signal.SIGTERM)
    except Interrupted:
        call_while_stopping(lambda: (waiting.set(), function()))


def test_a_call_of_a_run_that_is_stopped_has_a_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "STOPPING_SECONDS", 0.01)
    waiting, answered = threading.Event(), threading.Event()
    with pytest.raises(NoAnswerError):
        interrupt_and_wait(waiting, lambda: answered.wait(60))
    answered.set()
    assert waiting.is_set()


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


@pytest.mark.parametrize("error", [None, KeyError("key"), KeyboardInterrupt()])
def test_a_call_gives_the_result_or_the_error(error: BaseException | None):
    def call() -> int:
        if error is not None:
            raise error
        return 7

    for way in (call_interruptibly, call_while_stopping):
        if error is None:
            assert way(call) == 7
        else:
            with pytest.raises(type(error)):
                way(call)


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


def test_an_interrupt_does_not_wait_for_ever_for_a_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0.01)
    work = Work()

    def interrupt(_: object) -> list[object]:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(threads, "as_completed", interrupt)
    with pytest.raises(Interrupted):
        run_threads("work", [work], 1, lambda: None)
    assert not work.ended.is_set()
    work.leaving.set()
    assert work.ended.wait(60)


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


def test_tasks_that_succeed_are_not_stopped():
    done: list[int] = []
    stops: list[None] = []
    run_threads("work", [lambda: done.append(1)] * 5, 2, lambda: stops.append(None))
    assert done == [1] * 5
    assert not stops


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
