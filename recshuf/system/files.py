"""Files: put in place at once, synced, written to the device early, dropped from the page cache, and locked; how many are open.

JSON objects as lines show damage: the xxh3 of the rest in 16 hexadecimal digits, a space, and the object. The system releases
locks when the process ends.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import json
import os
import resource
import secrets
import stat
import weakref
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import xxhash

from recshuf.errors import OutputError, UsageError
from recshuf.system.paths import naming_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TextIO

    from _typeshed import ReadableBuffer


NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY, errno.EOPNOTSUPP)
"""Error numbers of file systems that cannot exchange two names."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def copy_access(source: Path, target: Path) -> None:
    """Copy permissions and owner of a file or directory to the one that replaces it."""
    status = source.stat()
    target.chmod(stat.S_IMODE(status.st_mode))
    with suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid)


def exchange(first: Path, second: Path) -> None:
    """Exchange two names atomically; an OSError with a number of `NO_EXCHANGE` says that the file system cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = (os.fsencode(first), os.fsencode(second))
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def place_file(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there, if there is none of this name."""
    draft = path.with_name(f"{secrets.token_hex(8)}.draft")
    with naming_errors(str(path), path.parent):
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _place(draft, path)
        sync(path.parent)


def _place(draft: Path, path: Path) -> None:
    """Rename a file, unless there is one of the new name."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Of two that get here at the same time the later one counts. What the other names is complete and stays.
        draft.rename(path)
        return
    draft.unlink()


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Give a descriptor of a file or a folder that is only read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def sync_file_system(path: Path) -> bool:
    """Sync all files of the file system that holds a path; False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        return False
    with _opened(path) as descriptor:
        if libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    return True


def format_line(values: dict[str, Any]) -> bytes:
    """Return JSON values as a line, with its end."""
    text = json.dumps(values, sort_keys=True).encode()
    return b"%016x %s\n" % (xxhash.xxh3_64_intdigest(text), text)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the values in a line without its end; None if it is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%016x" % xxhash.xxh3_64_intdigest(text):
        return None
    values: dict[str, Any] = json.loads(text)
    return values


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
    with suppress(OSError), _opened(path, os.O_NONBLOCK) as descriptor:
        drop_pages(descriptor)


def begin_writing(path: Path) -> None:
    """Start writing the dirty pages of a file to its device. Failures show at the next sync."""
    if (call := _find_sync_range()) is not None:
        with suppress(OSError), _opened(path, os.O_NONBLOCK) as descriptor:
            call(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


@cache
def _find_sync_range() -> Callable[..., object] | None:
    """Return `sync_file_range` of the C library; None if it has none."""
    call: Callable[..., object] | None = getattr(ctypes.CDLL(None), "sync_file_range", None)
    return call


class BehindFile(io.FileIO):
    """An unbuffered file that is written to its device while it grows, so that the final sync is short.

    It may drop written pages from the page cache. Writers then wait for the device, about 64 MiB behind.
    """

    def __init__(self, file: int | str | Path, mode: str, *, drop_page_cache: bool = False) -> None:
        super().__init__(file, mode)
        self._drop_page_cache = drop_page_cache
        self._begun = self._dropped = 0
        self._call = _find_sync_range()

    def write(self, data: ReadableBuffer, /) -> int:
        """Write at the current offset, and return the number of bytes written. Other failures show at the next sync."""
        count = super().write(data)
        end = self.tell()
        if self._reach(self._begun, end, _SYNC_FILE_RANGE_WRITE):
            self._begun = end
            kept_from = end - _KEPT_BYTES
            if self._drop_page_cache and self._reach(self._dropped, kept_from, _SYNC_FILE_RANGE_DONE):
                drop_pages(self.fileno(), self._dropped, kept_from - self._dropped)
                self._dropped = kept_from
        return count

    def _reach(self, begin: int, end: int, flags: int) -> bool:
        """Begin or end writing bytes to the device; return False if they are too few."""
        if end - begin < _BEHIND_BYTES or self._call is None:
            return False
        self._call(self.fileno(), ctypes.c_int64(begin), ctypes.c_int64(end - begin), flags)
        return True


def find_descriptor(stream: TextIO | None) -> int | None:
    """Return the descriptor of a standard stream; None if it has none, as what a program has put in its place."""
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError, AttributeError):
        return None


