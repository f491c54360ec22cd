"""Allocators that suit the memory limit."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recshuf.system import memory

CODE = """
import os, sys
from recshuf.system import memory
from recshuf.system.memory import choose_allocators, resident_bytes

memory.available_bytes = lambda: {available_bytes}
before = dict(os.environ)
choose_allocators({memory_bytes})
assert dict(os.environ) == before, "what is started later would inherit the settings"
import pyarrow as pa

for _ in range(20):
    held = [pa.allocate_buffer(1_000_000) for _ in range(100)]
    for buffer in held:
        memoryview(buffer).cast("B")[:] = bytes(1_000_000)
    full = resident_bytes()
    del buffer, held
kept = full - resident_bytes() < 50_000_000
import pyarrow.parquet as pq

stream = pa.BufferOutputStream()
pq.write_table(pa.table({{"a": [["x"]] * 1000}}), stream)
pq.read_table(stream.getvalue())
own = pa.default_memory_pool()
pools = [getattr(pa, name + "_memory_pool")() for name in pa.supported_memory_backends()]
assert not any(pool.max_memory() for pool in pools if pool.backend_name != own.backend_name)
print(own.backend_name, kept)
"""


HELD = """
import os
from recshuf.system.memory import choose_allocators, release_freed, resident_bytes

os.environ["MIMALLOC_PURGE_DELAY"] = "7"
before = dict(os.environ)
choose_allocators(10**9)
assert dict(os.environ) == before, "what is started later would inherit the settings, or lack those of the user"
held = [bytearray(1_000_000) for _ in range(250)]
# They lie between those that are freed, so that few of these are at the end of the heap; smaller ones would find room elsewhere.
kept = held[::5]
full = resident_bytes()
held.clear()
freed = resident_bytes()
release_freed()
print(full - freed < 50_000_000, freed - resident_bytes() > 150_000_000)
"""


def try_in_child(memory_bytes: int, available_bytes: int = 10**13, **environment: str) -> list[str]:
    """Return which allocator Arrow has, and whether it keeps most of what is freed."""
    code = CODE.format(memory_bytes=memory_bytes, available_bytes=available_bytes)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


@pytest.mark.skipif(
    "jemalloc" not in pa.supported_memory_backends(), reason="Arrow was built without jemalloc"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory_bytes", "available_bytes", "is_kept"),
    [(10**5, 10**13, False), (10**12, 10**13, True), (10**12, 10**5, False)],
)
def test_freed_memory_is_kept_the_longer_the_larger_the_limit_and_what_is_available(
    memory_bytes: int, available_bytes: int, is_kept: bool
):
    assert try_in_child(memory_bytes, available_bytes) == ["jemalloc", str(is_kept)]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
def test_what_the_c_library_keeps_of_freed_memory_is_given_back():
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


MB = 10**6


NEW_GROUP = "memory.max", "memory.current", "file_mapped", ""
OLD_GROUP = "memory.limit_in_bytes", "memory.usage_in_bytes", "mapped_file", "total_"


CGROUPS: list[tuple[tuple[str, str, str, str], tuple[int | str, ...], int, int]] = [
    (NEW_GROUP, (100, 70), 0, 50),
    (NEW_GROUP, (100, "max"), 0, 80),
    (NEW_GROUP, (10, 70), 0, 0),
    (OLD_GROUP, (90, 100), 0, 70),
    (OLD_GROUP, (1 << 48, 100), 0, 80),
    (NEW_GROUP, (100, 70), 1, 46),
    (OLD_GROUP, (90, 100), 30, 70 - 16),
]
"""Names of files, limits of a group and the one around it, MB of code, and what is left."""


@pytest.mark.parametrize(("names", "limits", "mapped", "left"), CGROUPS)
def test_the_page_cache_of_a_group_of_processes_is_available_but_for_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Any, limits: Any, mapped: int, left: int
) -> None:
    """A container that has read files is charged for them, as long as nobody needs the memory."""
    is_new = names is NEW_GROUP
    root = tmp_path / "sys/fs/cgroup" / ("" if is_new else "memory")
    for folder, limit in zip((root / "user" / "job", root / "user"), limits, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{limit if isinstance(limit, str) else limit * MB}\n")
        (folder / names[1]).write_text(f"{60 * MB}\n")
        (folder / "memory.stat").write_text(
            f"cache 1\n{names[3]}inactive_file {30 * MB}\n{names[3]}active_file {10 * MB}\n"
            f"{names[3]}{names[2]} {mapped * MB}\n"
        )
    (tmp_path / "proc/self").mkdir(parents=True)
    own = "0::/" if is_new else "4:cpuset,memory:/"
    (tmp_path / "proc/self/cgroup").write_text(f"5:cpu:/other\n{own}user/job\n")
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / name[1:] if "cgroup" in name else Path(name))
    # The tests ask once.
    monkeypatch.setattr(memory, "_cgroup_headrooms", memory._cgroup_headrooms.__wrapped__)
    assert memory.available_bytes() == left * MB
