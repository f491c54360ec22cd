"""Commands in processes forked from one that has imported all they need: many of them start in little time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.processes.command_server import list_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.context import ForkServerProcess

_STORES = [
    "boto3.s3.inject",
    "google.auth.transport.requests",
    "google.oauth2.service_account",
    "obstore",
    "tests.support.processes.forked_commands",
    "tests.support.processes.warm_stores",
]

# A start looks for children that have ended: of two threads that find one at once, one would not get its code.
_LOCK = threading.Lock()


def _run(arguments: list[str], environment: Mapping[str, str], said: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in ((1, Path(os.devnull)), (2, said)):
        with path.open("w") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["recshuf", *arguments]
    from recshuf.cli import run

    run()


class ForkedCommand:
    """A command that runs."""

    def __init__(self, arguments: list[str], said: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*list_modules(), *_STORES])
        self._said = said
        self._process: ForkServerProcess = context.Process(
            target=_run, args=(arguments, dict(os.environ), said)
        )
        with _LOCK:
            self._process.start()
        self.pid = self._process.pid or 0

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end, and return its exit code; negative for a signal."""
        assert wait([self._process.sentinel], seconds), f"still runs after {seconds} s"
        with _LOCK:
            self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    def read_stderr(self) -> str:
        """Return what it said."""
        return self._said.read_text()

    def close(self) -> None:
        """End it. Idempotent."""
        with _LOCK:
            self._process.kill()
            self._process.join()


@contextmanager
def run_forked(arguments: list[str], said: Path) -> Iterator[ForkedCommand]:
    """Start a command, which ends with the context.

    Parameters
    ----------
    said
        File for what it says.
    """
    command = ForkedCommand(arguments, said)
    try:
        yield command
    finally:
        command.close()
