"""Where large temporary files go."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from recshuf.errors import OutputError
from recshuf.system.paths import choose_temp_dir


@pytest.fixture
def writable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The only folders that may be written to."""
    folders: set[str] = set()
    monkeypatch.setattr(os, "access", lambda path, _: str(path) in folders)
    return folders


def test_the_folder_asked_for_comes_before_that_of_the_output(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    assert choose_temp_dir(tmp_path, beside) == tmp_path
    assert choose_temp_dir(None, beside) == beside


def test_a_folder_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="gone: no such directory; create it, or choose another --temp-dir"):
        choose_temp_dir(tmp_path / "gone")


def test_the_system_has_one_that_can_be_written(
    tmp_path: Path, writable: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert choose_temp_dir(None) == Path(tempfile.gettempdir())
    writable.add("/var/tmp")
    assert choose_temp_dir(None) == Path("/var/tmp")
    writable.add(str(tmp_path))
    assert choose_temp_dir(None) == tmp_path
