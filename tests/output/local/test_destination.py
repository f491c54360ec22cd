"""Destinations: what an output means, and what is never replaced."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import ForeignFileError, OutputError
from recshuf.output.local.destination import LocalDestination
from recshuf.output.local.log import FileJournal
from recshuf.output.manifest import manifest_path
from tests.support.output_tools import write_run

if TYPE_CHECKING:
    from pathlib import Path


# What an output means


def test_what_is_a_directory(tmp_path: Path):
    assert LocalDestination.of(f"{tmp_path}/new/", wants_shards=False).is_directory
    assert LocalDestination.of(str(tmp_path), wants_shards=False).is_directory
    assert LocalDestination.of(f"{tmp_path}/new", wants_shards=True).is_directory
    assert not LocalDestination.of(f"{tmp_path}/new", wants_shards=False).is_directory


def test_a_path_that_cannot_be_looked_at_is_an_error(tmp_path: Path):
    for end, wants_shards in (("", True), ("/", False), ("", False)):
        with pytest.raises(OutputError, match=r"xxx/?: cannot be written: File name too long"):
            LocalDestination.of(f"{tmp_path}/{'x' * 300}{end}", wants_shards=wants_shards)


def test_new_outputs_and_empty_directories_are_fine(tmp_path: Path):
    for overwrite in (False, True):
        LocalDestination(tmp_path / "new.txt", is_directory=False).check(overwrite=overwrite)
        LocalDestination(tmp_path / "new", is_directory=True).check(overwrite=overwrite)
        LocalDestination(tmp_path, is_directory=True).check(overwrite=overwrite)


def test_what_exists_is_refused_unless_it_may_be_replaced(tmp_path: Path):
    write_run(tmp_path / "run", "a.txt")
    (tmp_path / "file").touch()
    for destination in (
        LocalDestination(tmp_path / "file", is_directory=False),
        LocalDestination(tmp_path / "run", is_directory=True),
    ):
        with pytest.raises(OutputError, match="--overwrite"):
            destination.check(overwrite=False)
        destination.check(overwrite=True)


@pytest.mark.parametrize(
    ("name", "overwrite"), [("foreign.txt", True), ("foreign.txt", False), (".hidden", True), ("sub/x", True)]
)
def test_files_that_no_run_wrote_are_never_replaced(tmp_path: Path, name: str, overwrite: bool):
    """An unfinished run has left its work folder, and has put nothing in place."""
    write_run(tmp_path / "out", "a.txt")
    (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / name).touch()
    leave_journal(tmp_path / ".out.recshuf", [1, 1])
    with pytest.raises(ForeignFileError) as raised:
        LocalDestination(tmp_path / "out", is_directory=True).check(overwrite=overwrite)
    assert str(raised.value) == (
        f"{tmp_path}/out: holds {name.split('/')[0]!r}, which is not from an earlier run; remove it or choose another "
        "output"
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_shards_without_their_manifest_are_those_of_a_run_to_resume(tmp_path: Path, overwrite: bool):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "shard-00000.txt").touch()
    found = (tmp_path / "out").stat()
    leave_journal(tmp_path / ".out.recshuf", [found.st_dev, found.st_ino])
    with pytest.raises(
        OutputError, match=r"an unfinished run left .*/\.out\.recshuf; give --resume to complete"
    ):
        LocalDestination(tmp_path / "out", is_directory=True).check(overwrite=overwrite)


def leave_journal(folder: Path, commit: list[int]) -> None:
    """Leave what a run does that was killed when it put a folder of this device and inode in place."""
    folder.mkdir()
    for entry in ({"piles": None}, {"shard": 0}, {"commit": commit}):
        FileJournal(folder / "journal.jsonl").append(entry)


def test_a_directory_without_a_manifest_is_never_replaced(tmp_path: Path):
    (tmp_path / "data.txt").touch()
    with pytest.raises(OutputError, match=r"data\.txt"):
        LocalDestination(tmp_path, is_directory=True).check(overwrite=True)


def test_a_manifest_of_something_else_is_an_error(tmp_path: Path):
    for content in ["", "[]", "{}", '{"shards": 1}', '{"shards": [{}]}', "\xff", '{"shards": [1]}']:
        manifest_path(tmp_path).write_text(content, encoding="latin-1")
        with pytest.raises(OutputError, match="manifest"):
            LocalDestination(tmp_path, is_directory=True).check(overwrite=True)


def test_a_file_is_no_directory_and_a_folder_must_exist(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        LocalDestination(tmp_path / "file", is_directory=True).check(overwrite=True)
    with pytest.raises(OutputError, match="no such directory"):
        LocalDestination(tmp_path / "none" / "x.txt", is_directory=False).check(overwrite=False)


def test_nothing_can_lie_below_a_file(tmp_path: Path):
    (tmp_path / "file").touch()
    for given, is_directory in product(("file/below", "file/far/below"), (True, False)):
        with pytest.raises(OutputError, match=r"/file: is a file, not a directory; choose another output$"):
            LocalDestination(tmp_path / given, is_directory=is_directory).check(overwrite=True)


def test_a_mount_point_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a container's volume."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(type(tmp_path), "is_mount", lambda path: path.name == "out")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"give a directory inside it, such as .*/out/shuffled/"):
            LocalDestination(tmp_path / "out", is_directory=True).check(overwrite=overwrite)
        LocalDestination(tmp_path / "out" / "shuffled", is_directory=True).check(overwrite=overwrite)


def test_a_file_named_like_the_manifest_is_never_replaced(tmp_path: Path):
    manifest_path(tmp_path / "new").write_text("precious")
    with pytest.raises(OutputError, match=r"new\.recshuf\.json: is not a manifest"):
        LocalDestination(tmp_path / "new", is_directory=True).check(overwrite=False)


def test_a_manifest_that_cannot_be_read_says_why(tmp_path: Path):
    manifest_path(tmp_path / "new").mkdir()
    with pytest.raises(
        OutputError, match=r"new\.recshuf\.json: cannot be read: Is a directory; choose another"
    ):
        LocalDestination(tmp_path / "new", is_directory=True).check(overwrite=False)


def test_the_manifest_of_a_folder_that_is_gone_may_be_replaced(tmp_path: Path):
    write_run(tmp_path / "run", "a.txt")
    (tmp_path / "run" / "a.txt").unlink()
    LocalDestination(tmp_path / "run", is_directory=True).check(overwrite=False)
