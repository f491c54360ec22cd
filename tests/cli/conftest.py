"""Fixtures of the tests of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.processes.command_line import numbers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(numbers(1000))
    return path
