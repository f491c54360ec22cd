"""Two commits of one plan at once: one of them ends in one line, and harms nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.api import runs
from recshuf.output.objects.stage import UploadTransaction
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle_locally
from tests.support.processes.killed_runs import Killed
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_server import Bucket

OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 16, "memory": "300MB", "shards": 2}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400, region_bytes=100)


def die_in_commit(run: dict[str, Any]) -> None:
    """Have the commit of a plan die when its shards are noted."""

    def die(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UploadTransaction, "commit", die)
        patch.setattr(UploadTransaction, "remove", UploadTransaction.release)
        with pytest.raises(Killed):
            runs.run_task(run, *runs.list_tasks(run, "commit"))


@pytest.mark.parametrize("moment", ["begin", pytest.param("claim", marks=pytest.mark.slow)])
def test_the_commit_that_comes_second_is_told_only_to_wait(
    tmp_path: Path, s3_bucket: Bucket, call: Run, moment: str
):
    """The other one takes over when it begins to continue a third one, or to put the output in place."""
    inputs = make_inputs(tmp_path / "in", "text", (60, 40))
    run = runs.plan_tasks(inputs, f"{s3_bucket.url}/data/out/", temp_dir=f"{s3_bucket.url}/tmp", **OPTIONS)[1]
    (tmp_path / "plan.json").write_text(json.dumps({"run": run}))
    (last,) = runs.list_tasks(run, "commit")
    for number in range(last):
        runs.run_task(run, number)
    if moment == "begin":
        die_in_commit(run)
    s3_bucket.proxy.call(s3_bucket.requests["claim"], lambda: die_in_commit(run))
    told = call("task", tmp_path / "plan.json", str(last))
    assert told.returncode == 1
    assert told.stderr.decode() == (
        f"recshuf: error: {s3_bucket.url}/data/.out.recshuf/: another run is writing this output, or has taken it over; "
        "wait for its end\n"
    )
    runs.run_task(run, last)
    check_whole(s3_bucket, shuffle_locally(inputs, tmp_path / "local", **OPTIONS))
