"""`--verify` of outputs in a bucket: compared after the commit, and what differs is an error that says what is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.audit.verify import verification
from recshuf.errors import AlreadyCompleteError, CheckError, OutputError
from recshuf.job.options import ENGINES
from recshuf.output.objects.stage import UploadTransaction
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle, shuffle_locally, write_lines
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket

COUNTS = (300, 200, 0, 250)
PASSES = ["scatter", "gather", "commit", "verify"]
AGAIN = "is in place, and was not compared: continue with the same command and resume=True"


def list_passes(report: recshuf.ShuffleReport) -> list[str]:
    return [one.name for one in report.passes]


def damage(bucket: AnyBucket) -> None:
    """Change one of the lines that `write_lines` wrote."""
    shard = bucket.read("data/out/shard-00001.txt")
    bucket.put("data/out/shard-00001.txt", shard.replace(b"line", b"LINE", 1))


@pytest.fixture
def damaged(bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch) -> AnyBucket:
    """Return a bucket in which a shard changes after the commit."""
    commit = UploadTransaction.commit

    def commit_and_damage(transaction: UploadTransaction, manifest: Any) -> None:
        commit(transaction, manifest)
        damage(bucket)

    monkeypatch.setattr(UploadTransaction, "commit", commit_and_damage)
    return bucket


OPTIONS: dict[str, dict[str, Any]] = {
    "same format": {},
    "conversion": {"to": "parquet"},
    "sample": {"head_count": 100},
    "provenance": {"to": "parquet", "provenance": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_set_is_compared_after_the_commit(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, options: dict[str, Any]
) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **options)
    report = shuffle(inputs, f"{bucket.url}/data/out/", verify=True, **options)
    assert list_passes(report) == PASSES
    check_whole(bucket, expected)
    assert os.listdir(scratch) == []


def test_one_object_is_compared_after_the_commit(tmp_path: Path, bucket: AnyBucket) -> None:
    source = write_lines(tmp_path / "in.txt")
    report = shuffle(source, f"{bucket.url}/out.txt.zst", shards=None, verify=True)
    assert list_passes(report) == PASSES
    assert bucket.list_keys() == ["out.txt.zst"]


@pytest.mark.parametrize("options", [{}, {"epoch": 1}, {"epoch": 2, "reshuffle": "exact"}])
def test_what_is_gathered_is_compared_with_the_store(
    tmp_path: Path, bucket: AnyBucket, options: dict[str, Any]
) -> None:
    source = write_lines(tmp_path / "in.txt")
    recshuf.scatter(source, tmp_path / "store", seed=5)
    source.unlink()
    report = recshuf.gather(tmp_path / "store", f"{bucket.url}/data/out/", shards=4, verify=True, **options)
    assert list_passes(report) == PASSES
    assert bucket.list_uploads() == []


def test_a_set_that_differs_is_an_error_and_stays(tmp_path: Path, damaged: AnyBucket) -> None:
    source = write_lines(tmp_path / "in.txt")
    url = f"{damaged.url}/data/out/"
    with pytest.raises(
        CheckError,
        match=f"^verify: 1 records missing, 1 extra; .*checksum.*; such as record .*; {url} is in place: do not use it, "
        "write it again with overwrite=True, and report this as a fault$",
    ):
        shuffle(source, url, verify=True)
    assert len(damaged.list_keys("data/")) == 5
    assert damaged.list_keys("data/.out.recshuf/") == damaged.list_uploads() == []


def test_a_store_that_differs_is_an_error(tmp_path: Path, damaged: AnyBucket) -> None:
    recshuf.scatter(write_lines(tmp_path / "in.txt"), tmp_path / "store", seed=5)
    with pytest.raises(CheckError, match=r"1 records missing, 1 extra; .* is in place: do not use it"):
        recshuf.gather(tmp_path / "store", f"{damaged.url}/data/out/", shards=4, verify=True)


@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_the_command_fails_if_a_set_differs(tmp_path: Path, damaged: AnyBucket, call: Run) -> None:
    source = write_lines(tmp_path / "in.txt")
    done = call(source, "-o", f"{damaged.url}/data/out/", "--shards", "4", "--verify")
    assert done.returncode == 1
    assert b"is in place: do not use it, write it again with --overwrite" in done.stderr


# Runs that die


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["_complete", "verify_job"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_run_that_dies_is_compared_when_it_is_resumed(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, step: str, is_damaged: bool
) -> None:
    source = write_lines(tmp_path / "in.txt")
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction if step == "_complete" else verification, step, interrupt)
        with pytest.raises(KeyboardInterrupt) as died:
            shuffle(source, f"{bucket.url}/data/out/", verify=True)
    was_in_place = any(AGAIN in note for note in died.value.__notes__)
    assert was_in_place == (step == "verify_job")
    if not is_damaged:
        compared: list[Any] = []
        verify = verification.verify_job
        monkeypatch.setattr(verification, "verify_job", lambda *given: compared.append(1) or verify(*given))
        with pytest.raises(AlreadyCompleteError):
            shuffle(source, f"{bucket.url}/data/out/", verify=True, resume=True)
        assert compared
        check_whole(bucket, shuffle_locally(source, tmp_path / "local"))
        return
    complete = UploadTransaction._complete

    def complete_and_damage(transaction: UploadTransaction, claim: Any) -> None:
        complete(transaction, claim)
        damage(bucket)

    if was_in_place:
        damage(bucket)
    monkeypatch.setattr(UploadTransaction, "_complete", complete_and_damage)
    with pytest.raises(CheckError, match="1 records missing, 1 extra"):
        shuffle(source, f"{bucket.url}/data/out/", verify=True, resume=True)


def test_an_output_that_cannot_be_read_is_not_compared(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.txt")

    def fail(*_: Any) -> None:
        raise OutputError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(verification, "verify_job", fail)
        with pytest.raises(OutputError, match="no answer") as caught:
            shuffle(source, f"{bucket.url}/data/out/", verify=True)
    assert caught.value.__notes__ == [f"{bucket.url}/data/out/ {AGAIN}"]
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"))


# Tasks


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that all machines share."""
    divide_small(monkeypatch, block_bytes=3000)
    monkeypatch.setitem(ENGINES, "threads", "tests.support.processes.task_runs:ThreadEngine")
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_what_tasks_write_is_compared(tmp_path: Path, bucket: AnyBucket, shared: Path, place: str) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", piles=64)
    temp_dir = shared if place == "folder" else f"{bucket.url}/tmp/"
    options = {"engine": "threads", "piles": 64, "temp_dir": temp_dir}
    report = shuffle(inputs, f"{bucket.url}/data/out/", verify=True, **options)
    assert list_passes(report) == PASSES
    check_whole(bucket, expected)
    assert os.listdir(shared) == []


