"""Fixtures of piles."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from recshuf.piles.set_folder import SetFolder
from tests.support.formats.format_tools import find_open_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[SetFolder]:
    scratch = SetFolder(tmp_path, kept=tmp_path / "kept")
    yield scratch
    scratch.close()
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    assert list(tmp_path.iterdir()) == []
    assert find_open_files(tmp_path) == []
