"""`--verify` of outputs in a bucket: compared after the commit, and what differs is an error that says what is there."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import AlreadyCompleteError, CheckError, RecshufError
from tests.conftest import Run
from tests.support.objects.object_outputs import AnyBucket, Output
from tests.support.processes.task_runs import SavedPlan, divide_small

slow = pytest.mark.slow
SHARD = r"(GET|HEAD) .*shard(-|%2D)00001"
"""Requests of who reads a shard; some encode hyphens."""
AGAIN = "is in place, and was not compared: continue with the same command and resume=True"


def damage(bucket: AnyBucket) -> None:
    """Change one of the lines that `write_lines` wrote."""
    shard = bucket.read("data/out/shard-00001.txt")
    bucket.put("data/out/shard-00001.txt", shard.replace(b"line", b"LINE", 1))


def after_commit(bucket: AnyBucket, strike: Callable[[], object]) -> None:
    """Have something happen when the manifest is put; what is asked for later comes after the commit."""
    bucket.proxy.call(bucket.requests["manifest"], strike)


def damage_after_commit(bucket: AnyBucket) -> None:
    after_commit(bucket, lambda: bucket.proxy.call(SHARD, lambda: damage(bucket)))


def test_a_set_that_differs_is_an_error_and_stays(bucket: AnyBucket, source: Path, call: Run):
    url = f"{bucket.url}/data/out/"
    damage_after_commit(bucket)
    done = call(source, "-o", url, "--shards", "4", "--verify")
    assert done.returncode == 1
    assert "verify: 1 record missing, 1 extra; " in done.stderr.decode()
    assert f"{url} is in place: do not use it, write it again with --overwrite" in done.stderr.decode()
    assert len(bucket.list_keys("data/")) == 5
    assert bucket.list_keys("data/.out.recshuf/") == bucket.list_uploads() == []


# Runs that die


@pytest.mark.parametrize(
    ("is_in_place", "is_damaged"),
    [
        (True, True),
        *(pytest.param(*one, marks=slow) for one in ((False, False), (True, False), (False, True))),
    ],
)
def test_a_run_that_dies_is_compared_when_it_is_resumed(
    bucket: AnyBucket, output: Output, is_in_place: bool, is_damaged: bool
):
    """Before its commit is completed, or before its output is read again."""
    if is_in_place:
        shards = SHARD.removesuffix("0001")
        refuse = partial(bucket.proxy.answer, shards, *bucket.refusal[:2], times=10**6)
        after_commit(bucket, refuse)
        with pytest.raises(RecshufError) as died:
            output.shuffle(verify=True)
        assert died.value.__notes__ == [f"{output.url} {AGAIN}"]
        bucket.proxy.clear()
        output.check()
        if is_damaged:
            damage(bucket)
    else:
        output.fail("complete", verify=True)
        if is_damaged:
            damage_after_commit(bucket)
    bucket.proxy.requests.clear()
    with pytest.raises(CheckError if is_damaged else AlreadyCompleteError) as told:
        output.shuffle(verify=True, resume=True)
    assert ("1 record missing, 1 extra" in str(told.value)) == is_damaged
    assert bucket.proxy.count(SHARD.replace("(GET|HEAD)", "GET")) > 0
    if not is_damaged:
        output.check()


# Tasks


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [True, False])
def test_the_task_that_commits_compares(
    bucket: AnyBucket, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
):
    """Also when it is run again."""
    divide_small(monkeypatch, block_bytes=3000)
    options: dict[str, Any] = {"verify": True, "shards": 2, "piles": 4, "seed": 5}
    run = SavedPlan(source, f"{bucket.url}/data/out/", temp_dir=tmp_path, **options)
    run.do_before_the_commit()
    if is_late:
        run.commit()
        damage(bucket)
    else:
        damage_after_commit(bucket)
    with pytest.raises(CheckError, match="is in place: do not use it"):
        run.commit()
