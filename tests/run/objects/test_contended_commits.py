"""Commits during which other programs write, replace or delete an object of the output."""

from contextlib import nullcontext, suppress

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError
from tests.support.effort import mostly_slow
from tests.support.objects.object_outputs import (
    AnyBucket,
    Output,
    check_whole,
    read_visible,
)

slow = pytest.mark.slow
SHARD, MANIFEST = "data/out/shard-00002.txt", "data/.out.recshuf.json"
FOREIGN = "was written by another program during this run; delete it, and give resume=True"


@pytest.fixture
def old(output: Output) -> None:
    """Put an old set where the output goes."""
    output.put_old()


def change(bucket: AnyBucket, key: str, moment: str, deed: str) -> None:
    """Have others change an object before the commit begins, before its own upload is completed, or before the manifest.

    What they put there may be of another run: runs note themselves with their objects, by which they know them again.
    """
    is_of_a_run = key == SHARD and bucket.url.startswith("s3")

    def strike() -> None:
        if "replaced" in deed:
            bucket.put(key, b"precious", *[{"x-amz-meta-recshuf-upload": "of another run"}] * is_of_a_run)
        if "deleted" in deed:
            bucket.delete(key)

    request = bucket.requests[moment]
    bucket.proxy.call(f"(?=.*shard-00002){request}" if moment == "complete" else request, strike)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("key", "moment", "deed"),
    [
        (SHARD, "complete", "deleted"),
        pytest.param(MANIFEST, "claim", "replaced, deleted", marks=slow),
        pytest.param(SHARD, "claim", "replaced, deleted", marks=slow),
        pytest.param(MANIFEST, "manifest", "deleted", marks=slow),
    ],
)
def test_an_old_object_that_others_delete_is_made_anew(
    bucket: AnyBucket, output: Output, key: str, moment: str, deed: str
):
    change(bucket, key, moment, deed)
    # The upload may be lost with the object, but in S3.
    loses_upload = key == SHARD and not bucket.url.startswith("s3:")
    with suppress(OutputError) if loses_upload else nullcontext():
        output.shuffle(overwrite=True)
    if bucket.list_keys("data/.out.recshuf/"):
        with suppress(AlreadyCompleteError):
            output.shuffle(overwrite=True, resume=True)
    output.check()


@pytest.mark.parametrize(
    ("key", "moment", "has_old", "overwrite"),
    [
        (SHARD, "claim", True, True),
        pytest.param(MANIFEST, "claim", False, False, marks=slow),
        pytest.param(MANIFEST, "manifest", True, True, marks=slow),
        pytest.param(SHARD, "claim", False, True, marks=slow),
        pytest.param(SHARD, "complete", True, True, marks=slow),
        pytest.param(MANIFEST, "claim", True, True, marks=slow),
        pytest.param(SHARD, "claim", False, False, marks=slow),
    ],
)
def test_an_object_of_others_stays_until_it_is_deleted(
    bucket: AnyBucket, output: Output, key: str, moment: str, has_old: bool, overwrite: bool
):
    if has_old:
        output.put_old()
    change(bucket, key, moment, "replaced")
    with pytest.raises(OutputError, match=f"{key}: {FOREIGN}"):
        output.shuffle(overwrite=overwrite)
    with pytest.raises(OutputError, match=f"{key}: "):
        output.shuffle(overwrite=overwrite, resume=True)
    assert bucket.read(key) == b"precious"
    assert bucket.read_all().get(MANIFEST) != output.expected[MANIFEST]
    bucket.delete(key)
    with (
        suppress(AlreadyCompleteError) if has_old else pytest.raises(AlreadyCompleteError, match="the commit")
    ):
        output.shuffle(overwrite=overwrite, resume=True)
    output.check()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "key", mostly_slow([MANIFEST, "data/out/shard-00099.txt", "data/out/shard-00007.txt"], MANIFEST)
)
def test_an_object_that_changes_before_the_commit_is_not_replaced(
    bucket: AnyBucket, output: Output, key: str
):
    before = bucket.read_all()
    theirs = before.get(key, b"") + b"\n"
    bucket.proxy.call(bucket.requests["begin"], lambda: bucket.put(key, theirs))
    with pytest.raises(OutputError, match=rf"{key}: was written (or deleted )?by another program"):
        output.shuffle(overwrite=True)
    assert read_visible(bucket) == before | {key: theirs}


@pytest.mark.usefixtures("old")
def test_an_object_of_others_in_place_of_one_that_is_deleted_stays(bucket: AnyBucket, output: Output):
    key = "data/out/shard-00007.txt"
    change(bucket, key, "claim", "replaced")
    output.shuffle(overwrite=True)
    check_whole(bucket, output.expected | {key: b"precious"})
