"""A pool is left only when none of its threads is at work any more."""

from __future__ import annotations

import threading

import pytest

from recshuf.system.threads import Pool


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
