"""Runs the command line, or a function, many times a second: a server that has imported everything forks for each call.

What runs is the real program from its entry point to the end of its process. The server gets a line of JSON for each call,
and answers with one, on its standard input and output.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal as signals
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

PROJECT = Path(__file__).resolve().parents[3]
_LIBRARIES = (
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
    "h5py",
    "hdf5plugin",
    "zstandard",
    "psutil",
)
_OF_PYTORCH = "recshuf.torch."
"""Beginning of the names of modules that import PyTorch, which starts threads and may be missing."""
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MIMALLOC_PURGE_DELAY": "0",
}
"""Environment of a server: threads of a parent do not survive a fork, so that no library may begin one.

mimalloc would reserve 1 GB of addresses, which limits of children would count."""


def list_modules() -> list[str]:
    """Return the names of all modules of recshuf, and of the libraries that some of them import as they run."""
    paths = (
        path.relative_to(PROJECT).with_suffix("") for path in sorted((PROJECT / "recshuf").rglob("*.py"))
    )
    names = (".".join(path.parts) for path in paths if path.stem not in ("__main__", "__init__"))
    return [*_LIBRARIES, *(name for name in names if not name.startswith(_OF_PYTORCH))]


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    status: int
    """Exit code; negative for the signal that ended the process."""
    stderr: str = ""
    """What it printed, on standard output, too."""
    hung: bool = False
    """Whether it had to be killed."""
    seconds: float = 0.0
    """From the signal, or else from the start, to the end."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What it noted; see `note`."""


class Server:
    """The process that forks; a context manager. Starts with the first call. To be used by one thread at a time.

    Parameters
    ----------
    seconds
        After which a call is killed.
    memory_bytes
        Limit of a call; 0 for none.
    library
        Loaded before all others: that of `tests.support.processes.faults`.
    """

    def __init__(self, seconds: float = 60, memory_bytes: int = 0, library: Path | None = None) -> None:
        self._limits = {"seconds": seconds, "memory_bytes": memory_bytes}
        self._preload = {} if library is None else {"LD_PRELOAD": str(library)}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, arguments: Sequence[str], folder: Path, stdin: str | None = None) -> Ended:
        """Run the command line in a folder."""
        return self.call(run_command, list(arguments), str(folder), stdin)

    def call(self, function: Any, *given: Any, signal: int = 0, after: float = 0.0) -> Ended:
        """Call a function of a module with what can be JSON; a signal may be sent some seconds later."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=PROJECT,
                env=os.environ | _WITHOUT_THREADS | self._preload,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        target = [function.__module__, function.__name__]
        job = {"target": target, "given": given, "signal": signal, "after": after} | self._limits
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def run_command(arguments: list[str], folder: str, stdin: str | None) -> NoReturn:
    """Become the program."""
    from recshuf.cli import run

    os.chdir(folder)
    if stdin is not None:
        pipe = subprocess.Popen(["cat", stdin], stdout=subprocess.PIPE).stdout
        assert pipe is not None
        os.dup2(pipe.fileno(), 0)
        sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.argv = ["recshuf", *arguments]
    run()


_NOTES: list[int] = []
"""The file of a child for what it notes."""


def note(**facts: Any) -> None:
    """Tell the caller something, whatever happens afterwards."""
    os.write(_NOTES[0], json.dumps(facts).encode() + b"\n")


def _do(job: dict[str, Any], output: int, notes: int) -> NoReturn:
    """Do one job, in the child, and end it."""
    _NOTES.append(notes)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    if job["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, name = job["target"]
    try:
        note(answer=getattr(importlib.import_module(module), name)(*job["given"]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _await(child: int, job: dict[str, Any]) -> tuple[int, bool, float]:
    """Return the exit code of a child, whether it had to be killed, and how long it took."""
    watched, started = os.pidfd_open(child), time.monotonic()
    if job["signal"] and not select.select([watched], [], [], job["after"])[0]:
        started = time.monotonic()
        signals.pidfd_send_signal(watched, job["signal"])
    hung = not select.select([watched], [], [], job["seconds"])[0]
    if hung:
        signals.pidfd_send_signal(watched, signals.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(watched)
    return code, hung, time.monotonic() - started


def serve() -> None:
    """Do jobs until standard input ends, each in a child."""
    for name in list_modules():
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads) - 1} threads would be lost by a fork"
    # A collection in a child would copy the memory of all objects.
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        job = json.loads(line)
        with ExitStack() as stack:
            output, notes = (
                stack.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in ("output", "notes")
            )
            child = os.fork()
            if not child:
                _do(job, output.fileno(), notes.fileno())
            ended = _await(child, job)
            output.seek(0)
            notes.seek(0)
            facts: dict[str, Any] = {}
            for part in notes:
                facts |= json.loads(part)
            code, hung, seconds = ended
            text = output.read().decode(errors="replace")
        answers.write(json.dumps(asdict(Ended(code, text, hung, seconds, facts))) + "\n")
        answers.flush()


if __name__ == "__main__":
    importlib.import_module("tests.support.processes.command_server").serve()  # whose `note` functions call
