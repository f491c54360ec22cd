"""The example programs do what they are written for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def run(name: str, folder: Path, *options: str) -> str:
    pytest.importorskip("torch", reason="the extra `torch` has it")
    program = Path(__file__).parents[2] / "examples" / name
    command = [sys.executable, program, folder, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_network_learns_cats_and_dogs_from_piles_only(tmp_path: Path) -> None:
    run("train.py", tmp_path / "data", "--records", "4000", "--epochs", "1")
    curves = json.loads((tmp_path / "data" / "curves.json").read_text())
    last = {name: curve[-1][2] for name, curve in curves.items()}
    assert last["recshuf piles"] > 0.9
    assert last["as stored"] < 0.6
    assert last["shuffle buffer, 5%"] < last["recshuf piles"]


def test_a_trainer_reads_what_the_writers_have_closed(tmp_path: Path) -> None:
    """Writers and a trainer use one store at the same time."""
    said = run("preprocess.py", tmp_path / "data", "--documents", "60", "--rounds", "2")
    seen = json.loads((tmp_path / "data" / "epochs.json").read_text())
    assert [epoch["snapshot"] for epoch in seen] == sorted(epoch["snapshot"] for epoch in seen)
    assert seen[1]["steps"] > seen[0]["steps"] > 0
    assert seen[1]["loss"] < 5.5  # that of guessing is log(256)
    assert "360 documents" in said
