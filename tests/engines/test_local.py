"""Threads as an engine: results as they come; the first error, an interrupt or a lack of interest stops the others."""

from __future__ import annotations

import signal
import threading
from contextlib import closing

import pytest

from recshuf.errors import Interrupted, Stopped
from recshuf.system import threads
from recshuf.system.threads import LocalEngine, Pool, run_threads


def test_results_come_in_the_order_of_completion():
    late = threading.Event()

    def work(task: int) -> int:
        assert task or late.wait(60)
        return task

    with closing(LocalEngine().run(work, [0, 1, 2], 3)) as results:
        first = {next(results), next(results)}
        late.set()
        assert (first, [*results]) == ({1, 2}, [0])


def test_an_engine_runs_no_more_tasks_at_a_time_than_it_has_workers():
    lock, together = threading.Lock(), threading.Barrier(2)
    at_work = most = 0

    def work(_: int) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait(60)
        with lock:
            at_work -= 1

    with closing(LocalEngine().run(work, range(10), 2)) as results:
        assert len([*results]) == 10
    assert most == 2


def test_results_that_are_not_wanted_any_more_stop_the_tasks():
    stopped, begun = threading.Event(), threading.Event()

    def work(task: int) -> int:
        if task:
            begun.set()
            assert stopped.wait(60)
        else:
            assert begun.wait(60)
        return task

    with closing(LocalEngine("work", stopped.set).run(work, [0, 1], 2)) as results:
        assert next(results) == 0
    assert stopped.is_set()


def test_an_interrupt_between_two_results_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0.01)
    begun, leaving, ended = threading.Event(), threading.Event(), threading.Event()

    def work(task: int) -> None:
        if not task:
            assert begun.wait(60)
            return
        begun.set()
        assert leaving.wait(60)
        ended.set()

    with pytest.raises(Interrupted), closing(LocalEngine().run(work, [0, 1], 2)) as results:  # noqa: PT012
        next(results)
        raise Interrupted(signal.SIGTERM)
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
