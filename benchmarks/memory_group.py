"""A memory group (cgroup) in which a command and its children run: so much memory, page cache included, and no swap."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")
VERSIONS = {
    "memory/cgroup.procs": ("memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "cgroup.subtree_control": ("", "memory.max", "memory.swap.max"),
}
"""Of version 1 and 2: what the root has, where groups are, and files of their limits, the second of which may lack."""
SWAP = {"memory.memsw.limit_in_bytes": 1, "memory.swap.max": 0}
"""Limit of the second file over that of the first."""


@contextmanager
def open_group(byte_count: int) -> Iterator[Path]:
    """Yield the folder of a new group, to whose ``cgroup.procs`` a process writes 0 to join it.

    It is removed at the end, when its processes have ended.

    Raises
    ------
    OSError
        If none can be made, as without the rights of the system's administrator.
    """
    below, limit, swap = next(
        (names for mark, names in VERSIONS.items() if (ROOT / mark).exists()), (None, "", "")
    )
    if below is None:
        raise FileNotFoundError(f"no memory groups below {ROOT}")
    if not below:
        (ROOT / "cgroup.subtree_control").write_text("+memory")
    folder = ROOT / below / f"benchmark-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / limit).write_text(str(byte_count))
        if (folder / swap).exists():
            (folder / swap).write_text(str(SWAP[swap] * byte_count))
        yield folder
    finally:
        folder.rmdir()


def drop_pages(file: Path) -> None:
    """Have the system forget the pages of a file, so that the next process reads it from the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
