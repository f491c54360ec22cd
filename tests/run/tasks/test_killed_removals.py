"""A run that is killed while it removes its remains, or a folder of one that is empty: what comes next removes the rest."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = (60, 40)
OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 16, "memory": "300MB", "shards": 2}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400, region_bytes=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}], ids=["resume", "overwrite"])
def test_an_empty_work_folder_is_removed_without_a_word(
    folder: Path, options: dict[str, Any], is_complete: bool, recwarn: pytest.WarningsRecorder
):
    (path,) = make_inputs(folder / "in", "text", COUNTS[:1])
    if is_complete:
        recshuf.shuffle(path, f"{folder}/out/", **OPTIONS)
    (folder / ".out.recshuf").mkdir(mode=0o700)
    with pytest.raises(AlreadyCompleteError) if is_complete and "resume" in options else nullcontext():
        recshuf.shuffle(path, f"{folder}/out/", **OPTIONS, **options)
    assert sorted(os.listdir(folder)) == [".out.recshuf.json", "in", "out"]
    assert not recwarn.list
    shutil.rmtree(folder / "out")
