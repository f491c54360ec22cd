"""Locks: who holds one, who is refused, and what is deleted only while nobody holds it."""

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from recshuf.errors import OutputError
from recshuf.system.files import (
    lock_existing,
    lock_folder,
    try_exclusive,
    try_shared,
    unlink_unless_locked,
    wait_exclusive,
)

HELD = "^out: another run is writing it .*; wait for its end, or choose another output$"
MAKERS = {"alone": lock_folder, "shared": partial(lock_folder, is_shared=True)}


@pytest.mark.parametrize(("first", "second"), [*product(MAKERS, MAKERS)])
def test_a_folder_is_locked_by_one_run_or_by_many_tasks(tmp_path: Path, first: str, second: str) -> None:
    folder = tmp_path / "work"
    held = MAKERS[first](folder, "out")
    assert folder.stat().st_mode & 0o777 == 0o700
    if first == second == "shared":
        os.close(MAKERS[second](folder, "out"))
    else:
        with pytest.raises(OutputError, match=HELD):
            MAKERS[second](folder, "out")
    assert folder.is_dir()
    os.close(held)
    os.close(MAKERS[second](folder, "out"))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("work")
    for name in ("file", "link"):
        with pytest.raises(OutputError, match=f"/{name}: is no folder of an earlier run"):
            MAKERS[second](tmp_path / name, "out")


@pytest.mark.parametrize("make", MAKERS)
def test_an_interrupt_removes_an_empty_folder_unless_another_run_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str
) -> None:
    folder, whole = tmp_path / "work", os.open
    held = MAKERS[make](folder, "out")

    def interrupt(*_: object) -> int:
        monkeypatch.setattr(os, "open", whole)
        raise KeyboardInterrupt

    for is_held in (True, False):
        monkeypatch.setattr(os, "open", interrupt)
        with pytest.raises(KeyboardInterrupt):
            MAKERS[make](folder, "out")
        assert folder.exists() == is_held
        if is_held:
            os.close(held)


def test_the_lock_of_a_folder_that_is_made_anew_meanwhile_is_that_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole, left = tmp_path / "work", os.open, [1]

    def open_after_another(path: Path, *flags: int) -> int:
        descriptor = whole(path, *flags)
        if left.pop() if left else 0:
            folder.rename(tmp_path / "moved")
        return descriptor

    monkeypatch.setattr(os, "open", open_after_another)
    lock = lock_folder(folder, "out")
    assert os.path.samestat(os.fstat(lock), folder.stat())
    os.close(lock)


def test_a_file_is_held_by_many_readers_or_by_one_writer_and_deleted_when_nobody_holds_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lease"
    assert try_shared(path) is None
    writer = try_exclusive(path)
    assert writer is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert (try_exclusive(path), try_shared(path)) == (None, None)
    os.close(writer)
    one, other = try_shared(path), try_shared(path)
    assert one is not None
    assert other is not None
    assert one.holds(path)
    assert try_exclusive(path) is None
    one.close()
    one.close()
    with pytest.raises(BlockingIOError):
        lock_existing(path)
    assert not unlink_unless_locked(path)
    assert path.exists()
    other.close()
    os.close(lock_existing(path))
    assert unlink_unless_locked(path)
    assert not path.exists()
    assert unlink_unless_locked(path)
    with pytest.raises(FileNotFoundError):
        lock_existing(path)
    assert not path.exists()


@pytest.mark.parametrize("take", [try_exclusive, try_shared, wait_exclusive])
def test_a_file_that_is_deleted_before_it_is_locked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], object]
) -> None:
    path, whole, left = tmp_path / "lease", os.open, [1]
    path.touch()

    def open_before_another(name: Path, *flags: int) -> int:
        descriptor = whole(name, *flags)
        if left.pop() if left else 0:
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_before_another)
    held = take(path)
    if take is try_shared:
        assert held is None
    else:
        assert isinstance(held, int)
        assert os.path.samestat(os.fstat(held), path.stat())
        os.close(held)
