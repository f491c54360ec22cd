"""Files in memory without names, which one process fills and another one reads, over and over.

    worker     takes a file from its pool, fills it, and sends where it lies: process, descriptor, number
    consumer   opens /proc/PROCESS/fd/DESCRIPTOR, maps it, and holds a lease as long as anybody has a view of it
    consumer   gives it back: writes to its header
    worker     takes it again, and neither has to map it once more

New pages cost more than what is written to them: the system clears them, and each process is interrupted for each page.

A file goes with the last process that has it open or mapped, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections import deque
from mmap import MAP_POPULATE, MAP_SHARED, mmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.system.buffers import round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray


_HEADER_BYTES = 64
_STATE, _IS_RETIRED = range(2)
"""Bytes of the header. The first is written by the consumer, the second by the worker."""
_SENT, _TAKEN, _RETURNED, _DROPPED = range(4)
_MOST_AWAY = 64
"""A consumer may keep all it gets. What is beyond this is not taken again, so that descriptors last."""
_SECONDS_TO_END = 10


class Address(NamedTuple):
    """Where a consumer finds a file."""

    process: int
    descriptor: int
    number: int
    """Drawn at random, since a later process may have the number of this one."""


class SharedFile:
    """A file that this process fills."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create("recshuf")
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.address = Address(os.getpid(), descriptor, int.from_bytes(os.urandom(8)))
        self.is_sent = False
        """Whether its address has been sent since it was taken."""
        whole = _HEADER_BYTES + round_up(size)
        os.ftruncate(descriptor, whole)
        self._map = mmap(descriptor, whole, MAP_SHARED | MAP_POPULATE)
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, offset=_HEADER_BYTES)
        """What may be filled; at least the size."""

    @property
    def is_taken(self) -> bool:
        """Whether the consumer has it, now or before."""
        return self._map[_STATE] != _SENT

    @property
    def is_returned(self) -> bool:
        """Whether the consumer has given it back."""
        return self._map[_STATE] == _RETURNED

    @property
    def is_dropped(self) -> bool:
        """Whether the consumer needs it no more, and nobody may fill it again."""
        return self._map[_STATE] == _DROPPED

    def reset(self) -> None:
        """Forget that it was sent."""
        self.is_sent = False
        self._map[_STATE] = _SENT

    def retire(self) -> None:
        """Tell the consumer that the file will not come again."""
        self._map[_IS_RETIRED] = True


class FilePool:
    """The files of a worker. One thread takes them, any thread gives them."""

    def __init__(self) -> None:
        self._free: deque[SharedFile] = deque()
        self._away: deque[SharedFile] = deque()
        """Those that were sent, and may not have come back."""

    def take(self, size: int) -> SharedFile:
        """Return a file of at least so many bytes that nobody uses."""
        self._collect()
        free = sorted((self._free.popleft() for _ in range(len(self._free))), key=lambda one: len(one.memory))
        fitting = next((one for one in free if len(one.memory) >= size), None)
        if free:
            dropped = fitting or free[-1]
            free.remove(dropped)
            if fitting is None:
                dropped.retire()
        self._free.extend(free)
        if fitting is None:
            return SharedFile(size)
        fitting.reset()
        return fitting

    def give(self, file: SharedFile) -> None:
        """Let a file be taken again as soon as the consumer has given it back, if it was sent."""
        (self._away if file.is_sent else self._free).append(file)

    def _collect(self) -> None:
        """Find what has come back."""
        surplus = len(self._away) - _MOST_AWAY
        for _ in range(len(self._away)):
            file = self._away.popleft()
            if file.is_returned:
                self._free.append(file)
            elif file.is_dropped or (file.is_taken and surplus > 0):
                file.retire()
                surplus -= 1
            else:
                self._away.append(file)


class _Mapping:
    """A file of another process in the memory of the consumer."""

    def __init__(self, address: Address) -> None:
        descriptor = os.open(f"/proc/{address.process}/fd/{address.descriptor}", os.O_RDWR)
        try:
            self._map = mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    @property
    def is_retired(self) -> bool:
        """Whether it will not come again."""
        return bool(self._map[_IS_RETIRED])

    def lease(self, size: int) -> NDArray[np.uint8]:
        """Return its first bytes. It is given back when nobody has a view of them any more."""
        self._map[_STATE] = _TAKEN
        lease: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, size, _HEADER_BYTES)
        weakref.finalize(lease, self._give_back, _forks).atexit = False
        return lease

    def _give_back(self, forks: int) -> None:
        # A process that was forked meanwhile may have views of it, too.
        self._map[_STATE] = _RETURNED if forks == _forks else _DROPPED


_forks = 0
"""How often this process was forked, itself or by a fork."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork, after_in_child=_count_fork)


class Borrower:
    """The files of one other process, in the memory of this one."""

    def __init__(self) -> None:
        self._mappings: dict[int, _Mapping] = {}

    def borrow(self, address: Address, size: int) -> NDArray[np.uint8]:
        """Return the first bytes of a file, until nobody has a view of them any more.

        Raises
        ------
        RuntimeError
            When the other process has ended.
        """
        if address.number not in self._mappings:
            for number in [number for number, one in self._mappings.items() if one.is_retired]:
                del self._mappings[number]
            self._mappings[address.number] = _map(address)
        return self._mappings[address.number].lease(size)


def _map(address: Address) -> _Mapping:
    try:
        return _Mapping(address)
    except FileNotFoundError as error:
        # Files of a process go a moment before it ends; then PyTorch can tell that its worker is dead.
        for child in multiprocessing.active_children():
            if child.pid == address.process:
                child.join(_SECONDS_TO_END)
        raise RuntimeError(f"worker process {address.process} has ended, and its batches are lost") from error
