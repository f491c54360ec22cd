"""Snapshots: the newest whole one counts, none is lost between processes, and what is in use stays."""

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import OutputError, PileError, UsageError
from recshuf.piles.kept import folder as store_folder
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.snapshots import Snapshot
from recshuf.piles.layout import SealedSet
from recshuf.system.files import format_line, lock_existing, parse_line, try_exclusive
from tests.support.stores.small_stores import append, read_ids, write

SCHEMA = pa.schema([("id", pa.int64())])


def add(folder: StoreFolder, name: str) -> Snapshot:
    """Commit a set of this name, with a file of its own."""
    (folder.sets / f"{name}.piles").write_bytes(b"records")
    return folder.commit(lambda newest: newest.add((SealedSet(name, 1, 8, 100),), SCHEMA))


def names_of(folder: StoreFolder) -> list[str]:
    found = folder.find()
    assert found is not None
    return [one.name for one in found.sets]


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    made = StoreFolder(tmp_path / "store")
    made.create(Snapshot.new(5, 4))
    return made


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


def test_a_store_of_another_version_is_named(folder: StoreFolder) -> None:
    file = folder.path / "snapshot-000001.json"
    fields = parse_line(file.read_bytes().removesuffix(b"\n"))
    assert fields is not None
    for what in ("version", "order"):
        file.write_bytes(format_line(fields | {what: 99}))
        said = f"^{folder.path}: the store has .*{what} 99.*; open it with the version that wrote it$"
        with pytest.raises(PileError, match=said):
            recshuf.PileStore(folder.path)


def test_the_order_of_sets_is_that_of_their_names_whoever_commits_first(tmp_path: Path) -> None:
    for names in ("ab", "ba"):
        for name in names:
            write(tmp_path / names, name, {"id": [ord(name)]})
        assert recshuf.PileStore(tmp_path / names).sources == ("a", "b")


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


@pytest.mark.parametrize(
    ("use", "times"),
    [
        (StoreFolder.find, 1),
        (StoreFolder.find, 5),
        (StoreFolder.collect, 5),
        (lambda other: other.remove_unreferenced("a"), 5),
    ],
    ids=["read once", "read", "collect", "remove"],
)
def test_snapshots_that_are_replaced_while_they_are_read_are_no_damage(
    folder: StoreFolder, use: Callable[[StoreFolder], object], times: int
) -> None:
    """And no set of theirs is deleted."""
    add(folder, "a-0")
    found = use(Overtaken(folder.path, times))
    assert use is not StoreFolder.find or found is not None
    assert {path.stem for path in folder.sets.iterdir()} == set(names_of(folder)) > {"a-0"}


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
        (folder.sets / f"{name}-00000.piles").touch()
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


def test_snapshots_are_looked_through_one_after_the_other(
    folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the footers of their sets, all of a bucket would take more memory than there is."""
    leases, live = [], list[int]()
    for number in range(8):
        add(folder, f"a-{number}")
        leases.append(folder.open()[1])

    def read(self: StoreFolder, number: int, own: Any = StoreFolder._read) -> Snapshot | None:
        live.append(sum(type(one) is Snapshot for one in gc.get_objects()))
        found: Snapshot | None = own(self, number)
        return found

    monkeypatch.setattr(StoreFolder, "_read", read)
    assert folder.list_referenced() == {f"a-{number}" for number in range(8)}
    assert len(live) == 8
    assert max(live) <= min(live) + 1
    for lease in leases:
        lease.close()


def test_many_dead_names_are_deleted_without_reading_the_snapshots_for_each(
    folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a compaction of many small sets takes linear time."""
    names = [f"dead-{number}" for number in range(20)]
    for name in names:
        (folder.sets / f"{name}-00000.piles").touch()
    listings = []

    def list_referenced(self: StoreFolder, own: Any = StoreFolder.list_referenced) -> set[str]:
        listings.append(self)
        return own(self)

    monkeypatch.setattr(StoreFolder, "list_referenced", list_referenced)
    assert sorted(folder.collect()) == sorted(f"{name}-00000" for name in names)
    assert list(folder.sets.iterdir()) == []
    assert len(listings) <= 4


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


# What a commit meets that others have left half done, and failures after it


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("time.sleep", lambda _: None)
    write(tmp_path / "store", "a", {"id": [0]}, piles=1)
    return tmp_path / "store"


def test_nobody_waits_for_who_deletes_a_snapshot(store: Path) -> None:
    _, lease = StoreFolder(store).open()
    append(store, {"id": [1]}, time=1)
    lease.close()
    descriptor = lock_existing(
        min(store.glob("snapshot-*"))
    )  # as a process that is stopped before it deletes it
    assert sorted(read_ids(store)) == [0, 1]
    append(store, {"id": [2]}, time=2)
    with pytest.raises(UsageError, match="has no snapshot"):
        StoreFolder(store).open(StoreFolder(store)._numbers()[-1])
    os.close(descriptor)
    assert sorted(read_ids(store)) == [0, 1, 2]


def test_a_link_that_was_made_and_is_reported_as_there_is_a_commit(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def resent(*args: Any) -> None:
        link(*args)
        link(*args)

    monkeypatch.setattr(os, "link", resent)
    append(store, {"id": [1]}, time=1)
    append(store, {"id": [2]}, time=2)
    assert sorted(read_ids(store)) == [0, 1, 2]


def fail(*_: Any, **__: Any) -> Any:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("name", ["unlink_unless_locked", "_remove_part"])
def test_a_commit_succeeds_when_nothing_can_be_deleted(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        (store / f".snapshot-{0:032x}").touch()
        patch.setattr(store_folder, name, fail)
        append(store, {"id": [1]}, time=1)
        append(store, {"id": [2]}, time=2)
        assert sorted(read_ids(store)) == [0, 1, 2]
    append(store, {"id": [3]}, time=3)
    assert len(list(store.glob("*snapshot-*"))) == 1


def test_a_commit_whose_name_cannot_be_synced_says_that_it_is_in_place(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store_folder.sync

    def failing(path: Path) -> None:
        if path == store:
            raise OSError(errno.EIO, "Input/output error")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(store_folder, "sync", failing)
        with pytest.raises(
            OutputError, match=r"is in place, but may be lost in a power cut: Input/output error"
        ):
            append(store, {"id": [1]}, time=1)
    append(store, {"id": [2]}, time=2)
    assert sorted(read_ids(store)) == [0, 1, 2]
