"""The prefix for spilled records: refused before a run begins if it cannot be used, and no obstacle afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import OutputError, UsageError
from recshuf.output.objects.stage import UploadTransaction
from tests.support.objects.object_outputs import SHARDS, check_whole, shuffle, shuffle_locally

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket


def miss(bucket: AnyBucket) -> str:
    """Return a prefix in a bucket of the same store that does not exist."""
    return f"{bucket.url.partition('://')[0]}://no-such-bucket/tmp/"


MISSING = r"^\w+://no-such-bucket: there is no such (bucket|container); create it first$"


@pytest.mark.parametrize("resume", [False, True])
def test_a_missing_bucket_is_found_before_the_run_begins(
    bucket: AnyBucket, source: Path, tmp_path: Path, scratch: Path, resume: bool
) -> None:
    for output in (f"{bucket.url}/data/out/", f"{tmp_path}/out/"):
        with pytest.raises(OutputError, match=MISSING) as caught:
            shuffle(source, output, temp_dir=miss(bucket), resume=resume)
        assert not hasattr(caught.value, "__notes__")
    assert bucket.proxy.count("PUT|POST") == 0
    check_whole(bucket, {})
    assert set(tmp_path.iterdir()) == {source, scratch}
    shuffle(source, f"{bucket.url}/data/out/", temp_dir=f"{bucket.url}/tmp/")
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"))


def test_a_missing_bucket_is_found_by_plans(bucket: AnyBucket, source: Path) -> None:
    for plan in (recshuf.plan, runs.plan_tasks):
        with pytest.raises(OutputError, match=MISSING):
            plan(source, f"{bucket.url}/data/out/", shards=SHARDS, temp_dir=miss(bucket))


def test_a_missing_bucket_is_found_by_tasks_before_they_leave_anything(
    bucket: AnyBucket, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the plan was made."""
    with monkeypatch.context() as patch:
        patch.setattr("recshuf.run.saved_plan.check_sets", lambda job: None)
        run = runs.plan_tasks(source, f"{bucket.url}/data/out/", shards=SHARDS, temp_dir=miss(bucket))[1]
    with pytest.raises(OutputError, match=MISSING):
        runs.run_task(run, 0)
    check_whole(bucket, {})


def test_clean_removes_the_rest_if_the_bucket_is_gone(
    bucket: AnyBucket, source: Path, tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shuffle_locally(source, tmp_path / "local")
    with monkeypatch.context() as patch:
        patch.setattr("recshuf.run.driver.check_sets", lambda job: None)
        patch.setattr(UploadTransaction, "remove", UploadTransaction.release)
        with pytest.raises(OutputError, match=r"no-such-bucket: there is no such"):
            shuffle(source, f"{bucket.url}/data/out/", temp_dir=miss(bucket))
    assert "data/.out.recshuf/tasks/run.json" in bucket.list_keys()
    assert call("clean", f"{bucket.url}/data/out/", "--yes").stdout.endswith(b"\nremoved\n")
    check_whole(bucket, {})
    shuffle(source, f"{bucket.url}/data/out/", temp_dir=f"{bucket.url}/tmp/")
    check_whole(bucket, expected)


@pytest.mark.parametrize(
    ("output", "temp_dir"),
    [
        ("s3://b/out/", "s3://b/out/tmp/"),
        ("s3://b/out/", "s3://b/out"),
        ("s3://b/out", "s3://b/out/"),
        ("S3://b/out", "s3://b/out/a/b"),
        ("gs://b/a/out.parquet", "gs://b/a/out.parquet/tmp"),
    ],
)
def test_a_prefix_in_the_output_is_refused(source: Path, output: str, temp_dir: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"^temp_dir {temp_dir}/?: lies in the output {output}, which holds shards only; give a prefix outside",
    ):
        shuffle(source, output, temp_dir=temp_dir)


@pytest.mark.parametrize("temp_dir", ["data/", "data/out-tmp", "data/o"])
def test_a_prefix_beside_the_output_is_taken(
    bucket: AnyBucket, source: Path, tmp_path: Path, temp_dir: str
) -> None:
    shuffle(source, f"{bucket.url}/data/out/", temp_dir=f"{bucket.url}/{temp_dir}")
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"))
