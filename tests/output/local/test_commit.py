"""The commit: all or nothing, and the manifest last."""

from __future__ import annotations

import errno
import json
import os
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import recshuf.output.local.stage as commit_module
from recshuf.errors import OutputError
from recshuf.output.local.destination import LocalDestination
from recshuf.output.manifest import Manifest, manifest_path
from tests.support.output_tools import (
    enter_work,
    leave_finished,
    manifest_of,
    open_work,
    read_tree,
    refuse_exchange,
    stage,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_new_directory_gets_shards_and_manifest(tmp_path: Path):
    work = stage(LocalDestination(tmp_path / "a" / "b" / "out", is_directory=True))
    assert os.listdir(tmp_path) == ["a"]
    assert not (tmp_path / "a" / "b" / "out").exists()
    work.commit(manifest_of(work))
    work.remove()
    work.remove()
    found = read_tree(tmp_path)
    assert found.pop("a/b/out.recshuf.json")
    assert found == {"a/b/out/shard-00000.txt": "new", "a/b/out/shard-00001.txt": "new"}


def test_a_file_is_put_in_place(tmp_path: Path):
    (tmp_path / "out.txt").write_text("old")
    work = stage(LocalDestination(tmp_path / "out.txt", is_directory=False))
    assert (tmp_path / "out.txt").read_text() == "old"
    work.commit(None)
    work.remove()
    assert read_tree(tmp_path) == {"out.txt": "new"}


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    work = stage(LocalDestination(tmp_path / "link.txt", is_directory=False))
    work.commit(None)
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
    work = stage(LocalDestination(tmp_path / "out", is_directory=True))
    work.commit(manifest_of(work))
    work.remove()
    assert read_tree(tmp_path / "out") == {"shard-00000.txt": "new", "shard-00001.txt": "new"}
    assert sorted(os.listdir(tmp_path)) == ["out", "out.recshuf.json"]


def test_an_existing_directory_keeps_its_permissions(tmp_path: Path):
    write_run(tmp_path / "out", "a.txt")
    (tmp_path / "out").chmod(0o751)
    work = stage(LocalDestination(tmp_path / "out", is_directory=True))
    work.commit(manifest_of(work))
    work.remove()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751


def test_an_empty_directory_is_filled(tmp_path: Path):
    (tmp_path / "out").mkdir()
    work = stage(LocalDestination(tmp_path / "out", is_directory=True))
    work.commit(manifest_of(work))
    work.remove()
    assert len(os.listdir(tmp_path / "out")) == 2


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_run_that_died_after_its_commit_leaves_only_rubbish(tmp_path: Path, is_directory: bool):
    destination = LocalDestination(tmp_path / "out", is_directory=is_directory)
    work = leave_finished(destination)
    work.commit(manifest_of(work))
    after = read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()
    again = open_work(destination, resumes=True)
    assert again.shards.are_committed
    assert again.journal.last("commit")
    again.release()
    heard: list[str] = []
    enter_work(destination, heard.append).remove()
    assert len(heard) == 1
    assert (read_tree(tmp_path / "out") if is_directory else (tmp_path / "out").read_text()) == after
    assert sorted(os.listdir(tmp_path)) == ["out", "out.recshuf.json"][: 1 + is_directory]


# Every step of it fails, is interrupted, or is the last


def strike_at(
    patch: pytest.MonkeyPatch, step: int, strike: Callable[[], None], *, late: bool, can_exchange: bool
) -> None:
    """Have something happen before, or right after, a file or folder is renamed or exchanged."""
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

    patch.setattr(
        commit_module, "exchange", strike_or(commit_module.exchange) if can_exchange else refuse_exchange
    )
    patch.setattr(Path, "rename", strike_or(Path.rename))


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def interrupt() -> None:
    raise KeyboardInterrupt


WAYS = [(can_exchange, step) for can_exchange, steps in ((True, 2), (False, 3)) for step in range(steps)]
"""Exchange and manifest; or old folder, new folder and manifest."""
NEW = {"shard-00000.txt": "new", "shard-00001.txt": "new"}


def lay_out(folder: Path) -> dict[str, str]:
    """Make an output of an earlier run, and return its shards."""
    write_run(folder / "out", "shard-00000.txt", "b.txt")
    return read_tree(folder / "out")


def check_completed(folder: Path) -> None:
    """Let the commit be completed by a later run."""
    work = open_work(LocalDestination(folder / "out", is_directory=True), resumes=True)
    work.commit(manifest_of(work))
    work.remove()
    assert read_tree(folder / "out") == NEW
    assert sorted(os.listdir(folder)) == ["out", "out.recshuf.json"]
    manifest = Manifest.read(folder / "out")
    assert manifest
    assert not manifest.compare_files()


@pytest.mark.parametrize(
    ("can_exchange", "step", "strike", "late", "error"),
    [
        (*way, *how)
        for way, how in zip(
            WAYS,
            cycle(
                [
                    (fail, False, OutputError),
                    (interrupt, True, KeyboardInterrupt),
                    (interrupt, False, KeyboardInterrupt),
                    (fail, False, OutputError),
                ]
            ),
        )
    ],
)
def test_a_commit_that_fails_leaves_a_whole_folder_and_is_completed(
    tmp_path: Path,
    can_exchange: bool,
    step: int,
    strike: Callable[[], None],
    late: bool,
    error: type[BaseException],
):
    before = lay_out(tmp_path)
    work = stage(LocalDestination(tmp_path / "out", is_directory=True))
    work.journal.note({"piles": None})
    work.journal.note({"shard": 0})
    with pytest.MonkeyPatch.context() as patch:
        strike_at(patch, step, strike, late=late, can_exchange=can_exchange)
        with pytest.raises(error):
            work.commit(manifest_of(work))
    if (can_exchange, step, late) != (False, 0, True):  # the old folder has just been moved
        assert read_tree(tmp_path / "out") in (before, NEW)
    work.release()
    check_completed(tmp_path)


@pytest.mark.parametrize(
    ("can_exchange", "step", "late"),
    [
        (True, 0, False),
        (True, 0, True),
        (True, 1, False),
        (False, 0, True),
        (False, 1, True),
        (False, 2, False),
    ],
)
def test_a_commit_that_died_is_completed(tmp_path: Path, can_exchange: bool, step: int, late: bool):
    before = lay_out(tmp_path)
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    leave_finished(destination)
    child = os.fork()
    if not child:
        work = open_work(destination, resumes=True)
        strike_at(pytest.MonkeyPatch(), step, lambda: os._exit(7), late=late, can_exchange=can_exchange)
        work.commit(manifest_of(work))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert read_tree(tmp_path / "out") in (before, NEW, *([{}] if not can_exchange else []))
    check_completed(tmp_path)


def die_before_the_manifest(destination: LocalDestination) -> None:
    """Leave the new folder beside the old manifest, as a run that was killed between the two."""
    work = leave_finished(destination)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(work.shards), "place_manifest", lambda _: interrupt())
        with pytest.raises(KeyboardInterrupt):
            work.commit(manifest_of(work))


