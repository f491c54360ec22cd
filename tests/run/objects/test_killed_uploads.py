"""Runs into a bucket that are killed before or after any request: the old or the new set, and `resume` completes it."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import AlreadyCompleteError
from tests.support.objects.object_outputs import read_visible
from tests.support.stores.killed_stores import fork, join

if TYPE_CHECKING:
    from tests.support.objects.object_outputs import AnyBucket, Contents, Output
    from tests.support.objects.object_server import ProxiedRequest


def run_killed(output: Output, moment: int, **options: Any) -> int:
    """Kill a run before or after its request number `moment` // 2, and return its exit code."""
    number, is_late = divmod(moment, 2)
    children: list[tuple[int, int]] = []

    def kill(request: ProxiedRequest) -> bool:
        if is_late:
            request.forward(loses_reply=True)
        os.kill(children[0][0], signal.SIGKILL)
        return bool(is_late or request.drop())

    proxy = output.bucket.proxy
    proxy.clear()
    proxy.call("", lambda: None, number)
    proxy.add("", kill, 1)
    # Requests of other threads of the child may be under way.
    children.append(fork(lambda: output.shuffle(**options)))
    code = join(children[0])
    proxy.clear()
    return code


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
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 4, 1), (True, 8, 2), (False, 8, 3))),
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
    for _ in range(count):
        for key in bucket.list_keys():
            bucket.delete(key)
        for key, content in old.items():
            bucket.put(key, content)
        code = run_killed(output, chance.randrange(moments), overwrite=overwrite)
        check_set(bucket, old, output.expected)
        if code and chance.random() < 0.3:
            run_killed(output, chance.randrange(moments), resume=True, overwrite=overwrite)
            check_set(bucket, old, output.expected)
        with suppress(AlreadyCompleteError):
            output.shuffle(resume=True, overwrite=overwrite)
        output.check(is_lossy=True)
