"""The commit: all or nothing, in one step or file by file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import recshuf.output.commit as commit_module
from recshuf.errors import OutputError
from recshuf.job.report import FileReport
from recshuf.output.commit import commit
from recshuf.output.destination import Destination
from recshuf.output.manifest import MANIFEST_NAME, Manifest
from tests.support.output_tools import (
    enter_work,
    leave_finished,
    manifest_of,
    open_work,
    read_tree,
    stage,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def refuse_exchange(first: Path, second: Path) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_a_new_directory_gets_shards_and_manifest(tmp_path: Path):
    work = stage(Destination(tmp_path / "a" / "b" / "out", is_directory=True))
    assert os.listdir(tmp_path) == ["a"]
    assert not (tmp_path / "a" / "b" / "out").exists()
    commit(work, manifest_of(work))
    work.remove()
    work.remove()
    found = read_tree(tmp_path)
    assert found.pop(f"a/b/out/{MANIFEST_NAME}")
    assert found == {"a/b/out/shard-00000.txt": "new", "a/b/out/shard-00001.txt": "new"}


def test_a_file_is_put_in_place(tmp_path: Path):
    (tmp_path / "out.txt").write_text("old")
    work = stage(Destination(tmp_path / "out.txt", is_directory=False))
    assert (tmp_path / "out.txt").read_text() == "old"
    commit(work, None)
    work.remove()
    assert read_tree(tmp_path) == {"out.txt": "new"}


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    work = stage(Destination(tmp_path / "link.txt", is_directory=False))
    commit(work, None)
    work.remove()
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_files_of_an_earlier_run_are_replaced_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
):
    if not can_exchange:
        monkeypatch.setattr(commit_module, "exchange", refuse_exchange)
    write_run(tmp_path / "out", "shard-00000.txt", "shard-00007.parquet")
    work = stage(Destination(tmp_path / "out", is_directory=True))
    commit(work, manifest_of(work))
    work.remove()
    assert sorted(os.listdir(tmp_path / "out")) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]
    assert (tmp_path / "out" / "shard-00000.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_an_existing_directory_keeps_its_permissions(tmp_path: Path):
    write_run(tmp_path / "out", "a.txt")
    (tmp_path / "out").chmod(0o751)
    work = stage(Destination(tmp_path / "out", is_directory=True))
    commit(work, manifest_of(work))
    work.remove()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751


def test_an_empty_directory_is_filled(tmp_path: Path):
    (tmp_path / "out").mkdir()
    work = stage(Destination(tmp_path / "out", is_directory=True))
    commit(work, manifest_of(work))
    work.remove()
    assert len(os.listdir(tmp_path / "out")) == 3


def test_a_directory_that_cannot_be_renamed_is_filled_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As the mount point of a container's volume."""
    monkeypatch.setattr(Path, "is_mount", lambda self: self.name == "out")
    write_run(tmp_path / "out", "a.txt")
    work = stage(Destination(tmp_path / "out", is_directory=True))
    assert work.path == tmp_path / "out" / ".recshuf"
    Destination(tmp_path / "out", is_directory=True).check(overwrite=True)
    commit(work, manifest_of(work))
    work.remove()
    assert sorted(os.listdir(tmp_path / "out")) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_run_that_died_after_its_commit_leaves_only_rubbish(tmp_path: Path, is_directory: bool):
    destination = Destination(tmp_path / "out", is_directory=is_directory)
    work = leave_finished(destination)
    commit(work, manifest_of(work))
    after = read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()
    again = open_work(destination, resumes=True)
    assert again.shards.are_committed
    assert again.journal.last("commit")
    again.release()
    heard: list[str] = []
    enter_work(destination, heard.append).remove()
    assert len(heard) == 1
    assert (read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()) == after
    assert os.listdir(tmp_path) == ["out"]


# File by file


def strike_at(
    patch: pytest.MonkeyPatch, step: int, strike: Callable[[], None], *, late: bool = False
) -> None:
    """Have something happen before, or right after, a file is deleted or renamed."""
    steps = iter(range(100))

    def strike_or(whole: Callable[..., object]) -> Callable[..., object]:
        def change(*given: object, **options: object) -> object:
            is_struck = next(steps) == step
            if is_struck and not late:
                strike()
            changed = whole(*given, **options)
            if is_struck:
                strike()
            return changed

        return change

    patch.setattr(commit_module, "exchange", refuse_exchange)
    patch.setattr(Path, "rename", strike_or(Path.rename))
    patch.setattr(Path, "unlink", strike_or(Path.unlink))


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def interrupt() -> None:
    raise KeyboardInterrupt


STEPS = 5
"""Old manifest, an old shard whose name no new one has, two new shards, new manifest."""


