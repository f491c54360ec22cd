"""Engines of tasks: what runs numbered tasks in processes of this machine, or on a Ray cluster.

Machines of a cluster share the folders of inputs and output. Only tasks and results go through Ray.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from recshuf.errors import EngineError, RecshufError, UsageError
from recshuf.job.options import ENGINES
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs independent tasks."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
    ) -> Generator[Result, None, None]:
        """Yield the result of each task in order of completion; a generator, which its user closes.

        A task may run twice, also at the same time, if a machine is lost; its result comes once.

        Parameters
        ----------
        function
            Runs a task. Unless the engine is local, function, tasks and results are pickled.
        workers
            Most tasks at a time, unless the engine itself knows what its machines can do.
        """
        ...

    def close(self) -> None: ...


def can_start_processes() -> bool:
    """Tell whether this program knows an interpreter that other processes can run."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def open_engine(name: str, address: str | None, cores: int) -> Engine:
    """Return an engine of other processes, importing its library only now."""
    module, _, kind = ENGINES[name].partition(":")
    return cast("Engine", getattr(import_module(module), kind)(address, cores))


_CODE = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from recshuf.run.engines import serve
serve(connection)
"""
"""What a process begins with: it takes the path of its parent. The main module of that is not imported."""


class ProcessEngine:
    """An `Engine` that runs each task in a process of this machine, which runs further ones when it is done."""

    def __init__(self, address: str | None, cores: int) -> None:  # noqa: ARG002 - all cores are here
        if not can_start_processes():
            raise UsageError(
                "--engine processes: this program has no Python interpreter to start; give --engine local"
            )
        self._idle: list[_Worker] = []

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
    ) -> Generator[Result, None, None]:
        waiting, busy = deque(tasks), dict[Any, _Worker]()
        try:
            while waiting or busy:
                while waiting and len(busy) < workers:
                    worker = self._idle.pop() if self._idle else _Worker()
                    busy[worker.connection] = worker
                    worker.give(function, waiting.popleft())
                for connection in wait(list(busy)):
                    result = busy[connection].take()
                    self._idle.append(busy.pop(connection))
                    yield result
        finally:
            for worker in busy.values():
                worker.end()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class _Worker:
    """A process that runs one task at a time."""

    def __init__(self) -> None:
        self.connection, other = Pipe()
        command = [sys.executable, "-c", _CODE, str(other.fileno())]
        # Signals of the terminal go to all its processes; the parent decides what ends, and its end closes the pipe.
        with other, _blocking(signal.SIGINT, signal.SIGHUP):
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # it may be the report of the run
                pass_fds=[other.fileno()],
                env={"OPENBLAS_NUM_THREADS": "1"} | os.environ,
            )
        self._send(sys.path)

    def give(self, function: Callable[[Any], object], task: object) -> None:
        self._send((function, task))

    def _send(self, value: object) -> None:
        with suppress(OSError):  # it has died, which `take` finds out
            self.connection.send(value)

    def take(self) -> Any:
        """Return the result of the task, or raise its error."""
        try:
            result, error, trace = self.connection.recv()
        except (OSError, EOFError) as ended:
            raise EngineError(
                f"--engine processes: a process {self._describe_end()}; give --resume to continue, if memory was short with "
                "fewer --workers"
            ) from ended
        if error is not None:
            raise error from (EngineError(trace) if trace else None)
        return result

    def _describe_end(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"has ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was ended by {name}" + (
            ", as the system does when memory runs out" if name == "SIGKILL" else ""
        )

    def end(self) -> None:
        """End the process; what it was writing is nowhere named."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def _blocking(*numbers: int) -> Iterator[None]:
    """Block signals of this thread, and of processes that it starts meanwhile for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: Connection) -> None:
    """Run the tasks that come, one after the other, until the other process closes the connection or dies."""
    tasks = SimpleQueue[tuple["Callable[[Any], object]", object]]()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    while True:
        function, task = tasks.get()
        try:
            connection.send((function(task), None, ""))
        except Exception as error:
            connection.send((None, *_make_plain(error)))


def _receive(connection: Connection, tasks: SimpleQueue[Any]) -> None:
    with suppress(OSError, EOFError):
        while True:
            tasks.put(connection.recv())
    os._exit(0)  # also in the middle of a task


def _make_plain(error: Exception) -> tuple[Exception, str]:
    """Return an error that can be pickled, and the traceback of one that is not expected."""
    trace = "" if isinstance(error, RecshufError) else traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # of any kind
        from recshuf.formats import find_culprit

        who = f"{culprit} has failed: " if (culprit := find_culprit(error)) else ""
        return EngineError(f"--engine processes: {who}{type(error).__name__}: {error}"), trace
    return error, trace


_ANSWER_SECONDS = 10
_MOST_RETRIES = 20
"""How often a task runs again because its process or machine has died."""


class RayEngine:
    """An `Engine` that runs tasks on a Ray cluster.

    Parameters
    ----------
    address
        Address of the cluster. Default: that to which this process is connected, else as `ray.init` finds it, else a
        new one on this machine.
    cores
        Cores that each task takes.
    """

    def __init__(self, address: str | None, cores: int) -> None:
        self._ray = _import_ray()
        self._cores = cores
        self._is_connected_here = not self._ray.is_initialized()
        if self._is_connected_here:
            with _keeping_signals():
                self._connect(address)

    def _connect(self, address: str | None) -> None:
        try:
            _check_address(address or "")
            self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            place = f"--ray-address {address}" if address else "--engine ray"
            reason = _summarize(str(error))
            if address == "auto" and isinstance(error, ConnectionError):
                reason = "none runs on this machine; start one with ray start, or leave --ray-address out"
            raise UsageError(f"{place}: no Ray cluster can be used: {reason}") from error

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        workers: int,  # noqa: ARG002 # the cluster knows its cores
    ) -> Generator[Result, None, None]:
        pack = self._ray.cloudpickle.dumps
        remote = self._ray.remote(_carry(pack(function))).options(
            name="run_task",  # in lists of the tasks of a cluster
            num_cpus=self._cores,
            max_retries=_MOST_RETRIES,
            scheduling_strategy="SPREAD",
        )
        waiting = [remote.remote(pack(task)) for task in tasks]
        try:
            while waiting:
                (done, *_), waiting = self._ray.wait(waiting)
                version, result = self._get(done)
                if version != __version__:
                    raise _explain_version(version)
                yield result
        finally:
            for one in waiting:
                self._ray.cancel(one, force=True)

    def _get(self, done: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(done)
        except errors.RayTaskError as error:
            cause: BaseException = error.cause
            raise cause from None
        except errors.RayError as error:
            reason = str(error).splitlines()[0]
            raise EngineError(f"--engine ray: {reason}; give --resume to continue") from error

    def close(self) -> None:
        if self._is_connected_here:
            self._is_connected_here = False
            self._ray.shutdown()


def _carry(function: bytes) -> Callable[[bytes], tuple[str | None, Any]]:
    """Return a function that runs a pickled one on a worker.

    It returns the version of recshuf there, and the result if that is the version here. Ray sends its code, so that nothing
    of recshuf is needed to begin.
    """
    version = __version__

    def run(task: bytes) -> tuple[str | None, Any]:
        import pickle

        try:
            from recshuf.version import __version__ as found
        except ImportError:
            return None, None
        if found != version:
            return found, None
        call, value = map(pickle.loads, (function, task))  # as Ray does with all tasks
        return found, call(value)

    return run


def _explain_version(version: str | None) -> EngineError:
    found = "no recshuf" if version is None else f"recshuf {version}"
    return EngineError(
        f"--engine ray: a machine of the cluster has {found}, and this one {__version__}; install {__version__} on all of them"
    )


def _check_address(address: str) -> None:
    """Check that something answers at ``host:port`` or ``ray://host:port``; Ray would wait for minutes."""
    if address.startswith(("http://", "https://")):
        raise ValueError("this is a URL of the web; give host and port of the head, such as 10.0.0.1:6379")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        host = host.removeprefix("[").removesuffix("]")
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()


def _summarize(text: str) -> str:
    """Return an error of Ray in one line, and of a traceback of its server only the last line."""
    before, traceback, stack = text.partition("Traceback")
    if traceback:
        text = before + stack.strip().splitlines()[-1]
    return " ".join(text.split())


def _import_ray() -> Any:
    # Else a signal that comes while Ray connects is reported by its C++ part, with a stack.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray: Ray is not installed; install recshuf[ray]") from error
    return ray


@contextmanager
def _keeping_signals() -> Iterator[None]:
    """Keep the handlers of signals, in whose place Ray puts its own that end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with ExitStack() as restoring:
        for number, handler in before.items():
            if handler is not None:
                restoring.callback(signal.signal, number, handler)
        try:
            yield
        except SystemExit as ended:
            restoring.close()
            if ended.code == signal.SIGTERM:  # it came to Ray's handler, and is for the one before
                signal.raise_signal(signal.SIGTERM)
            raise
