"""Standard input that a signal can end, whichever thread waits for it."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

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


@contextmanager
def open_standard_input() -> Iterator[BinaryIO | None]:
    """Give standard input, on which a read fails once a signal that has a handler has come; None if closed.

    A signal interrupts the main thread only: any other thread would wait for input all the same, and the
    main thread for it. To be entered in the main thread.
    """
    if sys.stdin is None:
        yield None
        return
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # replaced by an object in memory, which never waits
        yield sys.stdin.buffer
        return
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old_waker = signal.set_wakeup_fd(waker)
    try:
        yield io.BufferedReader(_StoppableInput(descriptor, wake), BUFFER_BYTES)
    finally:
        signal.set_wakeup_fd(old_waker)
        os.close(wake)
        os.close(waker)
