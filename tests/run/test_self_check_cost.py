"""The benchmark of what the checks cost: what is left out is not asked for, and changes no byte."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.self_check import WITHOUT

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = {
    "digests": """
import recshuf.records.digests
recshuf.records.digests.find_fingerprints = fail
""",
    "checksums": """
import xxhash
xxhash.xxh3_64 = fail
""",
    "syncs": """
import os
def fsync(file, real=os.fsync):
    if "shard-" in os.readlink(f"/proc/self/fd/{file}"):
        fail()
    real(file)
os.fsync = fsync
""",
}
"""What has a run fail that asks for one of them."""


def run_without(left_out: str, faults: str, given: Path, output: Path) -> str:
    """Run without some checks and with some faults, with all piles spilled, and return what is said."""
    program = f"""
from benchmarks.self_check_run import leave_out
from recshuf.cli.main import run
from tests.torture.hooks import install_hooks
def fail(*_): raise RuntimeError("asked for")
install_hooks({{"resident_bytes": 0}}, None, 0)
leave_out({set(left_out.split(","))})
{faults}
run()
"""
    options = ["--seed", "1", "--shards", "2", "--piles", "4"]
    command = [sys.executable, "-c", program, str(given), "-o", f"{output}/", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {number}\n" for number in range(20_000)))
    return path


@pytest.mark.parametrize("left_out", WITHOUT[1:])
def test_what_is_left_out_is_not_asked_for_and_the_bytes_are_the_same(
    given: Path, tmp_path: Path, left_out: str
):
    run_without("nothing", "", given, tmp_path / "whole")
    said = run_without(
        left_out, "".join(FAULTS[name] for name in left_out.split(",")), given, tmp_path / "less"
    )
    for shard in ("shard-00000.txt", "shard-00001.txt"):
        whole = (tmp_path / "whole" / shard).read_bytes()
        assert len(whole) > 100_000
        assert (tmp_path / "less" / shard).read_bytes() == whole, said


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_left_out_is_asked_for(given: Path, tmp_path: Path, name: str):
    assert "asked for" in run_without("nothing", FAULTS[name], given, tmp_path / "out")
