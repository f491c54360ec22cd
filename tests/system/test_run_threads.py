"""Functions in threads: the first error or an interrupt stops the others."""

from __future__ import annotations

import signal
import threading

import pytest

from recshuf.errors import Interrupted, Stopped
from recshuf.system import threads
from recshuf.system.threads import Pool, run_threads


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
    leaving, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert leaving.wait(60)
        ended.set()

    def interrupt(_: object) -> list[object]:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(threads, "as_completed", interrupt)
    with pytest.raises(Interrupted):
        run_threads("work", [work], 1, lambda: None)
    assert not ended.is_set()
    leaving.set()
    assert ended.wait(60)


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
