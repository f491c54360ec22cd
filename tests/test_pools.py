"""A pool is left only when none of its threads is at work any more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from recshuf import pools
from recshuf.pools import Pool

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


def test_an_interrupted_run_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pools, "PATIENCE_SECONDS", 0.01)
    leaving, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert leaving.wait(60)
        ended.set()

    pool = Pool(1, "work")
    with pytest.raises(KeyboardInterrupt):
        leave(pool, work, KeyboardInterrupt())
    assert not ended.is_set()
    leaving.set()
    pool.shutdown()
    assert ended.is_set()


def test_a_run_that_fails_waits_for_its_threads():
    ended = threading.Event()

    def work() -> None:
        assert sum(range(3_000_000)) > 0
        ended.set()

    with pytest.raises(ValueError, match="no"):
        leave(Pool(1, "work"), work, ValueError("no"))
    assert ended.is_set()
