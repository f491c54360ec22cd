"""A store that is deleted while a writer begins: each says what has happened, and nothing is left for ever."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError, RecshufError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.upkeep import drop_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.piles.kept.snapshots import Snapshot


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write({"id": range(10)})
    return tmp_path / "store"


def drop_beside(
    store: Path, begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """Delete a store, and begin something before or after its sets are deleted."""
    rmtree = shutil.rmtree

    def interrupted(path: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        if first:
            begin()
        rmtree(path)
        if not first:
            begin()

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    drop_store(store)


@pytest.mark.parametrize("buffer_bytes", [1, 10_000])
def test_a_writer_whose_store_is_deleted_says_so(
    store: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    writers: list[recshuf.PileWriter] = []

    def begin() -> None:
        writers.append(recshuf.PileWriter(store, "b", buffer_bytes=buffer_bytes))
        writers[0].write({"id": range(10)})

    drop_beside(store, begin, monkeypatch, first=True)
    with pytest.raises(RecshufError, match=r"store: .*; ") as raised:
        writers[0].close()
    assert "\n" not in str(raised.value)
    assert not store.exists() or StoreFolder(store).is_rest


def test_a_store_is_not_deleted_during_a_commit(store: Path) -> None:
    def change(newest: Snapshot) -> Snapshot:
        with pytest.raises(OutputError, match=r"store: a process reads or writes it; wait for its end$"):
            drop_store(store)
        return newest

    made = StoreFolder(store).commit(change)
    assert StoreFolder(store).find() == made
    drop_store(store)
    assert not store.exists()


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_writer_leaves_that_begins_in_a_store_that_is_deleted_can_be_deleted(
    store: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    writers: list[recshuf.PileWriter] = []

    def begin() -> None:
        writers.append(recshuf.PileWriter(store, "b", buffer_bytes=1))
        writers[0].write({"id": range(10)})

    with pytest.raises(OutputError, match="store: a process reads or writes it; wait for its end"):
        drop_beside(store, begin, monkeypatch, first=False)
    with pytest.raises(OutputError, match="store: a process reads or writes it; wait for its end"):
        drop_store(store)
    if ends:
        with pytest.raises(UsageError, match="holds no snapshot"):
            writers[0].close()
    else:
        release(writers[0])
    drop_store(store)
    assert not store.exists()


def release(writer: Any) -> None:
    """Give the lock of a writer's name back as the system does when its process dies."""
    writer._cleanup.pop_all()
    StoreFolder(writer._folder.path).lock_file("b").unlink()
    StoreFolder(writer._folder.path).lock_file("b").touch()
    writer._is_open = False


@pytest.mark.parametrize("foreign", ["notes.txt", "sets/notes.txt"])
def test_a_folder_with_other_files_and_no_snapshot_is_not_deleted(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "other" / "sets").mkdir(parents=True)
    (tmp_path / "other" / foreign).write_text("x")
    with pytest.raises(UsageError, match="is no pile store"):
        drop_store(tmp_path / "other")
    assert (tmp_path / "other" / foreign).read_text() == "x"
