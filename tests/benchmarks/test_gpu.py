"""The benchmark of loaders into a GPU runs without one, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.gpu import KINDS, LOADERS, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["9", "0"])
def test_each_loader_has_a_row_or_is_left_out_by_name(budget: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arguments = [
        "--records",
        "600",
        "--seconds",
        "0.01",
        "--workers",
        "0",
        "--compute",
        "0",
        "--budget",
        budget,
    ]
    done = CliRunner().invoke(main, [str(tmp_path), *arguments], catch_exceptions=False)
    assert torch.cuda.is_available() or done.output.startswith("NO GPU: the CPU stands in for one")
    for name in LOADERS:
        assert done.output.count(f"| {name} | 0 | ") == (len(KINDS) if budget != "0" else 0)
        assert done.output.count(f"left out, since --budget is 0 minutes: {name}, ") == len(KINDS) * (
            budget == "0"
        )
    assert not list(tmp_path.iterdir())
