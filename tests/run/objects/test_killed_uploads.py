"""Runs into a bucket that are killed before or after any request: the old or the new set, and `--resume` completes it."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.objects.object_outputs import check_whole, shuffle, shuffle_locally
from tests.support.processes.forked_commands import ForkedCommand, run_forked

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.objects.object_outputs import AnyBucket
    from tests.support.objects.object_server import ProxiedRequest


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


def read_visible(bucket: AnyBucket) -> dict[str, bytes]:
    return {key: bucket.read(key) for key in bucket.list_keys() if "/." not in key}


def has_claim(bucket: AnyBucket) -> bool:
    runs = [bucket.read(key) for key in bucket.list_keys() if key.endswith(".run")]
    return any("commit" in json.loads(run.partition(b" ")[2]) for run in runs)


def check_set(bucket: AnyBucket, old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """Check that everything visible is the old or the new set, or that a commit has begun, which lists what it does."""
    found = read_visible(bucket)
    if not has_claim(bucket):
        assert found in (old, new)
    for key, content in found.items():
        assert content in (old.get(key), new.get(key))
    manifest = "data/out.recshuf.json"
    if manifest in found and found[manifest] == new[manifest]:
        assert found.items() >= new.items()


def complete(source: Path, bucket: AnyBucket, *options: str) -> None:
    """Continue a run, or run anew if it had not begun."""
    with start(source, bucket, "--resume", *options) as child:
        assert child.wait() == 0, child.read_stderr()


def count_requests(source: Path, bucket: AnyBucket, *options: str) -> int:
    with start(source, bucket, *options) as child:
        assert child.wait() == 0, child.read_stderr()
    return len(bucket.proxy.requests)


@pytest.mark.parametrize(("request_name", "keeps"), [("run", False), ("begin", True)])
def test_a_signal_leaves_nothing_or_what_resume_completes(
    bucket: AnyBucket, source: Path, tmp_path: Path, request_name: str, keeps: bool
):
    """With so many shards, some are uploaded before the last ones are begun."""
    children: list[ForkedCommand] = []

    def stop() -> None:
        os.kill(children[0].pid, signal.SIGTERM)
        children[0].wait()

    request = bucket.requests[request_name]
    bucket.proxy.call(f"(?=.*shard-00020){request}" if keeps else request, stop)
    with start(source, bucket, "--shards", "24") as child:
        children.append(child)
        assert child.wait() == 128 + signal.SIGTERM
    assert ("continue with the same command and --resume" in child.read_stderr()) == keeps
    assert os.listdir(tmp_path / "scratch") == []
    complete(source, bucket, "--shards", "24")
    check_whole(bucket, shuffle_locally(source, tmp_path / "local", shards=24), is_lossy=True)


def check_moments(
    bucket: AnyBucket, source: Path, tmp_path: Path, count: int, *, overwrite: bool, seed: int = 0
) -> None:
    """Kill runs at random moments, some of them while they are continued."""
    new = shuffle_locally(source, tmp_path / "local")
    options = ("--overwrite",) if overwrite else ()
    moments = 2 * count_requests(source, bucket)
    chance = random.Random(seed)
    clear(bucket)
    if overwrite:
        shuffle(source, f"{bucket.url}/data/out/", seed=1, shards=6)
    old = read_visible(bucket)
    for _ in range(count):
        clear(bucket)
        for key, content in old.items():
            bucket.put(key, content)
        code = run_killed(source, bucket, chance.randrange(moments), *options)
        check_set(bucket, old, new)
        if code and chance.random() < 0.3:
            run_killed(source, bucket, chance.randrange(moments), "--resume", *options)
            check_set(bucket, old, new)
        complete(source, bucket, *options)
        check_whole(bucket, new, is_lossy=True)


def clear(bucket: AnyBucket) -> None:
    for key in bucket.list_keys():
        bucket.delete(key)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_is_killed_leaves_the_old_or_the_new_set(
    bucket: AnyBucket, source: Path, tmp_path: Path, overwrite: bool
):
    check_moments(bucket, source, tmp_path, 4, overwrite=overwrite)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("overwrite", [False, True])
def test_runs_killed_at_many_moments(
    bucket: AnyBucket, source: Path, tmp_path: Path, overwrite: bool, seed: int
):
    """A hundred in S3; the other stores differ in their requests only."""
    count = 10 if bucket.url.startswith("s3:") else 2
    check_moments(bucket, source, tmp_path, count, overwrite=overwrite, seed=seed)
