"""The training example: the same network learns from piles, and not from sorted files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.mark.slow
def test_a_network_learns_cats_and_dogs_from_piles_only(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `torch` has it")
    command = [sys.executable, str(PROGRAM), str(tmp_path / "data"), "--records", "4000", "--epochs", "1"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    curves = json.loads((tmp_path / "data" / "curves.json").read_text())
    last = {name: curve[-1][2] for name, curve in curves.items()}
    assert last["recshuf piles"] > 0.9
    assert last["as stored"] < 0.6
    assert last["shuffle buffer, 5%"] < last["recshuf piles"]
