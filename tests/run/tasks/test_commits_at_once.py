"""Two commits of one plan at once: one of them ends in one line, and harms nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import OutputError
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle_locally
from tests.support.processes.task_runs import SavedPlan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_server import Bucket, ProxiedRequest

OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 4, "memory": "300MB", "shards": 2}


def die_in_commit(bucket: Bucket, run: SavedPlan, claim: int) -> None:
    """Have the commit of a plan die when it claims the output under a number: the store does nothing more for it."""

    def strike(request: ProxiedRequest) -> bool:
        bucket.proxy.answer("", 400, "ExpiredToken", 10**6)
        return request.answer(400, "ExpiredToken")

    bucket.proxy.add(rf"PUT .*/0000{claim}\.run", strike, 1)
    with pytest.raises(OutputError, match="expired"):
        run.commit()
    bucket.proxy.clear()


@pytest.mark.parametrize("moment", ["begin", pytest.param("claim", marks=pytest.mark.slow)])
def test_the_commit_that_comes_second_is_told_only_to_wait(
    tmp_path: Path, s3_bucket: Bucket, call: Run, moment: str
):
    """The other one takes over when it begins to continue a third one, or to put the output in place."""
    inputs = make_inputs(tmp_path / "in", "text", (30, 20))
    run = SavedPlan(inputs, f"{s3_bucket.url}/data/out/", temp_dir=f"{s3_bucket.url}/tmp", **OPTIONS)
    (tmp_path / "plan.json").write_text(json.dumps({"run": run.run}))
    run.do_before_the_commit()
    if moment == "begin":
        die_in_commit(s3_bucket, run, 2)
    s3_bucket.proxy.call(s3_bucket.requests["claim"], lambda: die_in_commit(s3_bucket, run, 3))
    told = call("task", tmp_path / "plan.json", str(run.last))
    assert told.returncode == 1
    assert told.stderr.decode() == (
        f"recshuf: error: {s3_bucket.url}/data/.out.recshuf/: another run is writing this output, or has taken it over; "
        "wait for its end\n"
    )
    run.commit()
    check_whole(s3_bucket, shuffle_locally(inputs, tmp_path / "local", **OPTIONS))
