"""Formats that are no lines and no Parquet: tasks of a saved plan write the bytes of a run in one process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.formats.sample_folders import KINDS, make_folder
from tests.support.output_trees import list_shards
from tests.support.processes.task_runs import SavedPlan, shuffle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_write_what_one_process_writes(tmp_path: Path, kind: str) -> None:
    options = make_folder(tmp_path / "in", kind)
    shuffle(tmp_path / "in", tmp_path / "one", **options)
    given = {"seed": 5, "piles": 64, "memory": "300MB", "shards": 3, "workers": 1} | options
    plan = SavedPlan(tmp_path / "in", f"{tmp_path}/tasks/", engine="tasks", **given)
    plan.run = json.loads(json.dumps(plan.run))
    assert len(plan.list("scatter")) > 1
    plan.do_all()
    one, tasks = (
        {path.name: path.read_bytes() for path in list_shards(tmp_path / name)} for name in ("one", "tasks")
    )
    assert len(one) == 3
    assert tasks == one
