"""The command line as a child process: how it is called, waited for, and what it prints."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

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
