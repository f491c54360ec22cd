"""What a run does not use is not imported: it would be most of the time of a small one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SHUFFLE = """
import sys
from recshuf.cli.main import main
sys.argv = ["recshuf", *sys.argv[1:], "-q"]
main()
print(*sys.modules)
"""
UNUSED = (
    "recshuf.audit.order", "recshuf.audit.verify", "recshuf.loader", "recshuf.output.objects",
    "recshuf.output.quarantine", "recshuf.piles.kept", "recshuf.run.passes", "recshuf.run.ray", "recshuf.run.stores",
    "recshuf.run.task_map", "recshuf.run.uploaded_sets", "recshuf.run.verify", "recshuf.storage.writing",
    "recshuf.torch", "recshuf.train", "azure", "boto3", "botocore", "fsspec", "google", "obstore", "requests",
)  # fmt: skip


@pytest.mark.parametrize("memory", ["64MB", "1GB"])
def test_a_simple_run_imports_what_it_uses(tmp_path: Path, memory: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 9)
    output = tmp_path / "b.jsonl"
    command = [sys.executable, "-c", SHUFFLE, tmp_path / "a.jsonl", "-o", output, "--memory", memory]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "recshuf.run.driver" in names
    assert output.stat().st_size == 81
    assert [name for name in names if name.startswith(UNUSED)] == []
