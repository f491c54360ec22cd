"""A run whose tasks other processes run gives the bytes of a run in one process, however it is divided."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
import recshuf.run.resolve as resolve
from recshuf.engines.registry import ENGINES
from recshuf.job import pile_sizing
from tests.support.conversion_data import PAIRS
from tests.support.numbered_files import FORMATS, make_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.job.plan import Plan

COUNTS = (700, 200, 0, 950, 3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small inputs divided into many tasks, the largest read in parts; and the engines of the tests known."""
    whole = resolve.make_plan

    def plan_small(*arguments: Any) -> Plan:
        plan = whole(*arguments)
        return replace(plan, block_bytes=1000) if plan.resident_bytes == 0 else plan

    monkeypatch.setattr(resolve, "make_plan", plan_small)
    monkeypatch.setattr(pile_sizing, "REGION_BYTES", 40)
    for name, kind in (("processes", "ProcessEngine"), ("twins", "TwinEngine")):
        monkeypatch.setitem(ENGINES, name, f"tests.support.process_engine:{kind}")


def run(inputs: list[Path], output: Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"seed": 5, "shards": 3, "piles": 64, "memory": "100MB"} | options
    return recshuf.shuffle(inputs, f"{output}/", **given)


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("engine", ["processes", "twins"])
@pytest.mark.parametrize("name", FORMATS)
def test_tasks_write_the_same_bytes(tmp_path: Path, name: str, engine: str):
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    here = run(inputs, tmp_path / "here")
    there = run(inputs, tmp_path / "there", engine=engine)
    assert read_all(tmp_path / "there") == read_all(tmp_path / "here")
    manifests = [(tmp_path / f"{one}.recshuf.json").read_bytes() for one in ("here", "there")]
    assert manifests[0] == manifests[1]
    assert there.inputs == here.inputs
    assert there.shards == here.shards
    assert there.spilled_bytes > 0
    assert sorted(os.listdir(tmp_path)) == ["here", "here.recshuf.json", "in", "there", "there.recshuf.json"]
