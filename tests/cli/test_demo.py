"""The demo does what it says, and says so in few lines."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.api import checks
from recshuf.cli import audit_commands
from tests.support.processes.command_line import assert_one_line

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


@pytest.mark.parametrize("has_pillow", [True, False])
def test_every_step_is_told_and_its_files_are_there(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch, has_pillow: bool
):
    monkeypatch.setattr(audit_commands, "ROWS_PER_LABEL", 1000)
    if not has_pillow:
        monkeypatch.setattr(audit_commands, "find_spec", lambda _: None)
    folder = tmp_path / ("demo" if has_pillow else os.fsdecode(b"demo\xff"))
    lines = os.fsdecode(call("demo", "-o", folder).stdout).splitlines()
    steps = [line for line in lines if line[0].isdigit()]
    shown = str(folder).encode("utf-8", "replace").decode()
    assert [line.split(".")[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert f"equal: {shown}/shuffled holds 2,000 records of 2 inputs" in steps[2]
    assert f"{shown}/shuffled looks uniformly random" in lines[-2]
    assert ("install recshuf[report]" in lines[-1]) != (folder / "picture.png").exists()
    assert (folder / "picture.png").exists() <= has_pillow
    for name, kinds in (("sorted", 1), ("shuffled", 2)):
        tables = [pq.read_table(pa.OSFile(os.fsencode(path))) for path in (folder / name).glob("*.parquet")]
        assert sum(table.num_rows for table in tables) == 2000
        assert all(len(table["label"].unique()) == kinds for table in tables)
        assert sorted(number for table in tables for number in table["id"].to_pylist()) == [*range(2000)]


@pytest.mark.parametrize("given", [("-o", "demo"), ()])
def test_a_demo_that_fails_names_its_folder_and_leaves_none(
    folder: Path, call: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
):
    def fill_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit_commands, "ROWS_PER_LABEL", 10)
    monkeypatch.setattr(checks, "verify", fill_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    done = call("demo", *given)
    assert done.returncode == 1
    assert_one_line(done.stderr, "demo", ": no space left for the output; free some, or choose another")
    assert os.listdir() == []
