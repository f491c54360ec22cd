"""Runs into a bucket that are killed before or after any request: the old or the new set, and `--resume` completes it."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import AlreadyCompleteError
from tests.support.objects.object_outputs import kill_at, read_visible

if TYPE_CHECKING:
    from tests.support.objects.object_outputs import AnyBucket, Contents, Output

slow = pytest.mark.slow


def run_killed(output: Output, moment: int, **options: bool) -> int:
    """Kill a run before or after its request number `moment` // 2, and return its exit code."""
    number, is_late = divmod(moment, 2)
    return kill_at(output.bucket.proxy, number, partial(complete, output, **options), is_late=bool(is_late))


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


def complete(output: Output, **options: bool) -> None:
    """Shuffle, or see that a run that was killed had done all."""
    with suppress(AlreadyCompleteError):
        output.shuffle(**options)


@pytest.mark.parametrize(
    ("overwrite", "count", "seed"),
    [
        (True, 2, 0),
        *(pytest.param(*case, marks=slow) for case in ((False, 4, 1), (True, 8, 2), (False, 8, 3))),
    ],
)
def test_a_run_that_is_killed_at_any_moment_leaves_the_old_or_the_new_set(
    bucket: AnyBucket, output: Output, overwrite: bool, count: int, seed: int
):
    """Kills runs at random moments, some of them while they are continued."""
    if overwrite:
        output.shuffle(seed=1, shards=6)
    old = read_visible(bucket)
    bucket.proxy.clear()
    complete(output, overwrite=overwrite)
    moments = 2 * len(bucket.proxy.requests)
    chance = random.Random(seed)
    for _ in range(count):
        for key in bucket.list_keys():
            bucket.delete(key)
        for key, content in old.items():
            bucket.put(key, content)
        code = run_killed(output, chance.randrange(moments), overwrite=overwrite)
        check_set(bucket, old, output.expected)
        if code and chance.random() < 0.3:
            run_killed(output, chance.randrange(moments), overwrite=overwrite, resume=True)
            check_set(bucket, old, output.expected)
        complete(output, overwrite=overwrite, resume=True)
        output.check(is_lossy=True)
