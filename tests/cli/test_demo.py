"""The demo does what it says, and says so in few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from recshuf.cli import demo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(demo, "ROWS_PER_LABEL", 1000)
    return 2000


def run(folder: Path) -> list[str]:
    lines: list[str] = []
    folder.mkdir()
    demo.run_demo(folder, lines.append)
    return [line.replace(str(folder), "DIR") for line in lines]


def test_every_step_is_told_and_its_files_are_there(tmp_path: Path, few_rows: int):
    lines = run(tmp_path / "demo")
    steps = [line for line in lines if line[0].isdigit()]
    assert [line.split(".")[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert "equal: DIR/shuffled holds 2,000 records of 2 inputs" in steps[2]
    assert "DIR/shuffled looks uniformly random" in lines[-2]
    for name, kinds in (("sorted", 1), ("shuffled", 2)):
        tables = [pq.read_table(path) for path in (tmp_path / "demo" / name).glob("*.parquet")]
        assert sum(table.num_rows for table in tables) == few_rows
        assert all(len(table["label"].unique()) == kinds for table in tables)


def test_without_pillow_the_demo_goes_on(tmp_path: Path, few_rows: int, monkeypatch: pytest.MonkeyPatch):
    assert few_rows
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert "install recshuf[report]" in run(tmp_path / "demo")[-1]


def test_no_folder_is_written_over(tmp_path: Path, call: Run):
    done = call("demo", "-o", tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"exists" in done.stderr
