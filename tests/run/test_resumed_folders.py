"""Attempts of a run may keep pile sets in different folders: all are read, named and removed."""

import os
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import DiskFullError, OutputError, UsageError
from recshuf.piles.set_folder import SetFolder
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import run, run_and_die
from tests.support.small_runs import Listener, read_files, spill

COUNTS = (300, 200, 100, 250)


@pytest.fixture(autouse=True)
def spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    spill(monkeypatch)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    for name in ("t1", "t2"):
        (tmp_path / name).mkdir()
    return make_inputs(tmp_path / "in", "text", COUNTS)


def list_sets(folder: Path) -> set[Path]:
    return set(folder.rglob("set-*.piles"))


def choose(tmp_path: Path, name: str | None) -> dict[str, Any]:
    return {} if name is None else {"temp_dir": tmp_path / name}


@pytest.mark.parametrize(
    ("attempts", "last"),
    [
        (["t1", "t2", "t1"], "t2"),
        (["t1", None, "t2"], None),
        ([None, "t1", None], "t2"),
        (["t1", "."], "t2"),
    ],
)
def test_each_attempt_writes_to_its_own_folder_and_reads_all(
    tmp_path: Path, inputs: list[Path], attempts: list[str | None], last: str | None
):
    """One without the option writes where the last one did, the first one beside the output."""
    run(inputs, tmp_path / "whole")
    expected = read_files(tmp_path / "whole")
    before: set[Path] = set()
    written = tmp_path / ".out.recshuf"
    for number, name in enumerate(attempts):
        if name is not None:
            written = tmp_path / ".out.recshuf" if name == "." else tmp_path / name
        run_and_die(1, inputs, tmp_path / "out", resume=number > 0, **choose(tmp_path, name))
        after = list_sets(tmp_path)
        assert before < after
        assert all(path.is_relative_to(written) for path in after - before)
        before = after
    kept = {path: path.stat().st_ino for path in before}
    moments: list[set[Path]] = []
    heard = Listener(
        lambda: moments.append(
            {path for path, inode in kept.items() if path.exists() and path.stat().st_ino == inode}
        )
    )
    run(inputs, tmp_path / "out", resume=True, progress=heard, **choose(tmp_path, last))
    assert before in moments
    assert heard.warnings == []
    assert read_files(tmp_path / "out") == expected
    assert os.listdir(tmp_path / "t1") == os.listdir(tmp_path / "t2") == []
    assert not (tmp_path / ".out.recshuf").exists()


def test_a_folder_that_is_gone_is_made_up_for(tmp_path: Path, inputs: list[Path]):
    run(inputs, tmp_path / "whole")
    run_and_die(2, inputs, tmp_path / "out", temp_dir=tmp_path / "t1")
    (tmp_path / "t1").rename(tmp_path / "moved")
    run(inputs, tmp_path / "out", resume=True)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("name", ["t2", None])
def test_a_full_disk_is_named_as_it_is_written(
    tmp_path: Path, inputs: list[Path], name: str | None, monkeypatch: pytest.MonkeyPatch
):
    run_and_die(1, inputs, tmp_path / "out", temp_dir=tmp_path / "t1")

    def fail(scratch: SetFolder, name: str | None = None) -> tuple[int, Path]:
        raise scratch.explain(OSError(28, os.strerror(28)))

    monkeypatch.setattr(SetFolder, "create", fail)
    with pytest.raises(DiskFullError) as raised:
        run(inputs, tmp_path / "out", resume=True, **choose(tmp_path, name))
    assert str(raised.value).startswith(f"{tmp_path / (name or 't1')}: no space left for spilled records")


def test_all_folders_to_delete_are_named(tmp_path: Path, inputs: list[Path]):
    """By a run that is not to continue, and by one that fails; a new run can begin when they are gone."""
    for number, name in enumerate(("t1", "t2")):
        run_and_die(1, inputs, tmp_path / "out", temp_dir=tmp_path / name, resume=number > 0)
    folders = [*(tmp_path / "t1").iterdir(), *(tmp_path / "t2").iterdir()]
    removal, before = f"delete that folder and {folders[0]} and {folders[1]}", read_files(tmp_path)
    with pytest.raises(OutputError, match="finished parts: 2; ") as refused:
        run(inputs, tmp_path / "out")
    assert str(refused.value).endswith(f", or {removal} to start anew")
    assert read_files(tmp_path) == before
    with pytest.raises(UsageError, match="give it as before, or start anew\n") as other:
        run(inputs, tmp_path / "out", shards=4, resume=True)
    assert other.value.__notes__ == [
        f"finished parts are kept in {tmp_path / '.out.recshuf'}: to start anew, {removal}"
    ]


@pytest.mark.parametrize(
    ("kind", "was", "now", "named"),
    [
        ("text", {}, {"to": "parquet"}, "to was text .* is parquet"),
        ("text", {}, {"format": "hdf5"}, "format was text .* is hdf5"),
        ("parquet", {"columns": "id"}, {"columns": "none"}, r"columns was \['id'\] .* is \['none'\]"),
        ("parquet", {"columns": "id"}, {}, r"columns was \['id'\] .* is not given"),
        ("parquet", {"columns": "id"}, {"columns": "id", "datasets": "x"}, r"datasets was not given .* is \['x'\]"),
    ],
)  # fmt: skip
def test_what_differs_is_named_before_what_is_wrong_with_it_or_follows_from_it(
    tmp_path: Path, kind: str, was: dict[str, str], now: dict[str, str], named: str
):
    """Not the libraries and defaults of another format, nor that the inputs are not in it or do not allow an option."""
    inputs = make_inputs(tmp_path / "in", kind, COUNTS)
    run_and_die(1, inputs, tmp_path / "out", **was)
    if kind == "text":
        for path in inputs:
            path.write_bytes(b'a,b\n"c')
    with pytest.raises(UsageError, match=f"^resume=True: the {named}; give it as before, or start anew"):
        run(inputs, tmp_path / "out", resume=True, **now)


@pytest.mark.parametrize("resume", [False, True])
def test_what_a_process_has_begun_to_remove_is_not_continued(
    tmp_path: Path, inputs: list[Path], resume: bool
) -> None:
    """Some of it may be gone, or has failed a check."""
    run(inputs, tmp_path / "whole", seed=2)
    run_and_die(5, inputs, tmp_path / "out", seed=1)
    (tmp_path / ".out.recshuf" / "ended").touch()
    run(inputs, tmp_path / "out", seed=2, resume=resume)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert not (tmp_path / ".out.recshuf").exists()
