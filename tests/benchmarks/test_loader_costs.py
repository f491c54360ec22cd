"""The costs of a loader are printed beside their bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.loader_costs import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_each_cost_is_printed_beside_its_bar(tmp_path: Path) -> None:
    arguments = [str(tmp_path), "--size", "20MB", "--piles", "200", "--rounds", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (0, 1)  # the machine may be busy
    _, _, *rows = done.output.splitlines()
    units = [[cell.split()[-1] for cell in row.strip("| ").split(" | ")[1:]] for row in rows]
    assert units == [["ms", "ms"], ["ms", "ms"], ["MB", "MB"]]
    assert "opening a store of 200 piles in two sets" in done.output
    assert not list(tmp_path.iterdir())
