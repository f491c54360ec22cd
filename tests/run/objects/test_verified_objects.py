"""`--verify` of outputs in a bucket: compared after the commit, and what differs is an error that says what is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.api import runs
from recshuf.errors import AlreadyCompleteError, CheckError, RecshufError
from recshuf.job.options import ENGINES
from recshuf.output.objects.stage import Uploads
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle, shuffle_locally
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

    import recshuf
    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket, Output

slow = pytest.mark.slow
COUNTS = (60, 50, 0, 70)
SHARD = r"(GET|HEAD) .*shard(-|%2D)00001"
"""Requests of who reads a shard; some encode hyphens."""
PASSES = ["scatter", "gather", "commit", "verify"]
AGAIN = "is in place, and was not compared: continue with the same command and resume=True"


def list_passes(report: recshuf.ShuffleReport | None) -> list[str]:
    assert report is not None
    return [one.name for one in report.passes]


def damage(bucket: AnyBucket) -> None:
    """Change one of the lines that `write_lines` wrote."""
    shard = bucket.read("data/out/shard-00001.txt")
    bucket.put("data/out/shard-00001.txt", shard.replace(b"line", b"LINE", 1))


def damage_after_commit(bucket: AnyBucket, request: str) -> None:
    """Change a shard before the first request of a kind that comes after the manifest."""
    manifest = bucket.requests["manifest"]
    bucket.proxy.call(manifest, lambda: bucket.proxy.call(request, lambda: damage(bucket)))


def fail_after_commit(bucket: AnyBucket) -> None:
    """Have all shards be denied after the commit."""

    def fail() -> None:
        bucket.proxy.answer(SHARD.removesuffix("0001"), *bucket.refusal[:2], times=10**6)

    bucket.proxy.call(bucket.requests["manifest"], fail)


@pytest.mark.parametrize(
    "options",
    [
        {"to": "parquet", "provenance": True},
        *(pytest.param(one, marks=slow) for one in ({}, {"to": "parquet"}, {"head_count": 100})),
    ],
)
def test_a_set_is_compared_after_the_commit(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, options: dict[str, Any]
):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **options)
    report = shuffle(inputs, f"{bucket.url}/data/out/", verify=True, **options)
    assert list_passes(report) == PASSES
    check_whole(bucket, expected)
    assert os.listdir(scratch) == []


def test_a_set_that_differs_is_an_error_and_stays(bucket: AnyBucket, source: Path, call: Run):
    url = f"{bucket.url}/data/out/"
    damage_after_commit(bucket, SHARD)
    done = call(source, "-o", url, "--shards", "4", "--verify")
    assert done.returncode == 1
    assert "verify: 1 records missing, 1 extra; " in done.stderr.decode()
    assert f"{url} is in place: do not use it, write it again with --overwrite" in done.stderr.decode()
    assert len(bucket.list_keys("data/")) == 5
    assert bucket.list_keys("data/.out.recshuf/") == bucket.list_uploads() == []


# Runs that die


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("is_in_place", "is_damaged"),
    [
        (True, True),
        *(pytest.param(*one, marks=slow) for one in ((False, False), (True, False), (False, True))),
    ],
)
def test_a_run_that_dies_is_compared_when_it_is_resumed(
    bucket: AnyBucket,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
    is_in_place: bool,
    is_damaged: bool,
):
    """Before its commit is completed, or before its output is read again."""
    url = output.url
    if is_in_place:
        fail_after_commit(bucket)
        with pytest.raises(RecshufError) as died:
            shuffle(output.source, url, verify=True)
        assert died.value.__notes__ == [f"{url} {AGAIN}"]
        bucket.proxy.clear()
        output.check()
        if is_damaged:
            damage(bucket)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(Uploads, "_complete", interrupt)
            with pytest.raises(KeyboardInterrupt):
                shuffle(output.source, url, verify=True)
        if is_damaged:
            damage_after_commit(bucket, SHARD)
    bucket.proxy.requests.clear()
    with pytest.raises(CheckError if is_damaged else AlreadyCompleteError) as told:
        shuffle(output.source, url, verify=True, resume=True)
    assert ("1 records missing, 1 extra" in str(told.value)) == is_damaged
    assert bucket.proxy.count(SHARD.replace("(GET|HEAD)", "GET")) > 0
    if not is_damaged:
        output.check()


# Tasks


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that all machines share."""
    divide_small(monkeypatch, block_bytes=3000)
    monkeypatch.setitem(ENGINES, "threads", "tests.support.processes.task_runs:ThreadEngine")
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [True, pytest.param(False, marks=slow)])
def test_the_task_that_commits_compares(bucket: AnyBucket, source: Path, shared: Path, is_late: bool):
    """Also when it is run again."""
    options: dict[str, Any] = {"verify": True, "shards": 2, "piles": 4, "seed": 5}
    run = runs.plan_tasks(source, f"{bucket.url}/data/out/", temp_dir=shared, **options)[1]
    (last,) = runs.list_tasks(run, "commit")
    for number in range(last):
        runs.run_task(run, number)
    if is_late:
        assert list_passes(runs.run_task(run, last)) == PASSES
        damage(bucket)
    else:
        damage_after_commit(bucket, SHARD)
    with pytest.raises(CheckError, match="is in place: do not use it"):
        runs.run_task(run, last)