def check_completed(tmp_path: Path, before: dict[str, str]) -> None:
    """Make sure that a directory with a manifest is whole, and let the commit be completed."""
    found = read_tree(tmp_path / "out")
    assert MANIFEST_NAME not in found or found == before or len(found) == 3
    work = open_work(Destination(tmp_path / "out", is_directory=True), resumes=True)
    shards = (FileReport("shard-00000.txt", 0, 3), FileReport("shard-00001.txt", 0, 3))
    commit(work, Manifest(work.shards.folder, "text", (), shards))
    work.remove()
    found = read_tree(tmp_path / "out")
    assert sorted(found) == [MANIFEST_NAME, "shard-00000.txt", "shard-00001.txt"]
    assert found["shard-00000.txt"] == found["shard-00001.txt"] == "new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(
    ("strike", "late", "error"),
    [(fail, False, OutputError), (interrupt, False, KeyboardInterrupt), (interrupt, True, KeyboardInterrupt)],
)
def test_a_commit_that_fails_midway_is_completed(
    tmp_path: Path, step: int, strike: Callable[[], None], late: bool, error: type[BaseException]
):
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    before = read_tree(tmp_path / "out")
    work = stage(Destination(tmp_path / "out", is_directory=True))
    work.journal.note({"piles": None})
    assert not work.journal.is_resumable
    with pytest.MonkeyPatch.context() as patch:
        strike_at(patch, step, strike, late=late)
        with pytest.raises(error):
            commit(work, manifest_of(work))
        assert work.journal.is_resumable, "whatever was finished before"
        work.release()
        patch.undo()
        patch.setattr(commit_module, "exchange", refuse_exchange)
        check_completed(tmp_path, before)


@pytest.mark.parametrize("step", range(STEPS))
def test_a_commit_that_died_midway_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int):
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    before = read_tree(tmp_path / "out")
    destination = Destination(tmp_path / "out", is_directory=True)
    leave_finished(destination)
    child = os.fork()
    if not child:
        work = open_work(destination, resumes=True)
        strike_at(pytest.MonkeyPatch(), step, lambda: os._exit(7))
        commit(work, manifest_of(work))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    monkeypatch.setattr(commit_module, "exchange", refuse_exchange)
    check_completed(tmp_path, before)


def test_a_commit_that_was_undone_in_part_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As version 0.1.0 left it: what was replaced lies in the work folder."""
    monkeypatch.setattr(commit_module, "exchange", refuse_exchange)
    write_run(tmp_path / "out", "shard-00000.txt", "b.txt")
    work = leave_finished(Destination(tmp_path / "out", is_directory=True))
    (work.path / "old").mkdir()
    for name in (MANIFEST_NAME, "b.txt"):
        (tmp_path / "out" / name).rename(work.path / "old" / name)
    for entry in (
        {"commit": [0, 0]},
        {"moving": [MANIFEST_NAME, "b.txt", "shard-00000.txt"]},
        {"moved": False},
    ):
        work.journal.append(entry)
    check_completed(tmp_path, {})


def test_a_directory_filled_file_by_file_is_known_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit_module, "exchange", refuse_exchange)
    write_run(tmp_path / "out", "b.txt")
    destination = Destination(tmp_path / "out", is_directory=True)
    work = stage(destination)
    work.journal.note({"piles": None})
    commit(work, manifest_of(work))
    after = read_tree(tmp_path / "out")
    work.release()
    again = open_work(destination, resumes=True)
    assert again.shards.are_committed
    commit(again, None)
    again.release()
    heard: list[str] = []
    enter_work(destination, heard.append).remove()
    assert "put everything in place" in heard[0]
    assert read_tree(tmp_path / "out") == after


def test_a_folder_that_a_manifest_names_is_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_module, "exchange", refuse_exchange)
    write_run(tmp_path / "out", "b.txt")
    (tmp_path / "out" / "b.txt").unlink()
    (tmp_path / "out" / "b.txt").mkdir()
    (tmp_path / "out" / "b.txt" / "precious").touch()
    work = stage(Destination(tmp_path / "out", is_directory=True))
    commit(work, manifest_of(work))
    work.remove()
    assert (tmp_path / "out" / "b.txt" / "precious").exists()


@pytest.mark.parametrize("name", ["../victim.txt", "{folder}/victim.txt", "..", ""])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str):
    """A manifest is input like any other: whoever wrote it must not choose what is replaced."""
    (tmp_path / "victim.txt").write_text("precious")
    out = tmp_path / "out"
    named = name.format(folder=tmp_path)
    write_run(out)
    manifest = json.loads((out / MANIFEST_NAME).read_text())
    manifest["shards"] = [{"name": named, "records": 1, "bytes": 8}]
    (out / MANIFEST_NAME).write_text(json.dumps(manifest))
    work = stage(Destination(out, is_directory=True))
    try:
        Destination(out, is_directory=True).check(overwrite=True)
        commit(work, manifest_of(work))
    except OutputError:
        pass
    finally:
        work.remove()
    assert (tmp_path / "victim.txt").read_text() == "precious"


def test_long_names_are_fine(tmp_path: Path):
    work = stage(Destination(tmp_path / ("n" * 255), is_directory=False))
    commit(work, None)
    work.remove()
    assert os.listdir(tmp_path) == ["n" * 255]
