"""Standard input and output that a signal can end, whichever thread waits for them."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import stat
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, TextIO

BUFFER_BYTES = 1 << 20


class _StoppableInput(io.RawIOBase):
    """Reads a descriptor until another one, `wake`, has something to read."""

    def __init__(self, descriptor: int, wake: int) -> None:
        self._descriptor = descriptor
        self._wake = wake
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(wake, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        ready = {descriptor for descriptor, _ in self._poll.poll()}
        if self._wake in ready:
            # An error and not the end: nobody may take what has come so far for the whole.
            raise OSError(errno.ECANCELED, "stopped by a signal")
        return os.readv(self._descriptor, [buffer])


class _StoppableOutput(io.RawIOBase):
    """Writes to a pipe until `wake` has something to read."""

    def __init__(self, descriptor: int, wake: int) -> None:
        self._descriptor = descriptor
        self._wake = wake
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._poll.register(wake, select.POLLIN)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, buffer: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            if self._wake in {descriptor for descriptor, _ in self._poll.poll()}:
                raise OSError(errno.ECANCELED, "stopped by a signal")
            try:
                return os.write(self._descriptor, buffer)
            except BlockingIOError:
                continue  # less room than the pipe promises

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)


@contextmanager
def open_standard_streams() -> Iterator[tuple[BinaryIO | None, BinaryIO | None]]:
    """Give standard input and output that a signal with a handler can end; None for what needs no care.

    A signal interrupts the main thread only: any other thread would wait for input or for room in a pipe all
    the same, and the main thread for it. To be entered in the main thread.
    """
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old_waker = signal.set_wakeup_fd(waker)
    with ExitStack() as streams:
        streams.callback(os.close, wake)
        streams.callback(os.close, waker)
        streams.callback(signal.set_wakeup_fd, old_waker)
        output = _open_output(wake)
        if output is not None:
            streams.callback(output.close)
        yield _open_input(wake), output


def _open_input(wake: int) -> BinaryIO | None:
    descriptor = _find_descriptor(sys.stdin)
    if descriptor is None or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None  # nobody waits for a file
    return io.BufferedReader(_StoppableInput(descriptor, wake), BUFFER_BYTES)


def _open_output(wake: int) -> BinaryIO | None:
    descriptor = _find_descriptor(sys.stdout)
    if descriptor is None or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return None
    try:
        # A second opening of the same pipe: that it does not block is nothing to the others who hold it.
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    return cast("BinaryIO", _StoppableOutput(own, wake))


def _find_descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of a standard stream; None if it is closed, or an object in memory."""
    try:
        return None if stream is None else stream.fileno()
    except io.UnsupportedOperation:
        return None
