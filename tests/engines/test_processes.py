"""Processes as an engine: how they end, whatever ends, and what is told of one that dies."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from recshuf.errors import EngineError, UsageError
from recshuf.run.engines import ProcessEngine, open_engine
from tests.support.effort import mostly_slow
from tests.support.processes.command_line import DEADLINE, wait_until


def end(how: str) -> int:
    """Do what ends a process, or return its number and write it to where the records may go."""
    os.write(1, b"%d" % os.getpid())
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(3)
    if how == "fails":
        raise RuntimeError("so to say")
    if how == "fails oddly":
        raise type("LocalError", (Exception,), {})("of no module")
    return os.getpid()


def wait_for_ever(place: str) -> None:
    """Say which process this is, and wait."""
    Path(place).joinpath(str(os.getpid())).touch()
    threading.Event().wait()


KILLED = (
    "killed",
    EngineError,
    r"was ended by SIGKILL, as .* memory runs out; give --resume .*fewer --workers$",
)
OTHERS = [
    ("exits", EngineError, r"has ended with exit code 3; give --resume to continue"),
    ("fails", RuntimeError, r"^so to say$"),
    ("fails oddly", EngineError, r"LocalError: of no module$"),
]


@pytest.mark.parametrize(("how", "kind", "said"), mostly_slow([KILLED, *OTHERS], KILLED))
def test_what_ends_a_task_is_told_and_ends_the_others(
    how: str, kind: type[Exception], said: str, capfd: pytest.CaptureFixture[str]
):
    with closing(open_engine("processes", None, 1)) as engine:
        (first,) = engine.run(end, [""], 2)
        assert list(engine.run(end, ["", ""], 1)) == [first] * 2
        with pytest.raises(kind, match=said) as raised:
            list(engine.run(end, [how, ""], 1))
        assert "\n" not in str(raised.value)
        assert ("in end" in str(raised.value.__cause__)) == how.startswith("fails")
    assert not psutil.pid_exists(first)
    assert capfd.readouterr().out == ""


def fail_beside(task: tuple[str, str]) -> None:
    """Wait, or fail when the other one waits."""
    how, place = task
    if how == "waits":
        wait_for_ever(place)
    wait_until(lambda: os.listdir(place))
    raise RuntimeError("so to say")


def test_a_task_that_fails_ends_those_beside_it(tmp_path: Path):
    with closing(open_engine("processes", None, 1)) as engine:
        with pytest.raises(RuntimeError, match="so to say") as raised:
            list(engine.run(fail_beside, [(how, str(tmp_path)) for how in ("waits", "fails")], 2))
        assert "in fail_beside" in str(raised.value.__cause__)
        (other,) = map(int, os.listdir(tmp_path))
        assert not psutil.pid_exists(other)


_CODE = """
import sys
from recshuf.run.engines import ProcessEngine
from tests.engines.test_processes import wait_for_ever
list(ProcessEngine(None, 1).run(wait_for_ever, sys.argv[1:] * 2, 2))
"""


ENDS = [(signal.SIGKILL, False), (signal.SIGINT, True)]


@pytest.mark.parametrize(
    ("number", "is_for_all"),
    mostly_slow([(signal.SIGTERM, False), *ENDS], *ENDS),
)
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, number: int, is_for_all: bool):
    """A terminal sends its signals to all of them."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(tmp_path)], start_new_session=True, stderr=subprocess.PIPE
    )
    with parent:
        wait_until(lambda: len(os.listdir(tmp_path)) == 2)
        children = psutil.Process(parent.pid).children()
        assert sorted(os.listdir(tmp_path)) == sorted(str(child.pid) for child in children)
        (os.killpg if is_for_all else os.kill)(parent.pid, number)
        assert parent.wait(DEADLINE) != 0
        assert parent.stderr
        assert parent.stderr.read().count(b"Traceback") == is_for_all
    _, left = psutil.wait_procs(children, DEADLINE)
    assert left == []


def test_a_program_without_an_interpreter_is_told_what_to_give(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(UsageError, match="no Python interpreter to start; give --engine local"):
        ProcessEngine(None, 1)
