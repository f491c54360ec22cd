"""Pile sets that are uploaded: what becomes of a set when its upload goes wrong."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.job.arguments import make_job
from recshuf.run.set_folders import open_sets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.piles.set_folder import SetFolder
    from tests.support.objects.object_outputs import AnyBucket


@pytest.fixture(params=["s3_bucket", pytest.param("gcs_bucket", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store that can abort uploads."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sets(bucket: AnyBucket) -> Iterator[SetFolder]:
    """Return an empty folder of sets in the bucket."""
    job = make_job("in", "out/", {"temp_dir": f"{bucket.url}/tmp"})
    with closing(open_sets(job, f"{bucket.url}/tmp/recshuf-piles-00/")) as sets:
        yield sets


@pytest.fixture
def path(sets: SetFolder) -> Path:
    """Return a file to upload."""
    path = sets.make_kept() / "set-0.piles"
    path.write_bytes(b"records" * 1000)
    return path


@pytest.mark.parametrize(
    ("request_name", "status", "code"),
    [("part", 404, "NoSuchUpload"), ("complete", 404, "NoSuchUpload"), ("complete", 412, "conditionNotMet")],
)
@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_a_lost_upload_is_an_error_also_if_it_cannot_be_aborted(
    bucket: AnyBucket, sets: SetFolder, path: Path, request_name: str, status: int, code: str
) -> None:
    bucket.proxy.answer(bucket.requests[request_name], status, code)
    bucket.proxy.answer("DELETE .*uploadId", 403, "AccessDenied")
    with pytest.raises(
        OutputError, match=r"//.*/set-0\.piles.*: was aborted or replaced by another program; run again, with"
    ):
        sets.keep(path.name)
    assert path.exists()
    assert bucket.list_keys() == []


def test_what_lies_in_the_way_is_not_replaced(bucket: AnyBucket, sets: SetFolder, path: Path) -> None:
    bucket.put("tmp/recshuf-piles-00/set-0.piles", b"precious")
    with pytest.raises(OutputError, match="was aborted or replaced by another program"):
        sets.keep(path.name)
    assert bucket.read_all() == {"tmp/recshuf-piles-00/set-0.piles": b"precious"}
    assert bucket.list_uploads() == []


def test_an_upload_whose_completion_was_answered_to_nobody_is_kept(
    bucket: AnyBucket, sets: SetFolder, path: Path
) -> None:
    content = path.read_bytes()
    bucket.proxy.lose_reply(bucket.requests["complete"])
    sets.keep(path.name)
    assert bucket.read("tmp/recshuf-piles-00/set-0.piles") == content
    assert not path.exists()
