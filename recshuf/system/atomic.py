"""Folders that replace each other: access, names, and what is on the disk."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY, errno.EOPNOTSUPP)
"""Errors which say that two names cannot change places."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def copy_access(source: Path, target: Path) -> None:
    """Give a directory the permissions of the one that it replaces."""
    found = source.stat()
    target.chmod(stat.S_IMODE(found.st_mode))
    with suppress(PermissionError):
        os.chown(target, found.st_uid, found.st_gid)


def exchange(first: Path, second: Path) -> None:
    """Let two names change places in one step.

    Raises
    ------
    OSError
        With a number of `NO_EXCHANGE` where the file system cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = (os.fsencode(first), os.fsencode(second))
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises
    ------
    OSError
        When they cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
