"""The journal: every entry reads back as it was written, or not at all."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.output.local.log import FileJournal, read_journal
from recshuf.system.atomic import format_line

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer


class Full(io.FileIO):
    """A file on a disk that has room for five bytes."""

    def write(self, data: ReadableBuffer) -> int:
        super().write(memoryview(data)[:5])
        raise OSError(errno.ENOSPC, "full")


def test_a_journal_goes_on_on_a_new_line_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "journal"
    journal = FileJournal(path)
    journal.append({"entry": 0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", lambda descriptor, *_, **__: Full(descriptor, "ab"))
        with pytest.raises(OSError, match="full"):
            journal.append({"entry": 1})
    journal.append({"entry": 2})
    assert read_journal(path) == [{"entry": 0}, {"entry": 2}]


def test_a_journal_whose_first_entry_is_incomplete_is_begun_anew(tmp_path: Path):
    path = tmp_path / "journal"
    header, *others = entries = [{"seed": 5}, {"set": 1}, {"commit": [1, 2]}]
    line = format_line(header)
    for size in range(len(line) + 1):
        path.write_bytes(line[:size])
        journal = FileJournal(path)
        journal.load()
        for entry in others if journal.header else entries:
            journal.append(entry)
        assert read_journal(path) == entries


def test_a_journal_goes_on_in_the_same_process_after_its_first_write_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "journal"
    journal, whole = FileJournal(path), os.fdopen

    def open_full(descriptor: int, mode: str, *given: Any, **options: Any) -> Any:
        return Full(descriptor, "ab") if mode == "ab" else whole(descriptor, mode, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", open_full)
        with pytest.raises(OSError, match="full"):
            journal.append({"entry": 0})
    journal.append({"entry": 1})
    journal.append({"set": 2})
    assert read_journal(path) == [{"entry": 1}, {"set": 2}]


class Slow(io.FileIO):
    """A file that takes five bytes at a time, as the system may."""

    def write(self, data: ReadableBuffer) -> int:
        return super().write(memoryview(data)[:5]) or 0


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entries, whole = [{"seed": 5}, {"set": 1}], os.fdopen

    def open_slow(descriptor: int, mode: str, *given: Any, **options: Any) -> Any:
        return Slow(descriptor, "ab") if mode == "ab" else whole(descriptor, mode, *given, **options)

    monkeypatch.setattr(os, "fdopen", open_slow)
    for entry in entries:
        FileJournal(tmp_path / "journal").append(entry)
    assert read_journal(tmp_path / "journal") == entries


def test_a_journal_returns_what_was_written(tmp_path: Path):
    entries = [{"a": 1}, {"b": ["\n", "é", None]}, {}]
    journal = FileJournal(tmp_path / "journal")
    for entry in entries:
        journal.append(entry)
    assert read_journal(tmp_path / "journal") == entries
    assert read_journal(tmp_path / "none") == []


def test_every_damage_of_an_entry_is_noticed(tmp_path: Path):
    path = tmp_path / "journal"
    for number in range(3):
        FileJournal(path).append({"entry": number})
    whole = path.read_bytes()
    for place in range(len(whole)):
        for mask in (1, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= mask
            path.write_bytes(damaged)
            assert [
                entry for entry in read_journal(path) if entry not in ({"entry": n} for n in range(3))
            ] == []
            assert len(read_journal(path)) < 3
        path.write_bytes(whole[:place])
        assert len(read_journal(path)) < 3 or place == len(whole) - 1
    path.write_bytes(whole[:-5])
    FileJournal(path).append({"entry": 3})
    assert [entry["entry"] for entry in read_journal(path)] == [0, 1, 3]
