"""Paths that the user may not read or write are named before the run, and are no wrong usage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.command_line import assert_one_line

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")


@pytest.mark.parametrize("given", ["locked.txt", "locked", "locked/*.txt", "locked/a.txt", "missing.txt"])
def test_an_input_that_cannot_be_read_is_like_a_missing_one(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked.txt").touch(mode=0)
    (tmp_path / "locked").mkdir(mode=0)
    result = call(given, "-o", "out.txt")
    assert result.returncode == 1
    assert_one_line(result.stderr, f"error: {given}: ", "; ")
    (tmp_path / "locked").rmdir()


@pytest.mark.parametrize("option", ["--report", "--html"])
def test_a_folder_that_cannot_be_written_is_named_before_the_run(
    call: Run, lines: Path, tmp_path: Path, option: str
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    result = call(lines, "-o", tmp_path / "out.txt", option, folder / "file")
    assert result.returncode == 1
    assert_one_line(result.stderr, f"{option} {folder / 'file'}: ", "; name")
    assert not (tmp_path / "out.txt").exists()
