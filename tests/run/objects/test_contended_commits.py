"""Commits during which other programs write, replace or delete an object, and runs that end at any request."""

import json
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError, RecshufError
from tests.support.effort import TRIES_ALL
from tests.support.objects.object_outputs import (
    AnyBucket,
    Contents,
    Output,
    check_whole,
    read_visible,
)
from tests.support.objects.object_server import ProxiedRequest

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
        (MANIFEST, "manifest", "deleted"),
        pytest.param(SHARD, "claim", "replaced, deleted", marks=slow),
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
        (MANIFEST, "claim", False, False),
        pytest.param(MANIFEST, "manifest", True, True, marks=slow),
        pytest.param(SHARD, "complete", True, True, marks=slow),
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
@pytest.mark.parametrize("key", [MANIFEST, "data/out/shard-00007.txt"])
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


# Runs that end before or after any of their requests


def end_at(output: Output, moment: int, **options: Any) -> bool:
    """End a run before or after its request number `moment` // 2: the store does nothing more for it, as if it were killed.

    Return whether it made so many.
    """
    number, is_late = divmod(moment, 2)
    proxy, struck = output.bucket.proxy, list[str]()

    def strike(one: ProxiedRequest) -> bool:
        struck.append(one.path)
        proxy.answer("", *output.bucket.refusal[:2], times=10**6)
        return one.forward(loses_reply=True) if is_late else one.drop()

    proxy.clear()
    proxy.add("", lambda _: False, number)
    proxy.add("", strike, 1)
    with suppress(RecshufError):
        output.shuffle(**options)
    proxy.clear()
    return bool(struck)


def has_claim(bucket: AnyBucket) -> bool:
    runs = [bucket.read(key) for key in bucket.list_keys() if key.endswith(".run")]
    return any("commit" in json.loads(run.partition(b" ")[2]) for run in runs)


def check_set(bucket: AnyBucket, old: Contents, new: Contents) -> None:
    """Check that everything visible is the old or the new set, or that a commit has begun, which lists what it does."""
    found = read_visible(bucket)
    if not has_claim(bucket):
        assert found in (old, new)
    for key, content in found.items():
        assert content in (old.get(key), new.get(key))
    manifest = "data/.out.recshuf.json"
    if manifest in found and found[manifest] == new[manifest]:
        assert found.items() >= new.items()


@pytest.mark.parametrize(
    ("overwrite", "first", "every"), [(True, 3, 11), pytest.param(False, 0, 3, marks=slow)]
)
def test_a_run_that_ends_at_any_moment_leaves_the_old_or_the_new_set(
    bucket: AnyBucket, output: Output, overwrite: bool, first: int, every: int
):
    """Some runs end again while they are continued."""
    if overwrite:
        output.put_old()
    old = read_visible(bucket)
    for moment in count(first, 1 if TRIES_ALL else every):
        for key in bucket.list_keys():
            bucket.delete(key)
        for key, content in old.items():
            bucket.put(key, content)
        has_ended = end_at(output, moment, overwrite=overwrite)
        check_set(bucket, old, output.expected)
        if moment % 3 == 0:
            end_at(output, moment // 2, overwrite=overwrite, resume=True)
            check_set(bucket, old, output.expected)
        with suppress(AlreadyCompleteError):
            output.shuffle(overwrite=overwrite, resume=True)
        output.check(is_lossy=True)
        if not has_ended:
            break
    assert moment > 30
