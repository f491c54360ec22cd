"""The work folder: one run at a time, a journal that may be damaged, and nothing lost of what a dead run left."""

from itertools import accumulate
from pathlib import Path

import pytest

from recshuf.errors import OutputError
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import journal_of, read_journal, run, run_and_die, write_journal
from tests.support.small_runs import read_files, spill


@pytest.fixture(autouse=True)
def spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    spill(monkeypatch)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Return three inputs, whose output of a seed is in `whole`."""
    inputs = make_inputs(tmp_path / "in", "text", (60, 40, 50))
    run(inputs, tmp_path / "whole")
    return inputs


def compare(folder: Path) -> None:
    assert read_files(folder / "out") == read_files(folder / "whole")
    assert not [*folder.glob(".*.recshuf")]


# One at a time


@pytest.mark.parametrize("name", ["precious.txt", "shards.txt"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, inputs: list[Path], name: str):
    (tmp_path / ".out.recshuf").mkdir()
    (tmp_path / ".out.recshuf" / name).write_text("precious")
    with pytest.raises(OutputError, match="not from an earlier run"):
        run(inputs, tmp_path / "out")
    assert (tmp_path / ".out.recshuf" / name).read_text() == "precious"


@pytest.mark.parametrize("name", ["precious", "recshuf-piles-1/../precious"])
def test_a_journal_cannot_have_other_folders_deleted(tmp_path: Path, inputs: list[Path], name: str):
    (tmp_path / "precious").mkdir()
    (tmp_path / "recshuf-piles-1").mkdir()
    write_journal(tmp_path / "out", [{"piles": str(tmp_path / name)}])
    run(inputs, tmp_path / "out")
    compare(tmp_path)
    assert (tmp_path / "precious").is_dir()


# The journal


@pytest.mark.parametrize(
    ("line", "cut", "lost"), [(0, 0, 2), (0, 300, 2), (0, -2, 2), (2, 1, 1), (2, 20, 1), (2, -1, 0)]
)
def test_a_journal_goes_on_on_a_new_line_or_is_begun_anew(
    tmp_path: Path, inputs: list[Path], line: int, cut: int, lost: int
):
    """A line is cut off, as a full disk or a kill leaves it: that of the header, or of a pile set."""
    run_and_die(2, inputs, tmp_path / "out")
    journal = journal_of(tmp_path / "out")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:line], lines[line][:cut]]))
    run_and_die(lost + 1, inputs, tmp_path / "out", resume=True)
    entries = read_journal(tmp_path / "out")
    assert entries[0]["job"]["pile_count"] == 4
    assert [entry["set"] for entry in entries[1:]] == [0, 1, 2]
    run(inputs, tmp_path / "out", resume=True)
    compare(tmp_path)


def test_every_damage_of_the_journal_is_noticed(tmp_path: Path, inputs: list[Path]):
    """A byte in each part of its lines: checksums, names, numbers and line ends."""
    run_and_die(4, inputs, tmp_path / "left")
    whole = read_files(tmp_path / ".left.recshuf")
    content = whole["journal.jsonl"]
    ends = [0, *accumulate(map(len, content.splitlines(keepends=True)))]
    places = {place for line in (0, 2, 4) for place in range(ends[line], ends[line + 1], 97)}
    for place in sorted(places | {end - 1 for end in ends[1:5]}):
        damaged = bytearray(content)
        damaged[place] ^= 1
        for name, data in (whole | {"journal.jsonl": bytes(damaged)}).items():
            path = tmp_path / ".out.recshuf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        run(inputs, tmp_path / "out", resume=True, overwrite=True)
        assert read_files(tmp_path / "out") == read_files(tmp_path / "whole"), place
