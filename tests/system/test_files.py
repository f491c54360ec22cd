"""Syncing of whole file systems."""

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from recshuf.errors import OutputError
from recshuf.system.files import exchange, place_file, sync_file_system
from tests.support.formats.format_tools import find_open_files


def test_a_file_system_is_synced_by_any_path_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The C library that stands in returns these codes, one after the other."""
    codes = [0, -1]
    library = SimpleNamespace(syncfs=lambda _: codes.pop(0))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: 5)
    (tmp_path / "file").touch()
    assert sync_file_system(tmp_path / "file")
    with pytest.raises(OSError, match="Input/output error"):
        sync_file_system(tmp_path / "file")
    assert codes == find_open_files(tmp_path) == []
    del library.syncfs
    assert not sync_file_system(tmp_path)


# Files that are whole or not there


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_files_of_a_name_the_first_stays_and_each_is_synced_before_it_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    path, synced = tmp_path / "name", list[tuple[int, bool]]()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, path.exists())))
    place_file(path, b"first")
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    if has_links:
        place_file(path, b"second")
        assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["name"]


def test_a_file_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="none/name: cannot be written"):
        place_file(tmp_path / "none" / "name", b"x")


def test_names_are_exchanged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    exchange(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name / "file").read_text() for name in ("a", "b")] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "none")
