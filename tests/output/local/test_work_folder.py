"""The work folder: one run at a time, and nothing lost of what a dead run left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.local.destination import LocalDestination
from recshuf.output.local.log import FileJournal, read_journal
from recshuf.output.manifest import find_checksum
from tests.support.output_tools import enter_work, leave_finished, open_work, read_tree, stage

if TYPE_CHECKING:
    from pathlib import Path


def test_removing_what_was_not_committed_leaves_nothing(tmp_path: Path):
    work = stage(LocalDestination(tmp_path / "a" / "b" / "out", is_directory=True))
    work.remove()
    work.remove()
    assert os.listdir(tmp_path) == []


def test_shards_are_listed_in_order_beyond_five_digits(tmp_path: Path):
    work = open_work(LocalDestination(tmp_path / "out", is_directory=True))
    for shard in (99_999, 100_000, 3):
        work.shards.path_of(shard, ".txt").touch()
    assert [name for name, _ in work.shards.list_files()] == [
        "shard-00003.txt",
        "shard-99999.txt",
        "shard-100000.txt",
    ]
    work.remove()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError):
        open_work(LocalDestination(tmp_path / "out", is_directory=True))


# The lock


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path):
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    first = open_work(destination)
    with pytest.raises(OutputError, match="another run is writing it"):
        open_work(destination)
    with pytest.raises(OutputError, match="another run is writing it"):
        open_work(destination, resumes=True)
    first.remove()
    open_work(destination).remove()
    assert os.listdir(tmp_path) == []


def test_a_dead_process_holds_no_lock(tmp_path: Path):
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    child = os.fork()
    if not child:
        open_work(destination)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.listdir(tmp_path) == [".out.recshuf"]
    heard: list[str] = []
    enter_work(destination, heard.append).remove()
    assert len(heard) == 1
    assert "died before any part was finished" in heard[0]


# What a dead run left


def test_finished_parts_are_neither_deleted_nor_used_unasked(tmp_path: Path):
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    leave_finished(destination)
    before = read_tree(tmp_path)
    with pytest.raises(OutputError, match=r"\.out\.recshuf, finished parts: 1; give --resume"):
        open_work(destination)
    assert read_tree(tmp_path) == before
    resumed = open_work(destination, resumes=True)
    assert resumed.journal.entries == [{"piles": None}, {"shard": 0}]
    assert resumed.journal.is_resumable
    resumed.shards.keep_only({"shard-00000.txt"})
    assert [name for name, _ in resumed.shards.list_files()] == ["shard-00000.txt"]
    resumed.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["precious.txt", "shards.txt"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, name: str):
    (tmp_path / ".out.recshuf").mkdir()
    (tmp_path / ".out.recshuf" / name).write_text("precious")
    with pytest.raises(OutputError, match="not from an earlier run"):
        open_work(LocalDestination(tmp_path / "out", is_directory=True))
    assert (tmp_path / ".out.recshuf" / name).read_text() == "precious"


@pytest.mark.parametrize("name", ["precious", "recshuf-piles-1/../precious"])
def test_a_journal_cannot_have_other_folders_deleted(tmp_path: Path, name: str):
    (tmp_path / "precious").mkdir()
    (tmp_path / "recshuf-piles-1").mkdir()
    (tmp_path / ".out.recshuf").mkdir()
    FileJournal(tmp_path / ".out.recshuf" / "journal.jsonl").append({"piles": str(tmp_path / name)})
    enter_work(LocalDestination(tmp_path / "out", is_directory=True), lambda _: None).remove()
    assert sorted(os.listdir(tmp_path)) == ["precious", "recshuf-piles-1"]


# Shards of tasks


def test_shards_of_tasks_are_taken_over_if_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By their sizes, or by their checksums if time has passed; the folder of the names is synced before any is noted."""
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    work = open_work(destination)
    work.journal.note({"piles": None})
    work.tasks.make()
    (work.tasks.path / "shards-7").mkdir()
    entries = []
    for number in range(4):
        path = work.tasks.path / "shards-7" / f"shard-{number:05d}.txt"
        path.write_text(f"{number}\n")
        described = {"shard": number, "name": path.name, "bytes": 2, "xxh3": find_checksum(path)}
        entries.append(described | {"folder": "shards-7"})
    (work.tasks.path / "shards-7" / "shard-00001.txt").write_text("1\n1")
    (work.tasks.path / "shards-7" / "shard-00002.txt").unlink()
    noted_at_sync: list[int] = []
    inode = work.shards.folder.stat().st_ino

    def note(file: int) -> None:
        if os.fstat(file).st_ino == inode:
            noted_at_sync.append(len(read_journal(work.journal.path)))

    monkeypatch.setattr(os, "fsync", note)
    assert work.adopt(entries) == ["shard-00001.txt", "shard-00002.txt"]
    assert noted_at_sync == [1]
    noted = read_journal(work.journal.path)[1:]
    assert noted == [{name: entry[name] for name in entry if name != "folder"} for entry in entries[::3]]
    work.release()
    (work.shards.folder / "shard-00003.txt").write_text("4\n")
    later = open_work(destination, resumes=True)
    assert later.find_unchanged(noted) == {"shard-00000.txt"}
    assert later.adopt(entries[::3]) == ["shard-00003.txt"]
    later.remove()
