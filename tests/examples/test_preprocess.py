"""The preprocessing example: writers and a trainer on one store at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "preprocess.py"


@pytest.mark.slow
def test_a_trainer_reads_what_the_writers_have_closed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `torch` has it")
    command = [sys.executable, str(PROGRAM), str(tmp_path / "data"), "--documents", "60", "--rounds", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads((tmp_path / "data" / "epochs.json").read_text())
    assert [epoch["snapshot"] for epoch in seen] == sorted(epoch["snapshot"] for epoch in seen)
    assert seen[1]["steps"] > seen[0]["steps"] > 0
    assert seen[1]["loss"] < 5.5  # that of guessing is log(256)
    assert "360 documents" in done.stdout
