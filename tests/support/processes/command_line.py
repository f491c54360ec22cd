"""The command line as a child process: how it is called, waited for, and what it prints."""

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.processes.command_server import Ended

COMMAND = [sys.executable, "-m", "recshuf"]
DEADLINE = 100
"""Seconds after which what is waited for will not come, on a machine that is slow or busy, too."""


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def assert_one_line(stderr: bytes, *words: str) -> None:
    text = stderr.decode()
    assert text.startswith("recshuf: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for word in words:
        assert word in text


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.01)


# What the tests of hostile inputs share

GB = 1 << 30
TINY = ["in.h5", "-o", "out.h5", "--memory", "300MB"]
"""Arguments of a run over a small HDF5 file."""


def refusal(ended: Ended, folder: Path) -> str:
    """Return the one line that a failed run prints; it leaves nothing beside its inputs."""
    assert ended.status == 1, ended
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("recshuf: warning: ")]
    [line] = lines
    assert line.startswith("recshuf: error: "), line
    assert not [path for path in os.listdir(folder) if path.startswith((".", "out"))]
    return line
