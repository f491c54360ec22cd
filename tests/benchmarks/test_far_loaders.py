"""The benchmark of loaders behind a slow link counts what they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks import far_loaders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_bytes_of_a_store_come_once(tmp_path: Path) -> None:
    names = ["PileLoader", "PileLoader, empty cache"]
    chosen = [word for name in names for word in ("--loader", name)]
    done = CliRunner().invoke(far_loaders.main, [str(tmp_path), "--rows", "4000", *chosen])
    assert done.exit_code == 0, done.output
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| PileLoader")]
    assert [row[0].removeprefix("| ") for row in rows] == names
    assert all("MISSED" not in row[2] for row in rows)
