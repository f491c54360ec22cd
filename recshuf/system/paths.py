"""Places, room and writing on disk: where a path leads, what room there is, and when bytes go to the device."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from recshuf.errors import OutputError
from recshuf.system.units import format_size

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write that more room would mend."""


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path with all links followed; a link that leads back to itself stays."""
    return Path(os.path.realpath(path))  # Path.resolve fails on such links before Python 3.13


def choose_temp_dir(asked: Path | None, beside: Path | None = None) -> Path:
    """Return the folder for large temporary files: the one asked for, else `beside`, else the system's.

    The system's is ``$TMPDIR``, else ``/var/tmp``, which unlike ``/tmp`` is meant for large files; where neither can be
    written, it is the one that `tempfile` chooses.

    Raises
    ------
    OutputError
        When the folder that was asked for is not there.
    """
    if asked is not None:
        if not asked.is_dir():
            raise OutputError(f"{asked}: no such directory; create it, or choose another --temp-dir")
        return asked
    if beside is not None:
        return beside
    for candidate in (os.environ.get("TMPDIR"), "/var/tmp"):  # noqa: S108 - private or nameless files are made in it
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    import tempfile  # here, since --help does without it and its millisecond

    return Path(tempfile.gettempdir())


def free_bytes(folder: Path) -> int | None:
    """Return how much more can be written below a folder; None where that cannot be found out."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def describe_room(folder: Path | None, needed_bytes: int | None) -> str:
    """Return what is needed and free in a folder as part of a message: empty, or in brackets after a space."""
    free = None if folder is None else free_bytes(folder)
    parts = [
        f"about {format_size(needed_bytes)} needed in all" if needed_bytes else "",
        "" if free is None else f"{format_size(free)} free",
    ]
    known = ", ".join(filter(None, parts))
    return f" ({known})" if known else ""
