"""Runs into a bucket that are killed before or after any request: the old or the new set, and `resume` completes it."""

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
    from collections.abc import Callable

    from tests.support.objects.object_outputs import AnyBucket, Contents, Output


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
    ("overwrite", "count", "seed"),
    [
        (True, 2, 0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((False, 4, 1), (True, 8, 2), (False, 8, 3))
        ),
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
    output.shuffle(overwrite=overwrite)
    moments = 2 * len(bucket.proxy.requests)
    chance = random.Random(seed)

    def kill(run: Callable[..., object]) -> int:
        number, is_late = divmod(chance.randrange(moments), 2)
        return kill_at(bucket.proxy, number, partial(run, overwrite=overwrite), is_late=is_late == 1)

    for _ in range(count):
        for key in bucket.list_keys():
            bucket.delete(key)
        for key, content in old.items():
            bucket.put(key, content)
        code = kill(output.shuffle)
        check_set(bucket, old, output.expected)
        if code and chance.random() < 0.3:
            kill(partial(output.shuffle, resume=True))
            check_set(bucket, old, output.expected)
        with suppress(AlreadyCompleteError):
            output.shuffle(resume=True, overwrite=overwrite)
        output.check(is_lossy=True)
