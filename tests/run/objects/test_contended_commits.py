"""Commits over an old set, of which other programs replace or delete an object meanwhile."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError
from recshuf.output.objects import stage as transaction
from recshuf.output.objects import uploader
from tests.support.objects.object_outputs import (
    check_whole,
    put_old_set,
    shuffle,
    shuffle_locally,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket

SHARD, MANIFEST = "data/out/shard-00002.txt", "data/out.recshuf.json"
CASES = ((SHARD, "claim"), (SHARD, "complete"), (MANIFEST, "claim"), (MANIFEST, "manifest"))
"""Objects, and the requests before which others change them: the begin of the commit, the second completion, the end."""
FOREIGN = "was written by another program during this run; delete it, and give"


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shards uploaded, and their uploads completed, one after the other."""
    monkeypatch.setattr(transaction, "_REQUESTERS", 1)
    monkeypatch.setattr(uploader, "MOST_SHARDS", 1)


@pytest.fixture
def expected(bucket: AnyBucket, source: Path, tmp_path: Path) -> dict[str, bytes]:
    """Return what the bucket is to hold, after putting an old set there."""
    put_old_set(bucket, source)
    bucket.proxy.clear()
    return shuffle_locally(source, tmp_path / "local")


def change(bucket: AnyBucket, key: str, moment: str, deed: str) -> None:
    """Have others change an object of the old set during the next commit."""

    def strike() -> None:
        if "replaced" in deed:
            bucket.put(key, b"precious")
        if "deleted" in deed:
            bucket.delete(key)

    if moment == "complete":
        bucket.proxy.add(bucket.requests["complete"], lambda _: False, 1)
    bucket.proxy.call(bucket.requests[moment], strike)


def overwrite(bucket: AnyBucket, source: Path, *, resume: bool = False) -> None:
    shuffle(source, f"{bucket.url}/data/out/", overwrite=True, resume=resume)


@pytest.mark.parametrize("deed", ["deleted", "replaced, deleted"])
@pytest.mark.parametrize(("key", "moment"), CASES)
def test_an_old_object_that_others_delete_is_made_anew(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], key: str, moment: str, deed: str
):
    change(bucket, key, moment, deed)
    # The upload may be lost with the object, but in S3.
    loses_upload = key == SHARD and not bucket.url.startswith("s3:")
    with suppress(OutputError) if loses_upload else nullcontext():
        overwrite(bucket, source)
    if bucket.list_keys("data/.out.recshuf/"):
        with suppress(AlreadyCompleteError):
            overwrite(bucket, source, resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize(("key", "moment"), CASES)
def test_an_object_of_others_in_place_of_an_old_one_stays_until_it_is_deleted(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], key: str, moment: str
):
    change(bucket, key, moment, "replaced")
    with pytest.raises(OutputError, match=f"{key}: {FOREIGN} resume=True"):
        overwrite(bucket, source)
    with pytest.raises(OutputError, match=f"{key}: "):
        overwrite(bucket, source, resume=True)
    assert bucket.read(key) == b"precious"
    bucket.delete(key)
    with suppress(AlreadyCompleteError):
        overwrite(bucket, source, resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize("request_name", ["complete", "manifest"])
def test_an_object_whose_reply_was_lost_is_not_of_others(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], request_name: str
):
    bucket.proxy.lose_reply(bucket.requests[request_name])
    overwrite(bucket, source)
    check_whole(bucket, expected)


@pytest.mark.parametrize("moment", ["claim", "complete"])
def test_clean_leaves_a_commit_whose_old_object_was_deleted_to_resume(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], call: Run, moment: str
):
    change(bucket, SHARD, moment, "deleted")
    bucket.proxy.answer(bucket.requests["complete"], *bucket.refusal[:2], times=10**6)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        overwrite(bucket, source)
    bucket.proxy.clear()
    refused = call("clean", f"{bucket.url}/data/out/", "--yes")
    assert b"complete it with the same command and --resume" in refused.stderr
    with suppress(AlreadyCompleteError):
        overwrite(bucket, source, resume=True)
    check_whole(bucket, expected)
