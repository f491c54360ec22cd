"""Places, room and writing on disk: where a path leads, what room there is, and when bytes go to the device."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from recshuf.system.units import format_size

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write that more room would mend."""


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path with all links followed; a link that leads back to itself stays."""
    return Path(os.path.realpath(path))  # Path.resolve fails on such links before Python 3.13


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
