"""Runs the command line many times a second: a server that has imported everything forks for each run.

What runs is the real program from its entry point to the end of its process, with differences that are asked for:
system calls that fail, numbers of the plan that send a small job out of core, damage between the passes.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from tests.support.processes.faults import Faults, Strike
from tests.support.processes.preloading import WITHOUT_THREADS, import_all
from tests.torture.hooks import Damage, install_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")
PROJECT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Ending:
    """How one run ended."""

    code: int
    """Exit code; negative for the signal that ended the process."""
    text: str
    """What it printed on standard output and error."""
    hung: bool = False
    calls: int = 0
    """Calls counted."""
    fired: int = 0
    """Calls struck."""
    struck: str = ""
    """The first of them, and its path."""
    seconds: float = 0.0
    """From the signal, or else from the start, to the end."""
    damaged: str = ""
    """What was done to spilled data."""
    edges: tuple[tuple[int, int], ...] = ()
    """Edges of what the spilled files hold: the number of the file, and a place in it."""


@dataclass(frozen=True)
class Request:
    """One run."""

    arguments: tuple[str, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan that are overruled."""
    exchanges: bool = True
    """Directories can be exchanged in one step."""
    folder: str = ""
    """Where calls are counted."""
    strike: Strike = field(default_factory=lambda: Strike(0))
    signal: int = 0
    """Sent to it while it runs; 0 for none."""
    after: float = 0.0
    """Seconds from its start to the signal."""
    damage: Damage | None = None
    """What is done to spilled data between the passes."""
    largest_file: int = 0
    """Bytes that a file may have; 0 for any number."""


class Server:
    """The other process, as its user sees it. To be used by one thread at a time.

    Parameters
    ----------
    library
        The compiled `_faults.c`; None for a server that only runs.
    """

    def __init__(self, library: Path | None = None) -> None:
        preload = {} if library is None else {"LD_PRELOAD": str(library)}
        command = [sys.executable, "-m", "tests.torture.server"]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=os.environ | WITHOUT_THREADS | preload,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, request: Request) -> Ending:
        """Run once, and wait for the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        return Ending(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=LIMIT_SECONDS)


class Servers:
    """Some servers, which work on a list of items together."""

    def __init__(self, library: Path | None = None, count: int = 2) -> None:
        self._library, self._count = library, count
        self._all: list[Server] = []

    def map(self, function: Callable[[Server, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of a function for all items, each called with a server that is free."""
        free: SimpleQueue[Server] = SimpleQueue()
        while len(self._all) < min(self._count, len(items)):
            self._all.append(Server(self._library))
        for server in self._all:
            free.put(server)

        def call(item: Item) -> Result:
            server = free.get()
            try:
                return function(server, item)
            finally:
                free.put(server)

        with ThreadPoolExecutor(len(self._all) or 1) as pool:
            return list(pool.map(call, items))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._all:
            server.__exit__()


def _run_child(request: Request, report: int, output: int) -> NoReturn:
    """Become the program."""
    from recshuf.cli import main

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["recshuf", *request.arguments]
    install_hooks(request.numbers, request.damage, report, exchanges=request.exchanges)
    if request.largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request.largest_file, request.largest_file))
    if "LD_PRELOAD" in os.environ:
        main.main = _strike_main(request, report)
    main.run()


def _strike_main(request: Request, report: int) -> Callable[[], int]:
    """Return the program's main function with calls struck, which writes to `report` what was."""
    from recshuf.cli.main import main

    def struck_main() -> int:
        faults = Faults()
        faults.arm(request.folder, request.strike)
        code = main()
        fired, struck = faults.struck()
        facts: dict[str, Any] = {"fired": fired, "struck": struck}
        if request.strike.mode != "from":  # that goes on to the end of the process
            facts["calls"] = faults.disarm()
        os.write(report, json.dumps(facts).encode() + b"\n")
        return code

    return struck_main


def _await(child: int, request: Request) -> tuple[int, bool, float]:
    """Return the exit code of a child, whether it had to be killed, and how long it took."""
    watched = os.pidfd_open(child)
    started = time.monotonic()
    if request.signal and not select.select([watched], [], [], request.after)[0]:
        started = time.monotonic()
        signal.pidfd_send_signal(watched, request.signal)
    hung = not select.select([watched], [], [], LIMIT_SECONDS)[0]
    seconds = time.monotonic() - started
    os.close(watched)
    if hung:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hung, seconds


def _drain(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _serve(lines: Iterable[str]) -> None:
    import_all()
    for line in lines:
        values = json.loads(line)
        damage = values["damage"] and Damage(**values["damage"])
        request = Request(**values | {"strike": Strike(**values["strike"]), "damage": damage})
        report, output = os.memfd_create("report"), os.memfd_create("output")
        child = os.fork()
        if not child:
            _run_child(request, report, output)
        code, hung, seconds = _await(child, request)
        facts: dict[str, Any] = {}
        for part in _drain(report).splitlines():
            facts |= json.loads(part)
        text = _drain(output).decode(errors="replace")
        ending = Ending(code, text, hung, seconds=seconds, **facts)
        sys.stdout.write(json.dumps(asdict(ending)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(iter(sys.stdin.readline, ""))
