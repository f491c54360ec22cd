"""Syncing of whole file systems."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest

from recshuf.system.atomic import sync_file_system
from tests.support.formats.format_tools import find_open_files

if TYPE_CHECKING:
    from pathlib import Path


class Library:
    """Stands in for the C library."""

    def __init__(self, *, fails: bool) -> None:
        self.calls = 0
        self.fails = fails

    def syncfs(self, _: int) -> int:
        self.calls += 1
        return -self.fails


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_system_is_synced_by_any_path_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
):
    library = Library(fails=fails)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: 5)
    (tmp_path / "file").touch()
    if fails:
        with pytest.raises(OSError, match="Input/output error"):
            sync_file_system(tmp_path / "file")
    else:
        assert sync_file_system(tmp_path / "file")
    assert library.calls == 1
    assert find_open_files(tmp_path) == []


def test_without_the_call_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert not sync_file_system(tmp_path)
