"""Sizes: parsing and printing them, and what memory this process may use and has used."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from recshuf.errors import UsageError

BASE_BYTES = 150 * 10**6
"""What the interpreter and its libraries take, beside the limit that a user states."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_REUSED_BYTES = 64 << 20
"""Blocks of up to this size are used again by the C library, and as much is kept free for that."""
_UNITS = {"": 1, "B": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("KMGTP", start=1)
    for suffix, base in (("", 1024), ("IB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Z]*)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Return a number of bytes; ``K`` and ``KiB`` are 1024, ``KB`` is 1000, as in GNU coreutils.

    Raises
    ------
    UsageError
        When the text is no size.

    >>> parse_size("1.5GB"), parse_size("4k"), parse_size("2 MiB")
    (1500000000, 4096, 2097152)
    """
    match = _SIZE.fullmatch(text.upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write for example 300MB, 2GiB or 1500000000")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(count: float) -> str:
    """Return a short decimal size for people.

    >>> format_size(2_400_000), format_size(999)
    ('2.4 MB', '999 B')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def reuse_memory() -> None:
    """Make the allocators use freed memory again, and give back to the system what is not used for 0.1 s.

    Memory that is new to the process must be cleared by the system first, which takes as long as the work itself;
    but Arrow's allocator keeps what it has for as long as it likes unless told otherwise before it is first
    imported. NumPy's linear algebra, which is not used, is kept from starting threads.
    """
    import ctypes

    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "100")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(AttributeError, OSError):  # not the GNU C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, _REUSED_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES) or libc.mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES // 2)


def available_bytes() -> int:
    """Return the memory this process may still take: what the machine has left, and what its cgroups allow."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_cgroup_headrooms()])


def peak_bytes() -> int:
    """Return the most physical memory this process has held so far."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The kernel hands ru_maxrss on from the process that started this one; VmHWM is this one's own.
    return int(status.split("VmHWM:", 1)[1].split(maxsplit=1)[0]) * 1024


def resident_bytes() -> int:
    """Return the physical memory this process holds now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _cgroup_headrooms() -> list[int]:
    """Return limit less use of each memory cgroup this process is in, version 1 or 2, ancestors included."""
    headrooms = []
    for folder, limit_name, use_name in _cgroup_folders():
        try:
            limit = (folder / limit_name).read_text().strip()
            used = (folder / use_name).read_text().strip()
        except OSError:
            continue
        if limit.isdecimal() and used.isdecimal():
            headrooms.append(max(0, int(limit) - int(used)))
    return headrooms


def _cgroup_folders() -> list[tuple[Path, str, str]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / name.lstrip("/")
        # Inside a container the own folder is mounted as the root, and its name does not exist below it.
        folders += [(folder, *names) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders
