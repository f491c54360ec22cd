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


def lock_folder(folder: Path, output: str, kind: int = fcntl.LOCK_EX) -> int:
    """Make a private folder, and return a descriptor that holds its lock until it is closed.

    An `OutputError` names the `output` if another run holds it, or it is no folder.
    """
    while True:
        is_new = False
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                is_new = True
            lock = _try_lock(folder, output, kind)
        except BaseException as error:
            if is_new and not isinstance(error, OutputError):  # else another run has it
                with suppress(OSError):
                    folder.rmdir()
            raise
        if lock is not None:
            return lock


def share_folder(folder: Path, output: str) -> int:
    """Do what `lock_folder` does, with a lock that others may share."""
    return lock_folder(folder, output, fcntl.LOCK_SH)


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
        """Tell whether a path leads to the file."""
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
