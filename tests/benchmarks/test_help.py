"""The help of each benchmark names what its options take."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks

NAMES = sorted(
    path.stem
    for path in Path(benchmarks.__path__[0]).glob("*.py")
    if "@click.command" in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_called_so(name: str) -> None:
    done = CliRunner().invoke(pytest.importorskip(f"benchmarks.{name}").main, ["--help"])
    assert done.exit_code == 0
    assert "PARSE" not in done.output
