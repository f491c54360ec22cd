"""Fixtures of runs that are divided into tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small inputs divided into some tasks."""
    divide_small(monkeypatch, block_bytes=4400)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "jsonl", (300, 200, 0, 250))


@pytest.fixture(params=["out/", "out.jsonl", pytest.param("bucket", marks=pytest.mark.slow)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where runs write several shards, one file, or objects."""
    (tmp_path / "data").mkdir()
    if request.param == "bucket":
        bucket: Bucket = request.getfixturevalue("s3_bucket")
        return f"{bucket.url}/data/out/"
    return f"{tmp_path}/data/{request.param}"
