"""Paths and schemes of URLs, free space, and errors of writing."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from recshuf.errors import (
    DiskFullError,
    ForbiddenOutputError,
    MissingFolderError,
    OutputError,
    RecshufError,
    UsageError,
)
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator


SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
"""Those whose URLs can be read."""
ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azure": "az"}
"""What other programs call some of them."""
FILE = "file"
"""Scheme of URLs whose path can be given in their place."""
_KNOWN = {*SCHEMES, *ALIASES, FILE}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_CUT_URL = re.compile(f"(({'|'.join((*SCHEMES, *ALIASES, FILE))}):)/(?!/)", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
PLAIN_NAME_RULE = "give letters, digits, '.', '_' and '-', the first a letter, digit or '_', at most 100"
"""What errors say of a name that `is_plain_name` refuses."""
_LONGEST_NAME = 240  # file systems allow 255 bytes


def find_scheme(text: str) -> str | None:
    """Return the scheme of a URL, as it is written; None for a local path.

    With a scheme that is not known here, a text is a path if there is a file or folder of that name.

    >>> find_scheme("S3://bucket/a"), find_scheme("data/a"), find_scheme("C:/a")
    ('S3', None, None)
    """
    match = _SCHEME.match(text)
    if match is None or (match[1].lower() not in _KNOWN and Path(f"{match[1]}:").exists()):
        return None
    return match[1]


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path with links resolved; circular links stay."""
    return Path(os.path.realpath(path))  # Path.resolve fails on such links before Python 3.13


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to one, to read it; an OSError says if it is something else: a pipe would wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return descriptor


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return a path, which may not be a URL."""
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"{name!r} is no path; give text or a pathlib.Path")
    check_name(name)
    refuse_url(os.fspath(name))
    return Path(name)


def refuse_url(name: str) -> None:
    scheme = find_scheme(name)
    if scheme is None:
        return
    if scheme.lower() == FILE:
        raise UsageError(f"{name}: is a URL; give the path in it")
    raise UsageError(f"{name}: is a URL; give a local path here")


def check_name(path: object) -> None:
    """Refuse a name that no file has, an empty one, a URL that lost a slash, as path objects drop one, and a ~ that nobody replaced."""
    name = os.fsdecode(path) if isinstance(path, str | os.PathLike) else ""
    if path == "":
        raise UsageError("a path is empty; give one")
    if "\0" in name:
        raise UsageError(f"{name!r}: has a NUL, which no name of a file can have; give another one")
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name!r}: has half a character, which no name of a file can have; give another one"
        ) from error
    home = os.path.expanduser(name)  # noqa: PTH111 - that of a path fails without a home
    if home != name and not os.path.lexists(name.partition("/")[0]):
        raise UsageError(
            f"{name}: begins with ~, which only a shell replaces, at the start of a word without quotes; "
            f"give {home}, or ./{name} for a local path"
        )
    # It would be a local folder with that name.
    match = _CUT_URL.match(name)
    if match is None:
        return
    if isinstance(path, os.PathLike):
        problem = "is a URL in a path object, which drops one of its slashes; give the URL as text"
    else:
        problem = f"is a URL that lacks a slash; give {match[1]}//, or ./{name} for a local path"
    raise UsageError(f"{name}: {problem}")


def is_plain_name(name: str) -> bool:
    """Tell whether a name that a user gives to files is of 1 to 100 ASCII letters, digits, ``.``, ``_`` and ``-``.

    The first one is a letter, a digit or ``_``.
    """
    return _PLAIN_NAME.fullmatch(name) is not None


def shorten_name(name: str) -> str:
    """Return a file name, or a hash of it if it leaves no room for a prefix and a suffix of 15 bytes."""
    raw = os.fsencode(name)
    return name if len(raw) <= _LONGEST_NAME else xxhash.xxh3_64_hexdigest(raw)


def free_bytes(folder: Path) -> int | None:
    """Return the free space below a folder; None if unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


class WriteMessages(NamedTuple):
    """Messages for failed writes; ``{room}`` is the needed and free space, ``{reason}`` the system's message."""

    too_large: str = "the file may not grow this large; raise ulimit -f, or start anew with more shards"
    no_space: str = "no space left for the output{room}; free some, or choose another"
    other: str = "cannot be written: {reason}"


_OUTPUT_MESSAGES = WriteMessages()


def write_error(
    error: OSError,
    name: str,
    folder: Path | None = None,
    needed_bytes: int | None = None,
    messages: WriteMessages = _OUTPUT_MESSAGES,
) -> OutputError:
    """Return the error for a failed write to `name` in `folder`; an `OutputError` is returned unchanged.

    `needed_bytes` is the expected total, if known.
    """
    if isinstance(error, OutputError):
        return error
    if error.errno == errno.EFBIG:
        return DiskFullError(f"{name}: {messages.too_large}")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        kind = ForbiddenOutputError if isinstance(error, PermissionError) else OutputError
        return kind(f"{name}: {messages.other.format(reason=error.strerror or error)}")
    known = [f"about {format_size(needed_bytes)} needed in all"] if needed_bytes else []
    if folder is not None and (free := free_bytes(folder)) is not None:
        known.append(f"{format_size(free)} free")
    room = f" ({', '.join(known)})" if known else ""
    return DiskFullError(f"{name}: {messages.no_space.format(room=room)}")


@contextmanager
def naming_errors(name: str, folder: Path | None = None, needed_bytes: int | None = None) -> Iterator[None]:
    """Have errors of the operating system be those of `write_error`, but for that of a pipe which nobody reads."""
    try:
        yield
    except (BrokenPipeError, RecshufError):
        raise
    except OSError as error:
        raise write_error(error, name, folder, needed_bytes) from error


def find_existing(path: Path) -> Path:
    """Return the path, or the closest folder above it that is there; a link is there, wherever it leads."""
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), path)


def refuse_below_file(folder: Path, what: str) -> None:
    """Refuse a folder that is a file, or that lies below one; `what` names the argument."""
    there = find_existing(folder)
    if there.exists() and not there.is_dir():
        raise OutputError(f"{there}: is a file, not a directory; choose another {what}")


def choose_temp_dir(asked: Path | None, beside: Path | None = None) -> Path:
    """Return the folder for large temporary files: `asked`, else `beside`, else the system's.

    The system's is ``$TMPDIR``, else ``/var/tmp``, which unlike ``/tmp`` is meant for large files. If that is not
    writable, `tempfile` chooses it.
    """
    if asked is not None:
        return _check_folder(asked, str(asked), "--temp-dir")
    if beside is not None:
        return beside
    if chosen := os.environ.get("TMPDIR"):
        return _check_folder(Path(chosen), f"TMPDIR={chosen}", "TMPDIR")
    large = "/var/tmp"  # noqa: S108 - private or nameless files are made in it
    if os.access(large, os.W_OK | os.X_OK):
        return Path(large)
    import tempfile  # not at the top, because it delays --help

    return Path(tempfile.gettempdir())


def _check_folder(folder: Path, name: str, what: str) -> Path:
    """Return a folder that `what` names, called `name` in messages; one that does not exist is an error."""
    if not os.path.isdir(folder):  # noqa: PTH112 - that of a path fails with too long a name
        refuse_below_file(folder, what)
        raise MissingFolderError(f"{name}: no such directory; create it, or choose another {what}")
    return folder
