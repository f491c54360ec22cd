"""Memory of this process: allocators, available memory and peak use."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

BASE_BYTES = 150 * 10**6
"""Memory of Python and libraries, which ``--memory`` excludes."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_MOST_KEPT_BYTES = 32 << 20
"""The C library accepts no higher threshold."""
_MOST_KEPT_MS = 86_400_000
"""A day; jemalloc complains of some centuries."""
_CODE_BYTES = 16 * 10**6
"""What a run uses all the time of the code of Python and libraries, which are files in memory."""
_UNLIMITED_BYTES = 1 << 62
"""A cgroup of version 1 without a limit has the largest page number."""


def choose_allocators(memory_bytes: int) -> None:
    """Configure the allocators for a memory limit; Arrow's only if Arrow is not imported yet. Imports Arrow.

    The system clears new memory first, which takes as long as the work; memory kept for too long exceeds the limit.
    Arrow's jemalloc keeps freed memory for a time by the limit, its mimalloc for 1 ms, and the C library blocks up to a
    size. Environment variables set by the user take precedence.
    """
    memory_bytes = min(memory_bytes, available_bytes() // 2)  # a memory group may have less than `--memory`
    _reuse_blocks(min(_MOST_KEPT_BYTES, memory_bytes // 8))
    if "pyarrow" in sys.modules:
        return
    settings = {
        "JE_ARROW_MALLOC_CONF": f"dirty_decay_ms:{_keep_ms(memory_bytes)},muzzy_decay_ms:0",
        "MIMALLOC_PURGE_DELAY": "1",
    }
    if _bundles_arrow():
        # Told later, Arrow would use it for half of its work only.
        settings["ARROW_DEFAULT_MEMORY_POOL"] = "jemalloc"
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import pyarrow as pa

        pa.allocate_buffer(1)  # an allocator may read its settings when it is first used
    finally:  # so that later child processes do not inherit them
        for name in added:
            del os.environ[name]


def _reuse_blocks(kept_bytes: int) -> None:
    """Make the C library reuse blocks up to this size, and return other free memory."""
    import ctypes

    with suppress(AttributeError, OSError):  # not the GNU C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        libc.mallopt(_M_MMAP_THRESHOLD, kept_bytes)


def release_freed() -> None:
    """Give the system back what the C library has kept of freed memory, which Arrow's allocators cannot use."""
    import ctypes

    with suppress(AttributeError, OSError):  # not the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


def _keep_ms(memory_bytes: int) -> int:
    """Return for how many milliseconds freed memory may be kept.

    What a thread's arena keeps in that time comes on top of what a pass was planned with: 4 GB of Parquet at 250 MB
    peak at 389 to 490 MB when it is four times as long, at 320 to 372 as it is.

    >>> _keep_ms(500 * 10**6)
    500
    """
    return min(memory_bytes // 10**6, _MOST_KEPT_MS)


def _bundles_arrow() -> bool:
    """Tell whether pyarrow brings Arrow along, with all allocators: of one that is missing, Arrow would complain."""
    package = find_spec("pyarrow")
    folders = (package.submodule_search_locations or []) if package else []
    return any(any(Path(folder).glob("libarrow.so*")) for folder in folders)


def available_bytes() -> int:
    """Return the memory this process may still take: what the machine has left, and what its cgroups allow."""
    return min([_read_bytes("/proc/meminfo", "MemAvailable"), *(left for left, _ in _cgroup_headrooms())])


def find_group_room() -> tuple[int, int] | None:
    """Return what the memory cgroups of this process leave it, and the limit of the one that leaves least; None without one."""
    return min(_cgroup_headrooms(), default=None)


def peak_bytes() -> int:
    """Return the most physical memory this process has held so far."""
    try:
        # The kernel hands ru_maxrss on from the process that started this one; VmHWM is this one's own.
        return _read_bytes("/proc/self/status", "VmHWM")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """Return the physical memory this process holds now."""
    return _read_bytes("/proc/self/status", "VmRSS")


def _read_bytes(path: str, name: str) -> int:
    """Return a size that the kernel gives in a file, in kB."""
    return int(Path(path).read_text().split(f"{name}:", 1)[1].split(maxsplit=1)[0]) * 1024


def _cgroup_headrooms() -> list[tuple[int, int]]:
    """Return what each memory cgroup with a limit leaves this process, version 1 or 2, ancestors included, and its limit.

    The page cache of files that were read counts as use; the kernel takes it back before a process has to end. So it does
    with the code of libraries, if it is the group's own, but then reads it again and again.
    """
    headrooms = []
    for folder, limit_name, use_name, mapped_name, prefix in _cgroup_folders():
        try:
            limit = (folder / limit_name).read_text().strip()
            if not limit.isdecimal() or int(limit) >= _UNLIMITED_BYTES:
                continue
            used = int((folder / use_name).read_text())
            figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        cached = sum(int(figures.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
        # Some code has left memory already: a cold group of 64 MB has 6 to 17 MB of it there when a run is planned.
        cached -= min(_CODE_BYTES, cached, 4 * int(figures.get(f"{prefix}{mapped_name}", 0)))
        headrooms.append((max(0, int(limit) - used + cached), int(limit)))
    return headrooms


def _cgroup_folders() -> list[tuple[Path, str, str, str, str]]:
    """Return each folder of a cgroup, its files of limit and use, the name of mapped files, and what names of sums begin with."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current", "file_mapped", "")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "mapped_file", "total_")
        else:
            continue
        own = root / name.lstrip("/")
        # Inside a container the own folder is mounted as the root, and its name does not exist below it.
        folders += [(folder, *names) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders
