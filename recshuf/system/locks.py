"""Locks of folders, which the system releases when the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


def lock_folder(folder: Path, output: str) -> int:
    """Make a private folder, and return a descriptor that holds its lock until it is closed.

    An `OutputError` names the `output` if another run holds it, or it is no folder.
    """
    while True:
        is_new = True
        try:
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                is_new = False
            lock = _try_lock(folder, output)
        except BaseException:
            if is_new:
                with suppress(OSError):
                    folder.rmdir()
            raise
        if lock is not None:
            return lock


def share_folder(folder: Path, output: str) -> int:
    """Make a private folder if there is none, and return a descriptor that holds its lock with others until it is closed.

    Errors are those of `lock_folder`.
    """
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        lock = _try_lock(folder, output, fcntl.LOCK_SH)
        if lock is not None:
            return lock


def _try_lock(folder: Path, output: str, kind: int = fcntl.LOCK_EX) -> int | None:
    """Return a descriptor that holds the lock of a folder; None if the folder was removed."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # the run that held it has just removed it
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise OutputError(f"{folder}: is no folder of an earlier run; remove it first") from error
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        if not _is_same(lock, folder):
            os.close(lock)
            return None
    except BlockingIOError:
        os.close(lock)
        raise OutputError(
            f"{output}: another run is writing it (it holds {folder}); wait for its end, or choose another output"
        ) from None
    except BaseException:
        with suppress(OSError):
            os.close(lock)
        raise
    return lock


def _is_same(descriptor: int, path: Path, *, may_be_link: bool = False) -> bool:
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

    def lock(self) -> None:
        """Take the lock; BlockingIOError if another process holds it alone."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def holds(self, path: Path) -> bool:
        """Tell whether a path leads to the file."""
        return _is_same(self._descriptor, path, may_be_link=True)

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        self._close()


def try_shared(path: Path) -> Lease | None:
    """Return a shared lock of a file; None if the file is gone, or another process holds its lock alone."""
    try:
        lease = Lease(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError):
        lease.lock()
        if lease.holds(path):
            return lease
    lease.close()
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
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(descriptor, kind)
            if _is_same(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # who held it has unlinked it


def lock_existing(path: Path) -> int:
    """Return a descriptor that holds the lock of a file until it is closed.

    Raises
    ------
    FileNotFoundError
        When the file is gone.
    BlockingIOError
        When it is locked.
    """
    try:
        descriptor = os.open(
            path, os.O_RDWR | os.O_CLOEXEC
        )  # NFS locks no file alone that is open for reading
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_same(descriptor, path, may_be_link=True):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        os.close(descriptor)
        raise
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
