"""Page cache: reading pages ahead, dropping them, and writing them to the device. The number of open files."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import resource
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from _typeshed import ReadableBuffer


T = TypeVar("T")
_BEHIND_BYTES = 16 << 20
_KEPT_BYTES = 4 * _BEHIND_BYTES
_SYNC_FILE_RANGE_WRITE, _SYNC_FILE_RANGE_DONE = 2, 7  # from linux/fs.h


def drop_pages(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Drop bytes ``offset:offset + size`` of a file from the page cache; to the end if `size` is 0.

    Dirty pages stay. Failures are ignored.
    """
    with suppress(OSError):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def read_ahead(descriptor: int, offset: int, size: int) -> None:
    """Begin to read bytes ``offset:offset + size`` of a file into the page cache. Failures are ignored."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)


def drop_file_pages(path: Path) -> None:
    """Drop a whole file from the page cache. Failures are ignored."""
    _apply(drop_pages, path)


def begin_writing(path: Path) -> None:
    """Start writing the dirty pages of a file to its device. Failures show at the next sync."""
    call = _find_call("sync_file_range")
    if call is not None:
        whole = (ctypes.c_int64(0), ctypes.c_int64(0))
        _apply(lambda descriptor: call(descriptor, *whole, _SYNC_FILE_RANGE_WRITE), path)


def _apply(call: Callable[[int], object], path: Path) -> None:
    """Call a function with a descriptor of a file; a file that cannot be opened is ignored."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            call(descriptor)
        finally:
            os.close(descriptor)


@cache
def _find_call(name: str) -> Callable[..., object] | None:
    """Return a function of the C library; None if it has none of that name."""
    call: Callable[..., object] | None = getattr(ctypes.CDLL(None), name, None)
    return call


class WriteBehind:
    """Starts writing a file to its device while it grows, so that the final sync is short.

    Parameters
    ----------
    descriptor
        The file; the caller closes it.
    drop_page_cache
        Drop written pages from the page cache. Writers then wait for the device, about 64 MiB behind.
    """

    def __init__(self, descriptor: int, *, drop_page_cache: bool = False) -> None:
        self._descriptor = descriptor
        self._drop_page_cache = drop_page_cache
        self._begun = 0
        self._dropped = 0
        self._call = _find_call("sync_file_range")

    def reach(self, byte_count: int) -> None:
        """Start writing up to `byte_count`, the present size of the file. Failures show at the next sync."""
        size = byte_count - self._begun
        if size >= _BEHIND_BYTES and self._call is not None:
            offset = ctypes.c_int64(self._begun)
            self._call(self._descriptor, offset, ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)
            self._begun = byte_count
            if self._drop_page_cache:
                self._drop(byte_count - _KEPT_BYTES)

    def _drop(self, stop: int) -> None:
        size = stop - self._dropped
        if size >= _BEHIND_BYTES and self._call is not None:
            offset = ctypes.c_int64(self._dropped)
            self._call(self._descriptor, offset, ctypes.c_int64(size), _SYNC_FILE_RANGE_DONE)
            drop_pages(self._descriptor, self._dropped, size)
            self._dropped = stop


class BehindFile(io.FileIO):
    """An unbuffered file with a `WriteBehind`."""

    def __init__(self, file: int | str | Path, mode: str, *, drop_page_cache: bool = False) -> None:
        super().__init__(file, mode)
        self._behind = WriteBehind(self.fileno(), drop_page_cache=drop_page_cache)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write at the current offset, and return the number of bytes written."""
        count = super().write(data)
        self._behind.reach(self.tell())
        return count


def open_more(open_file: Callable[[], T]) -> T:
    """Return what a function opens. If too many files are open, the soft limit is raised to the hard one first."""
    try:
        return open_file()
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return open_file()
