"""Runs the command line, or a function, in children forked from a process that has imported everything already.

The server speaks JSON, one line for a job and one for its result, on its standard input and output.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from recshuf.cli import main
from tests.fuzzing import oracle
from tests.support.processes.preloading import WITHOUT_THREADS, import_all

MEMORY_BYTES = 4 << 30
SECONDS = 20
HUNG = "hung"


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int | str
    """Exit code, the negative number of a signal, or `HUNG`."""
    stderr: str
    answer: Any = None
    """What the function returned."""


class Server:
    """The process that forks; a context manager. Starts with the first job."""

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._limits = {"seconds": seconds, "memory_bytes": memory_bytes}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, arguments: list[str], folder: Path, stdin: str | None = None) -> Ended:
        """Run the command line in a folder."""
        return self._send({"arguments": arguments, "folder": str(folder), "stdin": stdin})

    def call(self, function: str, arguments: list[Any], folder: Path) -> Ended:
        """Call a function of `tests.fuzzing.oracle` in a folder; its result can be JSON."""
        return self._send(
            {"function": function, "arguments": arguments, "folder": str(folder), "stdin": None}
        )

    def _send(self, job: dict[str, Any]) -> Ended:
        if self._process is None:
            command = [sys.executable, "-m", "tests.fuzzing.server"]
            root = Path(__file__).resolve().parents[2]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=root,
                env=os.environ | WITHOUT_THREADS,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job | self._limits) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def serve() -> None:
    """Do jobs until standard input ends, each in a child."""
    import_all()
    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        job = json.loads(line)
        with _memory_file("stderr") as errors, _memory_file("answer") as answer:
            child = os.fork()
            if not child:
                _do(job, errors.fileno(), answer)
            status = _wait(child, job["seconds"])
            errors.seek(0)
            answer.seek(0)
            text = answer.read()
            result = {
                "status": status,
                "stderr": errors.read().decode(errors="replace"),
                "answer": json.loads(text) if text else None,
            }
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def _memory_file(name: str) -> Any:
    return os.fdopen(os.memfd_create(name), "w+b")


def _wait(child: int, seconds: float) -> int | str:
    handle = os.pidfd_open(child)
    try:
        is_over = bool(select.select([handle], [], [], seconds)[0])
        if not is_over:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(status) if is_over else HUNG


def _do(job: dict[str, Any], errors: int, answer: Any) -> NoReturn:
    """Do one job, in the child, and end it."""
    stdin = _feed(Path(job["folder"]) / job["stdin"]) if job["stdin"] else os.open(os.devnull, os.O_RDONLY)
    for source, target in ((stdin, 0), (errors, 1), (errors, 2)):
        os.dup2(source, target)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(job["folder"])
    if "function" not in job:
        sys.argv = ["recshuf", *job["arguments"]]
        main.run()
    try:
        answer.write(json.dumps(getattr(oracle, job["function"])(*job["arguments"])).encode())
        answer.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _feed(path: Path) -> int:
    """Return a pipe that the bytes of a file come from."""
    reader, writer = os.pipe()
    threading.Thread(target=_pour, args=(path.read_bytes(), writer), daemon=True).start()
    return reader


def _pour(content: bytes, writer: int) -> None:
    with suppress(BrokenPipeError), os.fdopen(writer, "wb") as pipe:
        pipe.write(content)


if __name__ == "__main__":
    serve()
