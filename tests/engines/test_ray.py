"""Ray as an engine: what is told where it cannot be used."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from recshuf.engines.registry import open_engine
from recshuf.errors import Interrupted, UsageError
from tests.support.numbered_files import make_inputs
from tests.support.output_trees import list_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Run


def stop(number: int, _: object) -> None:
    raise Interrupted(number)


@pytest.fixture
def stops() -> Iterator[None]:
    """Have SIGTERM handled as the command line does."""
    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--engine ray: Ray is not installed; install recshuf\[ray\]"):
        open_engine("ray", None, 1)


def test_an_address_where_nothing_answers_is_named():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'recshuf[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UsageError, match=f"--ray-address 127.0.0.1:{port}: no Ray cluster can be used: "):
        open_engine("ray", f"127.0.0.1:{port}", 1)


def test_a_run_without_ray_leaves_nothing(call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    (path,) = make_inputs(tmp_path / "in", "text", [5])
    before = list_tree(tmp_path)
    done = call(path, "-o", tmp_path / "out.txt", "--engine", "ray")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert list_tree(tmp_path) == before


@pytest.mark.usefixtures("stops")
def test_a_signal_while_ray_connects_is_for_the_handler_before(monkeypatch: pytest.MonkeyPatch):
    """Ray's own handler exits; here it is there when the signal comes."""

    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    ray = ModuleType("ray")
    ray.is_initialized, ray.init = lambda: False, init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(Interrupted, match="SIGTERM"):
        open_engine("ray", None, 1)
    assert signal.getsignal(signal.SIGTERM) is stop


@pytest.mark.usefixtures("stops")
def test_ray_itself_leaves_a_signal_to_the_handler_before(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'recshuf[ray]'")
    from ray._private import node

    monkeypatch.setattr(node, "Node", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="SIGTERM"):
        open_engine("ray", None, 1)
    assert signal.getsignal(signal.SIGTERM) is stop
