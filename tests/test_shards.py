"""Destinations, staging and commit: nothing that exists is lost, nothing half-written is left."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from recshuf.errors import DiskFullError, OutputError
from recshuf.shards import MANIFEST_NAME, Destination, Staging, write_error


def write_run(folder: Path, *names: str, content: str = "old") -> None:
    """Make a directory look like the output of an earlier run."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(content)
    manifest = {"shards": [{"name": name} for name in names]}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))


def stage(destination: Destination, count: int = 2, content: str = "new") -> Staging:
    """Return a staging folder that holds shards."""
    staging = Staging(destination)
    for shard in range(count if destination.is_directory else 1):
        staging.path_of(shard, ".txt").write_text(content)
    return staging


def manifest_of(staging: Staging) -> dict[str, object]:
    return {"shards": [{"name": name} for name, _ in staging.list_files()]}


def read_tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# What an output means


def test_what_is_a_directory(tmp_path: Path):
    assert Destination.of(f"{tmp_path}/new/", wants_shards=False).is_directory
    assert Destination.of(str(tmp_path), wants_shards=False).is_directory
    assert Destination.of(f"{tmp_path}/new", wants_shards=True).is_directory
    assert not Destination.of(f"{tmp_path}/new", wants_shards=False).is_directory


@pytest.mark.parametrize("overwrite", [False, True])
def test_new_outputs_and_empty_directories_are_fine(tmp_path: Path, overwrite: bool):
    Destination(tmp_path / "new.txt", is_directory=False).check(overwrite=overwrite)
    Destination(tmp_path / "new", is_directory=True).check(overwrite=overwrite)
    Destination(tmp_path, is_directory=True).check(overwrite=overwrite)


def test_what_exists_is_refused_unless_it_may_be_replaced(tmp_path: Path):
    write_run(tmp_path / "run", "a.txt")
    (tmp_path / "file").touch()
    for destination in (
        Destination(tmp_path / "file", is_directory=False),
        Destination(tmp_path / "run", is_directory=True),
    ):
        with pytest.raises(OutputError, match="--overwrite"):
            destination.check(overwrite=False)
        destination.check(overwrite=True)


@pytest.mark.parametrize("name", ["foreign.txt", ".hidden", "sub/x"])
def test_files_that_no_run_wrote_are_never_replaced(tmp_path: Path, name: str):
    write_run(tmp_path, "a.txt")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(OutputError, match=name.split("/")[0]):
        Destination(tmp_path, is_directory=True).check(overwrite=True)


def test_a_directory_without_a_manifest_is_never_replaced(tmp_path: Path):
    (tmp_path / "data.txt").touch()
    with pytest.raises(OutputError, match=r"data\.txt"):
        Destination(tmp_path, is_directory=True).check(overwrite=True)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"shards": 1}', '{"shards": [{}]}', "\xff", '{"shards": [1]}']
)
def test_a_manifest_of_something_else_is_an_error(tmp_path: Path, content: str):
    (tmp_path / MANIFEST_NAME).write_text(content, encoding="latin-1")
    with pytest.raises(OutputError, match="manifest"):
        Destination(tmp_path, is_directory=True).check(overwrite=True)


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


def test_a_file_is_no_directory_and_a_folder_must_exist(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        Destination(tmp_path / "file", is_directory=True).check(overwrite=True)
    with pytest.raises(OutputError, match="no such directory"):
        Destination(tmp_path / "none" / "x.txt", is_directory=False).check(overwrite=False)


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
    staging.commit({})
    staging.remove()
    assert read_tree(tmp_path) == {"out.txt": "new"}


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    staging = stage(Destination(tmp_path / "link.txt", is_directory=False))
    staging.commit({})
    staging.remove()
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_the_files_of_an_earlier_run_are_replaced_all(tmp_path: Path):
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


def test_removing_what_was_not_committed_leaves_nothing(tmp_path: Path):
    staging = stage(Destination(tmp_path / "a" / "b" / "out", is_directory=True))
    staging.remove()
    staging.remove()
    assert os.listdir(tmp_path) == []


def test_shards_are_listed_in_order_beyond_five_digits(tmp_path: Path):
    staging = Staging(Destination(tmp_path / "out", is_directory=True))
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
        Staging(Destination(tmp_path / "out", is_directory=True))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so(tmp_path: Path, code: int):
    error = write_error(OSError(code, os.strerror(code)), tmp_path)
    assert isinstance(error, DiskFullError)
    assert "no space left" in str(error)
    assert str(tmp_path) in str(error)
