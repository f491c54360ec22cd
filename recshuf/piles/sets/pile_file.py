"""Complete files of pile sets, where they are read from."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Protocol

from recshuf.errors import DamagedSetError
from recshuf.system.buffers import allocate
from recshuf.system.page_cache import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle
    from recshuf.system.buffers import Allocate


RUN_REMEDY = "run again with another --temp-dir"


def remake_store(store: Path) -> str:
    """Return the advice for a damaged store. Nothing is written to its path while it is there.

    >>> from pathlib import Path
    >>> remake_store(Path("my store"))
    "delete the store with recshuf store drop 'my store', and make it again"
    """
    return f"delete the store with recshuf store drop {shlex.quote(str(store))}, and make it again"


class PileFile(Protocol):
    """A file of a pile set. Many threads may use it."""

    name: str
    """Path or URL, for messages."""
    remedy: str
    """What to do if it is damaged, for messages."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        """Return bytes of the file, in memory of their own.

        Raises
        ------
        PileError
            When it ends before.
        """
        ...

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that these offsets and sizes will be read."""
        ...

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that these offsets and sizes are read next, one after the other."""
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


class LocalPileFile:
    """A file of this machine; a `PileFile`.

    Parameters
    ----------
    release
        Closes the descriptor.
    """

    def __init__(self, descriptor: int, path: Path, release: Callable[[int], None], remedy: str) -> None:
        self.name = str(path)
        self.remedy = remedy
        self._descriptor = descriptor
        self._release = release

    @property
    def size(self) -> int:
        """Number of bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        """See `PileFile`."""
        region = memory(size, offset)
        view = region.data
        done = 0
        while done < size:
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if not count:
                raise _cut_off(self, offset + done)
            done += count
        return region

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `PileFile`."""
        for offset, size in ranges:
            read_ahead(self._descriptor, offset, size)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the system reads ahead."""

    def close(self) -> None:
        """See `PileFile`."""
        self._release(self._descriptor)


class ObjectPileFile:
    """An object; a `PileFile`."""

    remedy = RUN_REMEDY

    def __init__(self, handle: Handle, name: str) -> None:
        self.name = name
        self._handle = handle

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._handle.stamp.size

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        """See `PileFile`."""
        region = memory(size, offset)
        count = self._handle.readinto_at(offset, region.data)
        if count < size:
            raise _cut_off(self, offset + count)
        return region

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `PileFile`."""
        self.fetch(ranges)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `PileFile`."""
        self._handle.expect([(offset, offset + size) for offset, size in ranges])

    def close(self) -> None:
        """See `PileFile`."""
        self._handle.close()


def _cut_off(file: PileFile, offset: int) -> DamagedSetError:
    """Return the error for a file that ends too early."""
    return DamagedSetError(file.name, f"ends at byte {offset}, before the end of a region", file.remedy)
