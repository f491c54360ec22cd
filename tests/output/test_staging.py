"""The work folder: one run at a time, all or nothing at the end, and nothing lost of what a dead run left."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import recshuf
import recshuf.output.shard_sync as keeper
import recshuf.output.staging as staging_module
from recshuf.errors import OutputError
from recshuf.job.report import FileReport
from recshuf.output.destination import Destination
from recshuf.output.journal import Journal, read_journal
from recshuf.output.manifest import MANIFEST_NAME, Manifest
from recshuf.output.staging import Staging
from recshuf.run.gather import Gather
from tests.output.test_destination import read_tree, write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer


def open_staging(destination: Destination, *, resumes: bool = False) -> Staging:
    return enter_staging(destination, pytest.fail, resumes=resumes)


def enter_staging(destination: Destination, warn: Callable[[str], None], *, resumes: bool = False) -> Staging:
    staging = Staging(destination, warn)
    staging.enter(resumes=resumes)
    return staging


def stage(destination: Destination, count: int = 2, content: str = "new") -> Staging:
    """Return a staging folder that holds shards."""
    staging = open_staging(destination)
    for shard in range(count if destination.is_directory else 1):
        staging.path_of(shard, ".txt").write_text(content)
    return staging


def manifest_of(staging: Staging) -> Manifest | None:
    if not staging.destination.is_directory:
        return None
    shards = (FileReport(name, 0, size) for name, size in staging.list_files())
    return Manifest(staging.files, "text", (), tuple(shards))


def refuse_exchange(first: Path, second: Path) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


# Commit


def test_a_new_directory_gets_shards_and_manifest(tmp_path: Path):
    staging = stage(Destination(tmp_path / "a" / "b" / "out", is_directory=True))
    assert os.listdir(tmp_path) == ["a"]
    assert not (tmp_path / "a" / "b" / "out").exists()
    staging.commit(manifest_of(staging))
    staging.remove()
    staging.remove()
    found = read_tree(tmp_path)
    assert found.pop(f"a/b/out/{MANIFEST_NAME}")
    assert found == {"a/b/out/shard-00000.txt": "new", "a/b/out/shard-00001.txt": "new"}


def test_a_file_is_put_in_place(tmp_path: Path):
    (tmp_path / "out.txt").write_text("old")
    staging = stage(Destination(tmp_path / "out.txt", is_directory=False))
    assert (tmp_path / "out.txt").read_text() == "old"
    staging.commit(None)
    staging.remove()
    assert read_tree(tmp_path) == {"out.txt": "new"}


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    staging = stage(Destination(tmp_path / "link.txt", is_directory=False))
    staging.commit(None)
    staging.remove()
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_files_of_an_earlier_run_are_replaced_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
):
    if not can_exchange:
        monkeypatch.setattr(staging_module, "exchange", refuse_exchange)
    write_run(tmp_path / "out", "shard-00000.txt", "shard-00007.parquet")
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    staging.commit(manifest_of(staging))
    staging.remove()
    assert sorted(os.listdir(tmp_path / "out")) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]
    assert (tmp_path / "out" / "shard-00000.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_failure_midway_puts_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int):
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    before = read_tree(tmp_path)
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    monkeypatch.setattr(staging_module, "exchange", refuse_exchange)
    rename, calls = Path.rename, iter(range(1, 100))

    def fail_once(self: Path, target: Path) -> Path:
        if next(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(OutputError, match="cannot be written"):
        staging.commit(manifest_of(staging))
    staging.remove()
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_signal_right_after_a_rename_puts_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
):
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    before = read_tree(tmp_path)
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    monkeypatch.setattr(staging_module, "exchange", refuse_exchange)
    rename, calls = Path.rename, iter(range(1, 100))

    def interrupt_once(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if next(calls) == failing:
            raise KeyboardInterrupt
        return renamed

    monkeypatch.setattr(Path, "rename", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        staging.commit(manifest_of(staging))
    staging.remove()
    assert read_tree(tmp_path) == before


def test_the_work_folder_is_left_when_no_thread_notes_anything_in_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run fails while a shard is synced, which ends when the work folder has been left, or soon."""
    left, syncing, ended = threading.Event(), threading.Event(), []
    run = Gather.run

    def sync_late(path: Path) -> None:
        syncing.set()
        left.wait(0.3)
        ended.append(path.name)

    def fail(gather: Gather) -> None:
        run(gather)
        assert syncing.wait(60)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def leave(staging: Staging) -> None:
        ended.append("the run")
        left.set()

    monkeypatch.setattr(Staging, "remove", leave)
    monkeypatch.setattr(Staging, "release", leave)
    monkeypatch.setattr(keeper, "sync", sync_late)
    monkeypatch.setattr(Gather, "run", fail)
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    with pytest.raises(OutputError):
        recshuf.shuffle([tmp_path / "in.txt"], tmp_path / "out", shards=3)
    assert len(ended) > 1
    assert ended[-1] == "the run"


