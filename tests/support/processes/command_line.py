"""The command line as a child process: how it is called, waited for, and what it prints."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = [sys.executable, "-m", "recshuf"]
DEADLINE = 20


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def assert_one_line(stderr: bytes, *words: str) -> None:
    text = stderr.decode()
    assert text.startswith("recshuf: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for word in words:
        assert word in text


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.01)


def has_open_files(process: int, folder: Path) -> bool:
    """Tell whether a process holds files in a folder open, those without a name included."""
    links = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    return any(link.startswith(f"{folder}/") for link in links)
