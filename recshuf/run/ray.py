"""A Ray cluster whose machines share the folders of inputs and output. Only tasks and results go through Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import EngineError, UsageError
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    Task = TypeVar("Task")
    Result = TypeVar("Result")

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
            name=function.__name__,
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
