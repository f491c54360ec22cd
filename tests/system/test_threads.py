"""A pool is left only when none of its threads is at work any more."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

import recshuf.system.threads as threads
from recshuf.errors import Interrupted
from recshuf.system.threads import NoAnswerError, Pool, TransientPool, call_interruptibly, call_while_stopping

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_thread_in_whose_start_a_signal_came_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    leaving, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert leaving.wait(60)
        assert sum(range(3_000_000)) > 0  # still at work when somebody leaves who does not wait
        ended.set()

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    pool = Pool(1, "work")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(work)
    leaving.set()
    pool.shutdown()
    assert ended.is_set()


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
    leaving, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert leaving.wait(60)
        ended.set()

    pool = Pool(1, "work")
    with pytest.raises(type(error)):
        leave(pool, work, error)
    assert not ended.is_set()
    leaving.set()
    pool.shutdown()
    assert ended.is_set()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_run_that_fails_waits_for_its_threads(error: BaseException):
    ended = threading.Event()

    def work() -> None:
        assert sum(range(3_000_000)) > 0
        ended.set()

    with pytest.raises(type(error)):
        leave(Pool(1, "work"), work, error)
    assert ended.is_set()


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
