"""Files and folders that are put in place at once, syncing, and JSON objects as lines that show damage.

A line: the xxh3 of the rest in 16 hexadecimal digits, a space, and the object.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path


NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY, errno.EOPNOTSUPP)
"""Error numbers of file systems that cannot exchange two names."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def copy_access(source: Path, target: Path) -> None:
    """Copy permissions and owner of a directory to the one that replaces it."""
    status = source.stat()
    target.chmod(stat.S_IMODE(status.st_mode))
    with suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid)


def exchange(first: Path, second: Path) -> None:
    """Exchange two names atomically.

    Raises
    ------
    OSError
        With a number of `NO_EXCHANGE` if the file system cannot do that.
    """
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
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _place(draft, path)
        sync(path.parent)
    except OSError as error:
        raise write_error(error, str(path), path.parent) from error


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


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> bool:
    """Sync all files of the file system that holds a path; False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
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
