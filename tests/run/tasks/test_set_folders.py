"""Pile sets that are uploaded: what becomes of a set when its upload goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import OutputError
from tests.support.processes.task_runs import die_after, shuffle

if TYPE_CHECKING:
    from pathlib import Path

    import recshuf
    from tests.support.objects.object_outputs import AnyBucket

LOST = r"//.*/set-\S*\.piles.*: was aborted or replaced by another program; run again, with"


@pytest.fixture(params=["s3_bucket", pytest.param("gcs_bucket", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store that can abort uploads."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


def run(folder: Path, inputs: list[Path], bucket: AnyBucket, **options: Any) -> recshuf.ShuffleReport:
    return shuffle(inputs[:1], folder / "out", engine="threads", temp_dir=f"{bucket.url}/tmp", **options)


@pytest.mark.parametrize(
    ("request_name", "status", "code"),
    [
        ("part", 404, "NoSuchUpload"),
        pytest.param("complete", 404, "NoSuchUpload", marks=pytest.mark.slow),
        pytest.param("complete", 412, "conditionNotMet", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_a_lost_upload_is_an_error_also_if_it_cannot_be_aborted(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket, request_name: str, status: int, code: str
) -> None:
    bucket.proxy.answer(bucket.requests[request_name], status, code)
    bucket.proxy.answer("DELETE .*uploadId", 403, "AccessDenied")
    with pytest.raises(OutputError, match=LOST):
        run(tmp_path, inputs, bucket)
    assert not [key for key in bucket.list_keys() if key.endswith(".piles")]
    run(tmp_path, inputs, bucket, resume=True)


def test_what_lies_in_the_way_is_an_error(tmp_path: Path, inputs: list[Path], bucket: AnyBucket) -> None:
    bucket.proxy.call(
        bucket.requests["complete"], lambda: [bucket.put(key, b"other") for key in bucket.list_uploads()]
    )
    with pytest.raises(OutputError, match=LOST):
        run(tmp_path, inputs, bucket)
    assert bucket.list_uploads() == []
    run(tmp_path, inputs, bucket, resume=True)


def test_sets_of_a_run_whose_removal_died_are_deleted_by_the_next_run(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket
) -> None:
    die_after(3, inputs[1:2], tmp_path / "out", temp_dir=f"{bucket.url}/tmp")
    assert [key for key in bucket.list_keys() if key.endswith(".piles")]
    (tmp_path / ".out.recshuf" / "ended").touch()
    shuffle(inputs[1:2], tmp_path / "out")
    assert bucket.list_keys() == []
