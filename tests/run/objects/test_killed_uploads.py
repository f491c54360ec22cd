"""Runs into a bucket that are killed before or after any request: the old or the new set, and `--resume` completes it."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.objects.object_outputs import read_visible
from tests.support.processes.forked_commands import ForkedCommand, run_forked

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.objects.object_outputs import AnyBucket, Contents, Output
    from tests.support.objects.object_server import ProxiedRequest

slow = pytest.mark.slow


def start(source: Path, bucket: AnyBucket, *options: str) -> AbstractContextManager[ForkedCommand]:
    arguments = [str(source), "-o", f"{bucket.url}/data/out/"]
    arguments += ["--seed", "5", "--shards", "4", "--workers", "1", *options]
    return run_forked(arguments, source.parent / "said.txt")


def run_killed(source: Path, bucket: AnyBucket, moment: int, *options: str) -> int:
    """Kill a run before or after its request number `moment` // 2, and return its exit code."""
    number, is_late = divmod(moment, 2)
    children: list[ForkedCommand] = []

    def kill(request: ProxiedRequest) -> bool:
        if is_late:
            request.forward(loses_reply=True)
        os.kill(children[0].pid, signal.SIGKILL)
        return is_late or request.drop()

    bucket.proxy.clear()
    bucket.proxy.add("", lambda _: False, number)
    bucket.proxy.add("", kill, 1)
    # Requests of other threads of the child may be under way.
    with start(source, bucket, *options) as child:
        children.append(child)
        code = child.wait()
    bucket.proxy.clear()
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


def complete(source: Path, bucket: AnyBucket, *options: str) -> None:
    """Continue a run, or run anew if it had not begun."""
    with start(source, bucket, "--resume", *options) as child:
        assert child.wait() == 0, child.read_stderr()


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
    options = ("--overwrite",) if overwrite else ()
    if overwrite:
        output.shuffle(seed=1, shards=6)
    old = read_visible(bucket)
    bucket.proxy.clear()
    complete(output.source, bucket, *options)
    moments = 2 * len(bucket.proxy.requests)
    chance = random.Random(seed)
    for _ in range(count):
        for key in bucket.list_keys():
            bucket.delete(key)
        for key, content in old.items():
            bucket.put(key, content)
        code = run_killed(output.source, bucket, chance.randrange(moments), *options)
        check_set(bucket, old, output.expected)
        if code and chance.random() < 0.3:
            run_killed(output.source, bucket, chance.randrange(moments), "--resume", *options)
            check_set(bucket, old, output.expected)
        complete(output.source, bucket, *options)
        output.check(is_lossy=True)
