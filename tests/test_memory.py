"""Allocators that suit the memory limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import json, os, sys
import recshuf
recshuf.shuffle(sys.argv[1], sys.argv[2], memory=sys.argv[3], seed=1)
import pyarrow as pa
print(json.dumps([pa.default_memory_pool().backend_name, os.environ.get("JE_ARROW_MALLOC_CONF")]))
"""


def shuffle_in_child(folder: Path, memory: str, **environment: str) -> list[str | None]:
    (folder / "in.txt").write_text("a\nb\n")
    command = [sys.executable, "-c", CHILD, str(folder / "in.txt"), str(folder / "out.txt"), memory]
    child = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment, timeout=60
    )
    assert not child.stderr
    return json.loads(child.stdout)


@pytest.mark.skipif(
    "jemalloc" not in pa.supported_memory_backends(), reason="Arrow was built without jemalloc"
)
@pytest.mark.parametrize(("memory", "milliseconds"), [("100MB", 20), ("2GB", 400)])
def test_freed_memory_is_kept_the_longer_the_larger_the_limit(tmp_path: Path, memory: str, milliseconds: int):
    backend, settings = shuffle_in_child(tmp_path, memory)
    assert backend == "jemalloc"
    assert settings == f"dirty_decay_ms:{milliseconds},muzzy_decay_ms:0"


def test_the_allocator_of_the_user_is_left_alone(tmp_path: Path):
    assert shuffle_in_child(tmp_path, "2GB", ARROW_DEFAULT_MEMORY_POOL="system")[0] == "system"
