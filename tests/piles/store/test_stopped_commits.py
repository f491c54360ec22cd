"""What a commit meets that others have left half done, and failures after it."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError, UsageError
from recshuf.piles.kept import folder as store_folder
from recshuf.piles.kept.folder import StoreFolder
from recshuf.system.locks import lock_existing, unlink_unless_locked
from tests.support.stores.small_stores import append, read_ids, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("time.sleep", lambda _: None)
    write(tmp_path / "store", "a", {"id": [0]}, piles=1)
    return tmp_path / "store"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, as a process that is stopped before it deletes that."""
    descriptor = lock_existing(path)
    try:
        yield
    finally:
        os.close(descriptor)


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda store: write(store, "more", {"id": [2]}, piles=1),
    "append": lambda store: append(store, {"id": [3]}, time=3),
    "compact": lambda store: recshuf.compact(store, sets=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_snapshot_refers_to_is_on_disk_before_it_is_in_place(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """And its own name before the change is reported."""
    write(store, "b", {"id": [1]}, piles=1)
    events: list[str] = []
    link = os.link

    def note_sync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        events.append(str(Path(f"/proc/self/fd/{number}").readlink()))

    def note_link(part: Any, snapshot: Any) -> None:
        events.extend([f"link {part}"])
        link(part, snapshot)

    before = set((store / "sets").glob("*.piles"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note_sync)
        patch.setattr(os, "fdatasync", note_sync)
        patch.setattr(os, "link", note_link)
        CHANGES[change](store)
    (made,) = set((store / "sets").glob("*.piles")) - before
    (linked,) = [event for event in events if event.startswith("link ")]
    at = events.index(linked)
    assert {str(made), linked.removeprefix("link ")} <= set(events[:at])
    assert str(store / "sets") in events[events.index(str(made)) : at]
    assert str(store) in events[at:]


def test_nobody_waits_for_who_deletes_a_snapshot(store: Path) -> None:
    _, lease = StoreFolder(store).open()
    append(store, {"id": [1]}, time=1)
    lease.close()
    with held(min(store.glob("snapshot-*"))):
        assert sorted(read_ids(store)) == [0, 1]
        append(store, {"id": [2]}, time=2)
        with pytest.raises(UsageError, match="has no snapshot"):
            StoreFolder(store).open(StoreFolder(store)._numbers()[-1])
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


@pytest.mark.parametrize("makes_another", [True, False])
def test_only_the_file_that_is_locked_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, makes_another: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("first")
    lock = fcntl.flock

    def overtaken(descriptor: int, kind: int) -> None:
        path.unlink()
        if makes_another:
            path.write_text("second")
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    assert unlink_unless_locked(path) != makes_another
    assert path.exists() == makes_another
