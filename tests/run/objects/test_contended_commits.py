"""Commits during which other programs write, replace or delete an object of the output."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError
from tests.support.objects.object_outputs import check_whole, put_old_set, shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket, Contents
    from tests.support.objects.object_server import Bucket

slow = pytest.mark.slow
SHARD, MANIFEST = "data/out/shard-00002.txt", "data/out.recshuf.json"
FOREIGN = "was written by another program during this run; delete it, and give resume=True"


@pytest.fixture
def old(bucket: AnyBucket, source: Path) -> None:
    """Put an old set where the output goes."""
    put_old_set(bucket, source)
    bucket.proxy.clear()


def change(bucket: AnyBucket, key: str, moment: str, deed: str) -> None:
    """Have others change an object before the commit begins, before its own upload is completed, or before the manifest."""

    def strike() -> None:
        if "replaced" in deed:
            bucket.put(key, b"precious")
        if "deleted" in deed:
            bucket.delete(key)

    request = bucket.requests[moment]
    bucket.proxy.call(f"(?=.*shard-00002){request}" if moment == "complete" else request, strike)


def write(bucket: AnyBucket, source: Path, *, overwrite: bool = True, resume: bool = False) -> None:
    shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite, resume=resume)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("key", "moment", "deed"),
    [
        (SHARD, "complete", "deleted"),
        (MANIFEST, "claim", "replaced, deleted"),
        pytest.param(SHARD, "claim", "replaced, deleted", marks=slow),
        pytest.param(MANIFEST, "manifest", "deleted", marks=slow),
    ],
)
def test_an_old_object_that_others_delete_is_made_anew(
    bucket: AnyBucket, source: Path, expected: Contents, key: str, moment: str, deed: str
):
    change(bucket, key, moment, deed)
    # The upload may be lost with the object, but in S3.
    loses_upload = key == SHARD and not bucket.url.startswith("s3:")
    with suppress(OutputError) if loses_upload else nullcontext():
        write(bucket, source)
    if bucket.list_keys("data/.out.recshuf/"):
        with suppress(AlreadyCompleteError):
            write(bucket, source, resume=True)
    check_whole(bucket, expected)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("key", "moment"),
    [
        (SHARD, "claim"),
        (MANIFEST, "manifest"),
        pytest.param(SHARD, "complete", marks=slow),
        pytest.param(MANIFEST, "claim", marks=slow),
    ],
)
def test_an_object_of_others_in_place_of_an_old_one_stays_until_it_is_deleted(
    bucket: AnyBucket, source: Path, expected: Contents, key: str, moment: str
):
    change(bucket, key, moment, "replaced")
    with pytest.raises(OutputError, match=f"{key}: {FOREIGN}"):
        write(bucket, source)
    with pytest.raises(OutputError, match=f"{key}: "):
        write(bucket, source, resume=True)
    assert bucket.read(key) == b"precious"
    bucket.delete(key)
    with suppress(AlreadyCompleteError):
        write(bucket, source, resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize(
    ("key", "overwrite"), [(SHARD, True), (MANIFEST, False), pytest.param(SHARD, False, marks=slow)]
)
def test_what_somebody_else_writes_meanwhile_is_not_replaced(
    bucket: AnyBucket, source: Path, expected: Contents, key: str, overwrite: bool
):
    change(bucket, key, "claim", "replaced")
    with pytest.raises(OutputError, match=f"{key}: {FOREIGN}"):
        write(bucket, source, overwrite=overwrite)
    assert bucket.read(key) == b"precious"
    bucket.delete(key)
    with pytest.raises(AlreadyCompleteError, match="complete; the commit"):
        write(bucket, source, overwrite=overwrite, resume=True)
    check_whole(bucket, expected)


def test_an_object_of_another_run_is_not_taken_for_ones_own(s3_bucket: Bucket, source: Path):
    """Runs note themselves with what they put in place, by which they know it again."""

    def replace() -> None:
        s3_bucket.client.put_object(
            Bucket=s3_bucket.name, Key=SHARD, Body=b"precious", Metadata={"recshuf-upload": "of another run"}
        )

    s3_bucket.proxy.call(s3_bucket.requests["claim"], replace)
    with pytest.raises(OutputError, match=f"{SHARD}: {FOREIGN}"):
        write(s3_bucket, source)
    assert s3_bucket.read(SHARD) == b"precious"
    assert MANIFEST not in s3_bucket.list_keys()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "key", [MANIFEST, "data/out/shard-00099.txt", pytest.param("data/out/shard-00007.txt", marks=slow)]
)
def test_an_object_that_changes_before_the_commit_is_not_replaced(bucket: AnyBucket, source: Path, key: str):
    before = bucket.read_all()
    theirs = before.get(key, b"") + b"\n"
    bucket.proxy.call(bucket.requests["begin"], lambda: bucket.put(key, theirs))
    with pytest.raises(OutputError, match=rf"{key}: was written (or deleted )?by another program"):
        write(bucket, source)
    assert {name: body for name, body in bucket.read_all().items() if "/." not in name} == before | {
        key: theirs
    }


@pytest.mark.usefixtures("old")
def test_an_object_of_others_in_place_of_one_that_is_deleted_stays(
    bucket: AnyBucket, source: Path, expected: Contents
):
    key = "data/out/shard-00007.txt"
    change(bucket, key, "claim", "replaced")
    write(bucket, source)
    check_whole(bucket, expected | {key: b"precious"})


@pytest.mark.usefixtures("old")
def test_an_object_whose_reply_was_lost_is_not_of_others(bucket: AnyBucket, source: Path, expected: Contents):
    for name in ("complete", "manifest"):
        bucket.proxy.lose_reply(bucket.requests[name])
    write(bucket, source)
    check_whole(bucket, expected)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("moment", ["claim", pytest.param("complete", marks=slow)])
def test_clean_leaves_a_commit_whose_old_object_was_deleted_to_resume(
    bucket: AnyBucket, source: Path, expected: Contents, call: Run, moment: str
):
    change(bucket, SHARD, moment, "deleted")
    bucket.proxy.answer(bucket.requests["complete"], *bucket.refusal[:2], times=10**6)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        write(bucket, source)
    bucket.proxy.clear()
    refused = call("clean", f"{bucket.url}/data/out/", "--yes")
    assert b"complete it with the same command and --resume" in refused.stderr
    with suppress(AlreadyCompleteError):
        write(bucket, source, resume=True)
    check_whole(bucket, expected)
