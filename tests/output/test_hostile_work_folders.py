"""What an earlier run left is not trusted: links and pipes in a work folder are made again or refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.local.log import FileJournal, read_journal
from recshuf.output.local.stage import ShardFiles
from recshuf.output.manifest import manifest_path
from recshuf.system.paths import is_sole_file, open_sole
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import run, run_and_die

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNTS = (300, 200, 250)


def replace_by_symlink(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_hard_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.hardlink_to(elsewhere)


def replace_by_pipe(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    os.mkfifo(path)


REPLACE = [replace_by_symlink, replace_by_hard_link, replace_by_pipe]


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    return inputs


@pytest.mark.parametrize("replace", REPLACE)
def test_a_finished_shard_that_is_no_file_of_its_own_is_made_again(
    tmp_path: Path, inputs: list[Path], replace: Callable[[Path, Path], None]
):
    run_and_die(2, inputs, tmp_path / "out")
    replace(tmp_path / ".out.recshuf" / "shards" / "shard-00000.txt", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    run(inputs, tmp_path / "out", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    assert all(is_sole_file(path) for path in (tmp_path / "out").iterdir())
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize(("replace", "resume"), [*zip(REPLACE, (False, True, True), strict=True)])
def test_a_journal_that_is_no_file_of_its_own_is_refused(
    tmp_path: Path, inputs: list[Path], replace: Callable[[Path, Path], None], resume: bool
):
    run_and_die(2, inputs, tmp_path / "out")
    replace(tmp_path / ".out.recshuf" / "journal.jsonl", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(OutputError, match=r"journal\.jsonl"):
        run(inputs, tmp_path / "out", resume=resume)
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize("name", ["shards", "piles", "quarantine"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, inputs: list[Path], name: str):
    run_and_die(2, inputs, tmp_path / "out")
    place = tmp_path / ".out.recshuf" / name
    (tmp_path / "elsewhere").mkdir()
    if place.exists():
        place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=name):
        run(inputs, tmp_path / "out", resume=True)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_manifest_that_is_a_link_is_written_anew(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
):
    def die(_: ShardFiles) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "place_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            run(inputs, tmp_path / "out")
    written = tmp_path / ".out.recshuf" / "shards.recshuf.json"
    written.rename(tmp_path / "elsewhere")
    written.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"shards\.recshuf\.json"):
        run(inputs, tmp_path / "out", resume=True)
    written.unlink()
    run(inputs, tmp_path / "out", resume=True)
    manifests = [manifest_path(tmp_path / name).read_bytes() for name in ("out", "whole")]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, 1), slice(0, 0)])
def test_a_journal_that_lost_lines_is_no_internal_error(tmp_path: Path, inputs: list[Path], kept: slice):
    run_and_die(2, inputs, tmp_path / "out")
    journal = tmp_path / ".out.recshuf" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[kept]))
    run(inputs, tmp_path / "out", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_a_journal_without_its_header_has_no_entries(tmp_path: Path):
    journal = FileJournal(tmp_path / "journal.jsonl")
    for entry in ({"shard": 1}, {"set": 1}, {"commit": [1, 2]}):
        journal.note(entry)
        assert read_journal(journal.path) == []
        journal.path.unlink()
    journal.note({"pile_count": 1})
    journal.note({"shard": 1})
    assert read_journal(journal.path) == [{"pile_count": 1}, {"shard": 1}]


def test_only_a_file_with_one_name_is_opened(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x")
    os.close(open_sole(tmp_path / "file", os.O_RDONLY))
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "none"):
        assert not is_sole_file(tmp_path / name)
        with pytest.raises(OSError, match=name):
            open_sole(tmp_path / name, os.O_RDONLY)
    (tmp_path / "second").hardlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="one name"):
        open_sole(tmp_path / "file", os.O_RDONLY)


# A run that is complete


@pytest.mark.parametrize(("output", "options"), [("out/", {"shards": 3}), ("out.txt", {})])
def test_a_complete_run_has_nothing_to_resume(
    tmp_path: Path, inputs: list[Path], output: str, options: dict[str, Any]
):
    recshuf.shuffle(inputs, f"{tmp_path}/{output}", seed=5, **options)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(recshuf.errors.AlreadyCompleteError, match="nothing to resume"):
        recshuf.shuffle(inputs, f"{tmp_path}/{output}", seed=5, resume=True, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_its_manifest_does_not_fit_is_not_complete(tmp_path: Path, inputs: list[Path]):
    run(inputs, tmp_path / "out")
    with (tmp_path / "out" / "shard-00001.txt").open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(OutputError, match="overwrite=True"):
        run(inputs, tmp_path / "out", resume=True)
