"""Fixtures of runs that read or write objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.objects.object_outputs import STORES, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_outputs import AnyBucket


@pytest.fixture(params=STORES)
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of lines."""
    return write_lines(tmp_path / "in.txt")
