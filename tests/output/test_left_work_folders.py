"""What an earlier run left may be damaged: its journal, and what a complete output holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.local.log import FileJournal, read_journal
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import run, run_and_die

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = (300, 200, 250)


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    return inputs


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