def test_a_folder_whose_manifest_is_still_to_come_is_told(tmp_path: Path):
    lay_out(tmp_path)
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    die_before_the_manifest(destination)
    manifest = Manifest.read(tmp_path / "out")
    assert manifest
    assert "b.txt: is missing" in " ".join(manifest.compare_files())
    with pytest.raises(OutputError, match=r"unfinished run left .*; give --resume"):
        destination.check(overwrite=True)


def test_a_new_run_places_the_manifest_of_one_that_died_before_it(tmp_path: Path):
    lay_out(tmp_path)
    destination = LocalDestination(tmp_path / "out", is_directory=True)
    die_before_the_manifest(destination)
    heard: list[str] = []
    enter_work(destination, heard.append).remove()
    assert "put everything in place" in heard[0]
    manifest = Manifest.read(tmp_path / "out")
    assert manifest
    assert not manifest.compare_files()
    destination.check(overwrite=True)


@pytest.mark.parametrize("name", ["../victim.txt", "{folder}/victim.txt", "..", ""])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str):
    """A manifest is input like any other: whoever wrote it must not choose what is replaced."""
    (tmp_path / "victim.txt").write_text("precious")
    out = tmp_path / "out"
    named = name.format(folder=tmp_path)
    write_run(out)
    manifest = json.loads(manifest_path(out).read_text())
    manifest["shards"] = [{"name": named, "records": 1, "bytes": 8}]
    manifest_path(out).write_text(json.dumps(manifest))
    work = stage(LocalDestination(out, is_directory=True))
    try:
        LocalDestination(out, is_directory=True).check(overwrite=True)
        work.commit(manifest_of(work))
    except OutputError:
        pass
    finally:
        work.remove()
    assert (tmp_path / "victim.txt").read_text() == "precious"


def test_long_names_are_fine(tmp_path: Path):
    work = stage(LocalDestination(tmp_path / ("n" * 255), is_directory=False))
    work.commit(None)
    work.remove()
    assert os.listdir(tmp_path) == ["n" * 255]
