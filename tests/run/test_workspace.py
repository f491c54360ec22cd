"""Room on disk is compared with the plan before anything is written."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

import recshuf
import recshuf.run.open_run as space
from recshuf.errors import DiskFullError
from recshuf.system.units import format_size
from tests.support.numbered_files import FORMATS, make_inputs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", FORMATS)
def test_an_output_that_does_not_fit_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", name, [500])
    needed = inputs[0].stat().st_size
    monkeypatch.setattr(space, "free_bytes", lambda _: needed - 1)
    message = rf"{re.escape(str(tmp_path))}\S*: .*{format_size(needed)}.*{format_size(needed - 1)} are free"
    with pytest.raises(DiskFullError, match=message):
        recshuf.shuffle(inputs, f"{tmp_path}/out/")
    assert os.listdir(tmp_path) == ["in"]
    recshuf.shuffle(inputs, f"{tmp_path}/out/", no_space_check=True)
    monkeypatch.setattr(space, "free_bytes", lambda _: needed)
    recshuf.shuffle(inputs, f"{tmp_path}/out/", overwrite=True)


def test_spilled_records_count_where_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """80 MB at a limit of 64 MB: on one file system both count, on two each for itself."""
    (tmp_path / "in.txt").write_bytes((b"x" * 99 + b"\n") * 800_000)
    plan = recshuf.plan(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    assert plan.spilled_bytes > 0
    monkeypatch.setattr(space, "free_bytes", lambda _: plan.peak_disk_bytes - 1)
    with pytest.raises(DiskFullError, match="spilled records and the output: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    monkeypatch.setattr(space, "free_bytes", lambda _: plan.spilled_bytes - 1)
    with pytest.raises(DiskFullError, match="spilled records: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt.zst", memory="64MB")
    assert os.listdir(tmp_path) == ["in.txt"]


def test_output_of_another_format_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", "jsonl", [500])
    monkeypatch.setattr(space, "free_bytes", lambda _: 1)
    recshuf.shuffle(inputs, tmp_path / "out.parquet")


def test_room_that_nobody_knows_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", "text", [500])
    monkeypatch.setattr(space, "free_bytes", lambda _: None)
    recshuf.shuffle(inputs, tmp_path / "out.txt")
