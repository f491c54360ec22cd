"""Files that are read at any place, and shards that are files of their own, written to their end."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.interfaces import Sink

if TYPE_CHECKING:
    from contextlib import ExitStack
    from io import FileIO

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle


def fill(handle: Handle, offset: int, into: NDArray[np.uint8]) -> int:
    """Fill an array with the bytes of a file from `offset` on, and return how many are missing."""
    view = into.data
    while view and (got := handle.readinto_at(offset, view)):
        offset, view = offset + got, view[got:]
    return len(view)


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class FileSink(Sink):
    """A shard in files that stay open until it is complete. A subclass opens them, and counts its records in `_count`."""

    _count = 0

    def __init__(self, files: ExitStack) -> None:
        self._files: ExitStack | None = files.pop_all()

    @property
    def record_count(self) -> int:
        return self._count

    @abstractmethod
    def _complete(self) -> None:
        """Write what is known at the end only."""

    def close(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with files:
                self._complete()

    def abort(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with suppress(OSError, ValueError):
                files.close()
