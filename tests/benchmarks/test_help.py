"""The help of each benchmark names what its options take."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks

NAMES = sorted(
    path.stem
    for path in Path(benchmarks.__path__[0]).glob("*.py")
    if "@click.command" in path.read_text("utf-8")
)


@pytest.mark.slow
def test_sizes_are_called_so() -> None:
    names = [name for name in NAMES if find_spec("ray") or name != "scale"]
    assert len(names) > 8
    for name in names:
        done = CliRunner().invoke(importlib.import_module(f"benchmarks.{name}").main, ["--help"])
        assert done.exit_code == 0
        assert "PARSE" not in done.output
