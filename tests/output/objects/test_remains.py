"""What dead runs left in a bucket, and what is said of it."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.effort import mostly_slow

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_server import Bucket, ProxiedRequest


def expire_after(bucket: Bucket, spared: int) -> None:
    """Answer all but some requests with an error that is final."""
    numbers = itertools.count()

    def strike(request: ProxiedRequest) -> bool:
        return next(numbers) >= spared and request.answer(400, "ExpiredToken")

    bucket.proxy.add("", strike, 10**6)


def test_an_error_names_the_url_that_was_given(bucket: Bucket, tmp_path: Path, call: Run):
    """Whatever was asked."""
    (tmp_path / "in.txt").write_bytes(b"a\n")
    for spared in range(4):
        bucket.proxy.clear()
        expire_after(bucket, spared)
        told = call("clean", f"{bucket.url}/out/").stderr.decode()
        assert f" {bucket.url}/out/: the credentials have expired" in told, spared
    url = f"{bucket.url}/data/out.txt"
    assert f" {url}: the credentials have expired" in call(tmp_path / "in.txt", "-o", url).stderr.decode()
    bucket.proxy.clear()
    told = call("clean", "s3://no-such-bucket/out/").stderr.decode()
    assert told.endswith(" s3://no-such-bucket: there is no such bucket; check the name\n")


def test_what_is_cleaned_is_found_by_the_options_given(
    bucket: Bucket, call: Run, monkeypatch: pytest.MonkeyPatch
):
    bucket.begin_upload("out/shard-00000.txt")
    keys = {name: os.environ[f"AWS_{name}".upper()] for name in ("access_key_id", "secret_access_key")}
    for name in keys:
        monkeypatch.delenv(f"AWS_{name}".upper())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    server = ["--endpoint-url", bucket.proxy.url]
    options = [word for name, key in keys.items() for word in ("--storage-option", f"{name}={key}")]
    done = call("clean", f"{bucket.url}/out/", "--yes", *server, *options)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"removed"), done.stderr
    assert bucket.list_uploads() == []


@pytest.mark.parametrize("spared", mostly_slow((6, 7, 9, 12), 9))
def test_a_run_that_cannot_remove_what_it_leaves_says_how_to_go_on(
    bucket: Bucket, tmp_path: Path, call: Run, spared: int
):
    """It has made an object of the journal, and perhaps uploads."""
    (tmp_path / "in.txt").write_bytes(b"a\nb\n")
    server = ["--endpoint-url", bucket.proxy.url]
    run = partial(call, tmp_path / "in.txt", "-o", f"{bucket.url}/out/", "--shards", "2", *server)
    expire_after(bucket, spared)
    command = f"recshuf clean {bucket.url}/out/ --yes --endpoint-url {bucket.proxy.url}"
    way = f": continue with the same command and --resume, or remove them with {command}\n"
    assert way in run().stderr.decode()
    bucket.proxy.clear()
    assert run("--resume").returncode == 0
    assert sorted(bucket.list_keys()) == [".out.recshuf.json", "out/shard-00000.txt", "out/shard-00001.txt"]
    assert bucket.list_uploads() == []
