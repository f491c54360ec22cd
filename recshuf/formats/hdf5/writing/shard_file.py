"""The file of an HDF5 shard. HDF5 writes it through Python, so that a full disk is an ordinary error."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from recshuf.system.page_cache import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ShardFile:
    """A new file that records the first failed write and ignores later writes.

    HDF5 cannot close a file that it cannot write, and reports errors until the interpreter ends. So failures are hidden
    from HDF5, and its callers check for the error afterwards.

    Parameters
    ----------
    path
        The file, which must not exist.

    Raises
    ------
    OSError
        When the file exists, cannot be created, or cannot hold the image.
    """

    def __init__(self, path: Path, image: bytes) -> None:
        self.error: OSError | None = None
        self._path = path
        self._pretends = False
        self._held: memoryview | None = None
        self._held_place: int | None = None
        self._file: io.RawIOBase | io.BytesIO = BehindFile(path, "x+b")
        try:
            self.write(image)
            self.check()
        except OSError:
            self._file.close()
            raise

    def check(self) -> None:
        """Raise the first error of a write."""
        if self.error is not None:
            raise self.error

    def pretend(self) -> None:
        """Ignore all later writes."""
        self._pretends = True

    def close(self) -> None:
        """Close the file; HDF5 continues with an empty file in memory if it still uses it."""
        self._file.close()
        self._file = io.BytesIO()
        self._pretends = True

    @contextmanager
    def holding(self, data: bytes | bytearray | memoryview) -> Iterator[None]:
        """Postpone the write of a buffer by HDF5 to the end of the context, when another thread may be in HDF5.

        Parameters
        ----------
        data
            Contiguous buffer. If HDF5 writes a copy of it, the copy is written at once.
        """
        view = memoryview(data).cast("B")
        self._held, self._held_place = view, None
        try:
            yield
        finally:
            self._held = None
        if self._held_place is not None:
            self.seek(self._held_place)
            self.write(view)

    # h5py calls these methods from inside the HDF5 library; they must not raise.

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position in bytes."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes."""
        return self._file.read(size)

    def readinto(self, buffer: bytes | memoryview) -> int:
        """Fill a buffer, with zeros for bytes whose write was ignored."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        return len(view)

    def write(self, buffer: bytes | memoryview) -> int:
        """Write a buffer, or record the error."""
        view = memoryview(buffer).cast("B")
        if self._held is not None and _are_same(view, self._held):
            self._held_place = self.tell()
            return len(view)
        done = 0
        while done < len(view) and not self._pretends:
            try:
                done += self._file.write(view[done:])
            except OSError as error:
                self._fail(error)
        return len(view)

    def truncate(self, size: int) -> int:
        """Set the length of the file, or record the error."""
        if not self._pretends:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._fail(error)
        return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _fail(self, error: OSError) -> None:
        error.filename = str(self._path)
        self.error = error
        self._pretends = True


def _are_same(first: memoryview, second: memoryview) -> bool:
    """Tell whether two views share the same memory."""
    return len(first) == len(second) and _address_of(first) == _address_of(second)


def _address_of(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
