"""Ray as an engine: what is told where it cannot be used."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from recshuf.errors import Interrupted, UsageError
from recshuf.run.engines import open_engine
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import list_tree


def stop(number: int, _: object) -> None:
    raise Interrupted(number)


@pytest.fixture
def stops() -> Iterator[None]:
    """Have SIGTERM handled as the command line does."""
    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def fake_ray(patch: pytest.MonkeyPatch, init: Callable[..., None]) -> None:
    ray = ModuleType("ray")
    ray.is_initialized, ray.init = lambda: False, init  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_answers_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str):
    fake_ray(monkeypatch, lambda *_, **__: pytest.fail("Ray is asked to wait for it"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(UsageError, match=f"--ray-address {address}: no Ray cluster can be used: .*refused"):
        open_engine("ray", address, 1)


@pytest.mark.parametrize(
    ("address", "problem", "said"),
    [
        ("http://x", "", "this is a URL of the web; give host and port of the head, such as 10.0.0.1:6379"),
        ("auto", "", "none runs on this machine; start one with ray start, or leave --ray-address out"),
        ("x", "first line\n  1. set `--address`\n", "first line 1. set `--address`"),
        (
            "x",
            'Initialization failure from server:\nTraceback (most recent call last):\n  File "x"\nE: dead\n',
            "Initialization failure from server: E: dead",
        ),
    ],
)
def test_an_address_of_no_cluster_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, address: str, problem: str, said: str
):
    """Of a traceback of a server the last line."""

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError(problem)

    fake_ray(monkeypatch, fail)
    with pytest.raises(UsageError) as raised:
        open_engine("ray", address, 1)
    assert str(raised.value) == f"--ray-address {address}: no Ray cluster can be used: {said}"


def test_an_address_of_ipv6_is_given_in_brackets(monkeypatch: pytest.MonkeyPatch):
    tried: list[tuple[str, int]] = []
    connected: list[str] = []

    def connect(place: tuple[str, int], _: float) -> socket.socket:
        tried.append(place)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    fake_ray(monkeypatch, lambda address, **_: connected.append(address))
    open_engine("ray", "[::1]:6379", 1)
    assert (tried, connected) == ([("::1", 6379)], ["[::1]:6379"])


def test_a_run_without_ray_leaves_nothing(call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    (path,) = make_inputs(tmp_path / "in", "text", [5])
    before = list_tree(tmp_path)
    done = call(path, "-o", tmp_path / "out.txt", "--engine", "ray")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--engine ray: Ray is not installed; install recshuf[ray]" in done.stderr
    assert list_tree(tmp_path) == before


@pytest.mark.usefixtures("stops")
def test_a_signal_while_ray_connects_is_for_the_handler_before(monkeypatch: pytest.MonkeyPatch):
    """Ray's own handler exits; here it is there when the signal comes."""

    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    fake_ray(monkeypatch, init)
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
