"""Processes that change a pile store and are killed at any moment."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path


def fork(job: Callable[[], object]) -> tuple[int, int]:
    """Begin a job in a child, and return its number and a pipe that ends with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        job()
        code = 0
    except BaseException:  # the child must not go on as its parent
        traceback.print_exc(file=sys.stderr)
    os._exit(code)


def join(child: tuple[int, int], seconds: float | None = None) -> int:
    """Wait for a child, killed after some seconds, and return its exit code; negative for a signal."""
    number, pipe = child
    if not wait([pipe], seconds):
        os.kill(number, signal.SIGKILL)
    os.close(pipe)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def list_files(store: Path) -> set[str]:
    """Return the names of all files of a store, its one snapshot without the number."""
    names = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    assert sum(name.startswith("snapshot-") for name in names) == 1
    return {"snapshot" if name.startswith("snapshot-") else name for name in names}