def save_tasks(tmp_path: Path, bucket: AnyBucket, shared: Path) -> dict[str, Any]:
    """Return a plan, all of whose tasks but the commit have been run."""
    options: dict[str, Any] = {"verify": True, "shards": 4, "piles": 64, "seed": 5}
    source = write_lines(tmp_path / "in.txt")
    run = runs.plan_tasks(source, f"{bucket.url}/data/out/", temp_dir=shared, **options)[1]
    for number in range(runs.list_tasks(run, "commit")[0]):
        runs.run_task(run, number)
    return run


def test_the_task_that_commits_compares(tmp_path: Path, bucket: AnyBucket, shared: Path) -> None:
    run = save_tasks(tmp_path, bucket, shared)
    (last,) = runs.list_tasks(run, "commit")
    report = runs.run_task(run, last)
    assert report is not None
    assert list_passes(report) == PASSES
    damage(bucket)
    with pytest.raises(CheckError, match="is in place: do not use it"):
        runs.run_task(run, last)


def test_a_commit_whose_output_differs_is_an_error(tmp_path: Path, damaged: AnyBucket, shared: Path) -> None:
    run = save_tasks(tmp_path, damaged, shared)
    with pytest.raises(CheckError, match=r"1 records missing, 1 extra; .* is in place: do not use it"):
        runs.run_task(run, runs.list_tasks(run, "commit")[0])
