"""A pool is left only when none of its threads is at work any more; an error in one stops the others."""

from __future__ import annotations

import threading

import pytest

from recshuf.errors import Stopped
from recshuf.system.threads import Pool, run_tasks


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


def test_the_first_error_stops_the_other_tasks_and_is_raised_after_they_have_ended():
    stopped, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert stopped.wait(60)
        ended.set()
        raise Stopped

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_tasks("work", 2, [work, fail, work], stopped.set)
    assert ended.is_set()


def test_tasks_that_succeed_are_not_stopped():
    done: list[int] = []
    stops: list[None] = []
    run_tasks("work", 2, [lambda: done.append(1)] * 5, lambda: stops.append(None))
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
        run_tasks("work", 2, [lambda: stopped.wait(60)] * 2, stopped.set)
    assert stopped.is_set()