def test_removing_what_was_not_committed_leaves_nothing(tmp_path: Path):
    staging = stage(Destination(tmp_path / "a" / "b" / "out", is_directory=True))
    staging.remove()
    staging.remove()
    assert os.listdir(tmp_path) == []


def test_shards_are_listed_in_order_beyond_five_digits(tmp_path: Path):
    staging = open_staging(Destination(tmp_path / "out", is_directory=True))
    for shard in (99_999, 100_000, 3):
        staging.path_of(shard, ".txt").touch()
    assert [name for name, _ in staging.list_files()] == [
        "shard-00003.txt",
        "shard-99999.txt",
        "shard-100000.txt",
    ]
    staging.remove()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError):
        open_staging(Destination(tmp_path / "out", is_directory=True))


def test_an_existing_directory_keeps_its_permissions(tmp_path: Path):
    write_run(tmp_path / "out", "a.txt")
    (tmp_path / "out").chmod(0o751)
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    staging.commit(manifest_of(staging))
    staging.remove()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751


def test_an_empty_directory_is_filled(tmp_path: Path):
    (tmp_path / "out").mkdir()
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    staging.commit(manifest_of(staging))
    staging.remove()
    assert len(os.listdir(tmp_path / "out")) == 3


def test_a_directory_that_cannot_be_renamed_is_filled_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As the mount point of a container's volume."""
    monkeypatch.setattr(Path, "is_mount", lambda self: self.name == "out")
    write_run(tmp_path / "out", "a.txt")
    staging = stage(Destination(tmp_path / "out", is_directory=True))
    assert staging.folder == tmp_path / "out" / ".recshuf"
    Destination(tmp_path / "out", is_directory=True).check(overwrite=True)
    staging.commit(manifest_of(staging))
    staging.remove()
    assert sorted(os.listdir(tmp_path / "out")) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]


# The lock


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path):
    destination = Destination(tmp_path / "out", is_directory=True)
    first = open_staging(destination)
    with pytest.raises(OutputError, match="another run is writing it"):
        open_staging(destination)
    with pytest.raises(OutputError, match="another run is writing it"):
        open_staging(destination, resumes=True)
    first.remove()
    open_staging(destination).remove()
    assert os.listdir(tmp_path) == []


def test_a_dead_process_holds_no_lock(tmp_path: Path):
    destination = Destination(tmp_path / "out", is_directory=True)
    child = os.fork()
    if not child:
        open_staging(destination)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.listdir(tmp_path) == [".out.recshuf"]
    heard: list[str] = []
    enter_staging(destination, heard.append).remove()
    assert len(heard) == 1
    assert "died before any part was finished" in heard[0]


# What a dead run left


def leave_finished(destination: Destination) -> Staging:
    """Make what a run leaves that was killed after its first shard."""
    staging = stage(destination)
    staging.journal.append({"piles": None})
    staging.note({"shard": 0})
    staging.release()
    return staging


def test_finished_parts_are_neither_deleted_nor_used_unasked(tmp_path: Path):
    destination = Destination(tmp_path / "out", is_directory=True)
    leave_finished(destination)
    before = read_tree(tmp_path)
    with pytest.raises(OutputError, match=r"\.out\.recshuf, finished parts: 1; give --resume"):
        open_staging(destination)
    assert read_tree(tmp_path) == before
    resumed = open_staging(destination, resumes=True)
    assert resumed.entries == [{"piles": None}, {"shard": 0}]
    assert resumed.is_resumable
    resumed.keep_only({"shard-00000.txt"})
    assert [name for name, _ in resumed.list_files()] == ["shard-00000.txt"]
    resumed.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_run_that_died_after_its_commit_leaves_only_rubbish(tmp_path: Path, is_directory: bool):
    destination = Destination(tmp_path / "out", is_directory=is_directory)
    staging = leave_finished(destination)
    staging.commit(manifest_of(staging))
    after = read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()
    again = open_staging(destination, resumes=True)
    assert again.is_committed
    assert again.is_committing
    again.release()
    heard: list[str] = []
    enter_staging(destination, heard.append).remove()
    assert len(heard) == 1
    assert (read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()) == after
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("steps", range(6))
def test_a_commit_file_by_file_that_died_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
):
    """The process dies before one of the renames, old files out and new ones in."""
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    destination = Destination(tmp_path / "out", is_directory=True)
    leave_finished(destination)
    child = os.fork()
    if not child:
        staging = open_staging(destination, resumes=True)
        rename, calls = Path.rename, iter(range(100))
        staging_module.exchange = refuse_exchange
        Path.rename = lambda *paths: os._exit(7) if next(calls) == steps else rename(*paths)  # type: ignore[method-assign]
        staging.commit(manifest_of(staging))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    monkeypatch.setattr(staging_module, "exchange", refuse_exchange)
    staging = open_staging(destination, resumes=True)
    assert staging.is_committing
    shards = (FileReport("shard-00000.txt", 0, 3), FileReport("shard-00001.txt", 0, 3))
    staging.commit(Manifest(staging.files, "text", (), shards))
    staging.remove()
    found = read_tree(tmp_path / "out")
    assert sorted(found) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]
    assert found["shard-00000.txt"] == found["shard-00001.txt"] == "new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["precious.txt", "shards.txt"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, name: str):
    (tmp_path / ".out.recshuf").mkdir()
    (tmp_path / ".out.recshuf" / name).write_text("precious")
    with pytest.raises(OutputError, match="not from an earlier run"):
        open_staging(Destination(tmp_path / "out", is_directory=True))
    assert (tmp_path / ".out.recshuf" / name).read_text() == "precious"