def bytes_of(stream: TextIO | None, name: str, remedy: str) -> BinaryIO:
    """Return what takes or gives the bytes of a standard stream, or say why there is nothing."""
    if stream is None or getattr(stream, "closed", False):
        raise UsageError(f"{name} is closed; {remedy}")
    if not hasattr(stream, "buffer"):
        raise UsageError(f"{name} holds text alone here, as in a notebook; {remedy}")
    return stream.buffer


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


def lock_folder(folder: Path, output: str, *, is_shared: bool = False) -> int:
    """Make a private folder, and return a descriptor that holds its lock, which others may share, until it is closed.

    An `OutputError` names the `output` if another run holds it, or it is no folder.
    """
    while True:
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            lock = _try_lock(folder, output, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
        except BaseException as error:
            if not isinstance(error, OutputError):
                _remove_unheld(folder, output)
            raise
        if lock is not None:
            return lock


def _remove_unheld(folder: Path, output: str) -> None:
    """Remove an empty folder, unless another run has its lock."""
    with suppress(OSError, OutputError):
        if (lock := _try_lock(folder, output, fcntl.LOCK_EX)) is not None:
            try:
                folder.rmdir()  # mostly it is not empty
            finally:
                os.close(lock)


def _try_lock(folder: Path, output: str, kind: int) -> int | None:
    """Return a descriptor that holds the lock of a folder; None if the folder was removed."""
    try:
        return _open_locked(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, kind | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None  # the run that held it has just removed it
    except BlockingIOError:
        raise OutputError(
            f"{output}: another run is writing it (it holds {folder}); wait for its end, or choose another output"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise OutputError(f"{folder}: is no folder of an earlier run; remove it first") from error


def _open_locked(path: Path, flags: int, kind: int, mode: int = 0o600) -> int | None:
    """Return a descriptor that holds the lock of what a path leads to; None if the path leads elsewhere by then."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, kind)
        if _is_same(descriptor, path, may_be_link=not flags & os.O_NOFOLLOW):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_same(descriptor: int, path: Path, *, may_be_link: bool = True) -> bool:
    """Tell whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=may_be_link))
    except FileNotFoundError:
        return False


class Lease:
    """A shared lock of a file, until it is closed or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def holds(self, path: Path) -> bool:
        return _is_same(self._descriptor, path)

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        self._close()


def try_shared(path: Path) -> Lease | None:
    """Return a shared lock of a file; None if the file is gone, or another process holds its lock alone."""
    try:
        return Lease(_lock_existing(path, os.O_RDONLY, fcntl.LOCK_SH))
    except (FileNotFoundError, BlockingIOError):
        return None


def try_exclusive(path: Path, mode: int = 0o600) -> int | None:
    """Make a file if it does not exist, and return a descriptor that holds its lock until it is closed; None if it is locked."""
    try:
        return _lock_file(path, mode, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def wait_exclusive(path: Path) -> int:
    """Make a file if it does not exist, wait for its lock, and return a descriptor that holds it until it is closed."""
    return _lock_file(path, 0o600, fcntl.LOCK_EX)


def _lock_file(path: Path, mode: int, kind: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    while (descriptor := _open_locked(path, flags, kind, mode)) is None:
        pass  # who held it has unlinked it
    return descriptor


def lock_existing(path: Path) -> int:
    """Return a descriptor that holds the lock of a file until it is closed.

    FileNotFoundError if the file is gone, BlockingIOError if it is locked.
    """
    try:  # as NFS locks no file alone that is open for reading
        return _lock_existing(path, os.O_RDWR, fcntl.LOCK_EX)
    except PermissionError:
        return _lock_existing(path, os.O_RDONLY, fcntl.LOCK_EX)


def _lock_existing(path: Path, flags: int, kind: int) -> int:
    descriptor = _open_locked(path, flags, kind | fcntl.LOCK_NB)
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor


def unlink_unless_locked(path: Path) -> bool:
    """Delete a file that nobody has locked; return whether it is gone."""
    try:
        descriptor = lock_existing(path)
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return not os.path.lexists(path)
    except (BlockingIOError, PermissionError):
        return False
    return True
