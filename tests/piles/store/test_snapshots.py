"""Snapshots: the newest whole one counts, none is lost between processes, and what is in use stays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import OutputError, PileError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.snapshots import Snapshot
from recshuf.piles.sealed_set import SealedSet
from recshuf.system.locks import try_exclusive

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64())])


def add(folder: StoreFolder, name: str) -> Snapshot:
    """Commit a set of this name, with a file of its own."""
    make_set(folder, name)
    return folder.commit(lambda newest: newest.add((SealedSet(name, 1, 8, 100),), SCHEMA))


def make_set(folder: StoreFolder, name: str) -> None:
    (folder.sets / f"{name}.piles").write_bytes(b"records")


def names_of(folder: StoreFolder) -> list[str]:
    found = folder.find()
    assert found is not None
    return [one.name for one in found.sets]


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    made = StoreFolder(tmp_path / "store")
    made.create(Snapshot.new(5, 4))
    return made


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_commit_that_others_overtake_loses_nothing(folder: StoreFolder, others: int) -> None:
    """Also where they took its number and deleted it again."""
    waiting = [f"other-{number}" for number in range(others)]

    def change(newest: Snapshot) -> Snapshot:
        while waiting:
            add(folder, waiting.pop())
        return newest.add((SealedSet("mine", 1, 8, 100),), SCHEMA)

    make_set(folder, "mine")
    folder.commit(change)
    assert names_of(folder) == ["mine", *sorted(f"other-{number}" for number in range(others))]


def test_a_commit_that_another_follows_at_once_is_none_that_failed(
    folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot is no longer the newest when it looks, though the newest builds on it."""
    link = os.link

    def link_and_be_followed(*paths: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        link(*paths)
        add(folder, "other")

    make_set(folder, "mine")
    entry = SealedSet("mine", 1, 8, 100, checksum="that of this set alone")
    monkeypatch.setattr(os, "link", link_and_be_followed)
    folder.commit(lambda newest: newest.add((entry,), SCHEMA))
    assert names_of(folder) == ["mine", "other"]


def test_whoever_makes_the_same_store_later_gets_the_first(folder: StoreFolder) -> None:
    found = folder.create(Snapshot.new(6, 8))
    assert (found.seed, found.pile_count) == (5, 4)


def test_a_damaged_newest_snapshot_leaves_the_one_before(folder: StoreFolder) -> None:
    add(folder, "a-0")
    _, lease = folder.open()
    add(folder, "b-0")
    newest = max(folder.path.glob("snapshot-*"))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert names_of(folder) == ["a-0"]
    lease.close()
    with pytest.raises(PileError, match=f"{newest}: is damaged; put it back, or delete it"):
        add(folder, "c-0")
    folder.collect()
    assert {path.stem for path in folder.sets.iterdir()} == {"a-0", "b-0", "c-0"}
    newest.unlink()
    add(folder, "c-0")
    assert names_of(folder) == ["a-0", "c-0"]
    assert {path.stem for path in folder.sets.iterdir()} == {"a-0", "c-0"}


def test_a_store_whose_snapshots_are_damaged_is_not_begun_anew(folder: StoreFolder) -> None:
    add(folder, "a-0")
    (newest,) = folder.path.glob("snapshot-*")
    newest.write_bytes(newest.read_bytes()[:-9])
    for begin in (
        lambda: folder.create(Snapshot.new(6, 8)),
        lambda: recshuf.PileWriter(folder.path, "w"),
        lambda: add(folder, "b-0"),
    ):
        with pytest.raises(PileError, match=f"{newest}: is damaged, and no other snapshot is left"):
            begin()
    assert (folder.sets / "a-0.piles").exists()


class Overtaken(StoreFolder):
    """A folder in which another process commits after each listing of the snapshots, some times."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__(path)
        self.waiting = [f"later-{number}" for number in range(times)]

    def _numbers(self) -> list[int]:
        listed = super()._numbers()
        if self.waiting:
            add(StoreFolder(self.path), self.waiting.pop())
        return listed


@pytest.mark.parametrize("times", [1, 5])
def test_snapshots_that_are_replaced_while_they_are_read_are_no_damage(
    folder: StoreFolder, times: int
) -> None:
    add(folder, "a-0")
    assert "a-0" in names_of(Overtaken(folder.path, times))


@pytest.mark.parametrize("times", [1, 5])
def test_sets_stay_whose_snapshots_are_replaced_while_they_are_read(folder: StoreFolder, times: int) -> None:
    add(folder, "a-0")
    for delete in (StoreFolder.collect, lambda other: StoreFolder.remove_unreferenced(other, "a")):
        other = Overtaken(folder.path, times)
        other.waiting = [f"{name}-{len(names_of(folder))}" for name in other.waiting]
        delete(other)
        assert {path.stem for path in folder.sets.iterdir()} == set(names_of(folder)) >= {"a-0"}


def test_what_a_lease_holds_stays_until_it_is_given_back(folder: StoreFolder) -> None:
    add(folder, "a-0")
    snapshot, lease = folder.open()
    folder.commit(lambda newest: newest.drop({"a-0"}))
    assert (folder.sets / "a-0.piles").exists()
    assert folder.open(snapshot.number)[0] == snapshot
    lease.close()
    folder.collect()
    assert list(folder.sets.iterdir()) == []
    assert len(list(folder.path.glob("snapshot-*"))) == 1
    with pytest.raises(UsageError, match=f"no snapshot {snapshot.number}"):
        folder.open(snapshot.number)


def test_a_commit_deletes_what_dead_processes_left_and_nothing_of_the_living(folder: StoreFolder) -> None:
    for name in ("dead", "dead-1", "living"):
        make_set(folder, f"{name}-00000")
    for name in ("dead", "living", "just-begun"):
        folder.lock_file(name).touch()
    part = folder.path / ".snapshot-0123456789abcdef"
    part.write_bytes(b"half")
    lock = try_exclusive(folder.lock_file("living"))
    assert lock is not None
    add(folder, "a-0")
    assert sorted(path.name for path in folder.sets.iterdir()) == [
        "a-0.piles",
        "living-00000.piles",
        "living.lock",
    ]
    assert not part.exists()
    os.close(lock)
    add(folder, "b-0")
    assert sorted(path.name for path in folder.sets.iterdir()) == ["a-0.piles", "b-0.piles"]


def test_a_name_is_taken_once(folder: StoreFolder) -> None:
    add(folder, "a-0")
    with pytest.raises(UsageError, match="has a pile set of this name"):
        add(folder, "a-0")


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such pile store"):
        StoreFolder(tmp_path / "missing").open()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(UsageError, match="is no pile store"):
        StoreFolder(tmp_path / "other").open()
    with pytest.raises(OutputError, match="not empty"):
        StoreFolder(tmp_path / "other").create(Snapshot.new(1, 1))
    assert (tmp_path / "other" / "file").read_text() == "x"


def test_a_snapshot_that_cannot_be_read_is_named(folder: StoreFolder) -> None:
    add(folder, "a")
    (folder.path / "snapshot-000009.json").mkdir()
    for use in (recshuf.PileStore, recshuf.PileLoader, lambda path: recshuf.PileWriter(path, "b")):
        with pytest.raises(
            PileError, match=r"snapshot-000009\.json: cannot be read: Is a directory; move it away"
        ):
            use(folder.path, *[1] * (use is recshuf.PileLoader))