@pytest.mark.parametrize("name", ["", "/shards"])
def test_links_to_elsewhere_are_not_followed(tmp_path: Path, name: str):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("precious")
    if name:
        (tmp_path / ".out.recshuf").mkdir()
        Journal(tmp_path / ".out.recshuf" / "journal.jsonl").append({"piles": None})
        Journal(tmp_path / ".out.recshuf" / "journal.jsonl").append({"shard": 0})
    (tmp_path / f".out.recshuf{name}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="remove it"):
        open_staging(Destination(tmp_path / "out", is_directory=True), resumes=True)
    assert (tmp_path / "elsewhere" / "file").read_text() == "precious"


@pytest.mark.parametrize("name", ["precious", "recshuf-piles-1/../precious"])
def test_a_journal_cannot_have_other_folders_deleted(tmp_path: Path, name: str):
    (tmp_path / "precious").mkdir()
    (tmp_path / "recshuf-piles-1").mkdir()
    (tmp_path / ".out.recshuf").mkdir()
    Journal(tmp_path / ".out.recshuf" / "journal.jsonl").append({"piles": str(tmp_path / name)})
    enter_staging(Destination(tmp_path / "out", is_directory=True), lambda _: None).remove()
    assert sorted(os.listdir(tmp_path)) == ["precious", "recshuf-piles-1"]


@pytest.mark.parametrize("name", ["../victim.txt", "{folder}/victim.txt", "..", ""])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str):
    """A manifest is input like any other: whoever wrote it must not choose what is replaced."""
    (tmp_path / "victim.txt").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    named = name.format(folder=tmp_path)
    (out / MANIFEST_NAME).write_text(json.dumps({"shards": [{"name": named}]}))
    staging = stage(Destination(out, is_directory=True))
    try:
        Destination(out, is_directory=True).check(overwrite=True)
        staging.commit(manifest_of(staging))
    except OutputError:
        pass
    finally:
        staging.remove()
    assert (tmp_path / "victim.txt").read_text() == "precious"


def test_long_names_are_fine(tmp_path: Path):
    staging = stage(Destination(tmp_path / ("n" * 255), is_directory=False))
    staging.commit(None)
    staging.remove()
    assert os.listdir(tmp_path) == ["n" * 255]


# The journal


def test_a_journal_goes_on_on_a_new_line_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Full(io.FileIO):
        def write(self, data: ReadableBuffer) -> int:
            super().write(memoryview(data)[:5])
            raise OSError(errno.ENOSPC, "full")

    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append({"entry": 0})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *_, **__: Full(path, "ab"))
        with pytest.raises(OSError, match="full"):
            journal.append({"entry": 1})
    journal.append({"entry": 2})
    assert read_journal(path) == [{"entry": 0}, {"entry": 2}]


def test_a_journal_returns_what_was_written(tmp_path: Path):
    entries = [{"a": 1}, {"b": ["\n", "é", None]}, {}]
    journal = Journal(tmp_path / "journal")
    for entry in entries:
        journal.append(entry)
    assert read_journal(tmp_path / "journal") == entries
    assert read_journal(tmp_path / "none") == []


def test_every_damage_of_an_entry_is_noticed(tmp_path: Path):
    path = tmp_path / "journal"
    for number in range(3):
        Journal(path).append({"entry": number})
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
    Journal(path).append({"entry": 3})
    assert [entry["entry"] for entry in read_journal(path)] == [0, 1, 3]
