"""Memory to read into: aligned so that copies are fast, and used again."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Allocate = Callable[[int, int], NDArray[np.uint8]]
    """`allocate`, or that of a `BufferPool` or a `Slab`."""

_LINE_BYTES = 64
"""Bytes of a cache line."""
_LEAST_KEPT = 256 << 10
"""Smaller blocks are cheap to get anew."""
_STEPS = 16


def round_up(size: int) -> int:
    """Return a size that is larger by up to a sixteenth, so that a block of it fits others of about the same size.

    >>> round_up(1 << 20), round_up((1 << 20) + 1)
    (1048576, 1114112)
    """
    step = max(1, (1 << size.bit_length()) // (2 * _STEPS))
    return -(-size // step) * step


def allocate(size: int, offset: int = 0) -> NDArray[np.uint8]:
    """Return new memory whose address equals an offset modulo 64, uninitialized.

    AMD's processors of the Zen 3 generation copy at a fifth of their speed to an address that lies up to 31 bytes behind
    that of the source, modulo 4096. That is where NumPy's large arrays lie: 16 bytes behind the start of a page. So the offset
    is where what will be copied there lies in its file, or in its own aligned memory.
    """
    block = np.empty(size + _LINE_BYTES, np.uint8)
    address: int = block.__array_interface__["data"][0]
    start = (offset - address) % _LINE_BYTES
    return block[start : start + size]


class BufferPool:
    """Memory that is used again as soon as nobody refers to it. Used by many threads.

    The system clears new memory first, which takes as long as to fill it. It gets blocks back that are larger than `most_kept`.
    """

    def __init__(self, most_kept: int) -> None:
        self._most_kept = most_kept
        self._free: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def allocate(self, size: int, offset: int = 0) -> NDArray[np.uint8]:
        """Return memory as the function does. It belongs to whoever holds it or a view of it."""
        if size < _LEAST_KEPT:
            return allocate(size, offset)
        with self._lock:
            block = self._take(size + _LINE_BYTES)
        lease = np.frombuffer(block, np.uint8)
        if len(block) <= self._most_kept:
            weakref.finalize(lease, self._free.append, block).atexit = False
        start = offset % _LINE_BYTES
        return lease[start : start + size]

    def _take(self, size: int) -> mmap.mmap:
        """Return the smallest free block that is large enough, else a new one in place of a free one."""
        blocks = sorted((self._free.popleft() for _ in range(len(self._free))), key=len)
        fitting = next((block for block in blocks if len(block) >= size), None)
        if blocks:
            blocks.remove(fitting or blocks[-1])
        self._free.extend(blocks)
        return fitting or _map_block(size)


class Slab:
    """One piece of memory for parts of these sizes, handed out one by one; what does not fit is allocated. Used by one thread."""

    def __init__(self, sizes: Sequence[int], memory: Allocate) -> None:
        self._rest = memory(sum(sizes) + len(sizes) * _LINE_BYTES, 0)
        self._place = 0
        self._memory = memory

    def allocate(self, size: int, offset: int = 0) -> NDArray[np.uint8]:
        start = self._place + (offset - self._place) % _LINE_BYTES
        if start + size > len(self._rest):
            return self._memory(size, offset)
        self._place = start + size
        return self._rest[start : start + size]


def _map_block(size: int) -> mmap.mmap:
    """Return new memory, in large pages if the system has them, which are ready sooner."""
    block = mmap.mmap(-1, round_up(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a system without them
        block.madvise(mmap.MADV_HUGEPAGE)
    return block
