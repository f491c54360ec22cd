"""What dead runs left in a bucket, and what is said of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.objects.remains import Remains
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_server import Bucket, ProxiedRequest


@pytest.mark.parametrize("spared", range(4))
def test_an_error_names_the_url_that_was_given(bucket: Bucket, spared: int):
    expire_after(bucket, spared)
    with pytest.raises(OutputError, match=f"^{bucket.url}/out/: the credentials have expired"):
        Remains(Url.parse(f"{bucket.url}/out/"), StorageOptions()).find()


def test_a_missing_bucket_is_named(bucket: Bucket):
    with pytest.raises(OutputError, match=r"^s3://no-such-bucket: there is no such bucket; check the name$"):
        Remains(Url.parse("s3://no-such-bucket/out/"), StorageOptions()).find()


@pytest.mark.parametrize(
    "key",
    ["a\nb/", "a\tb", "a/\x7f/", "o//", "/o/", "a//b", "./x/", "x/.", "x/../y/", "../x", "b\n//"],
)
def test_urls_that_every_run_refuses_are_refused_alike(bucket: Bucket, tmp_path: Path, call: Run, key: str):
    (tmp_path / "in.txt").write_bytes(b"a\nb\n")
    url = f"{bucket.url}/{key}"
    cleaned = call("clean", url)
    run = call(tmp_path / "in.txt", "-o", url, "--endpoint-url", bucket.proxy.url)
    assert (cleaned.returncode, cleaned.stdout) == (2, b"")
    assert cleaned.stderr == run.stderr
    assert cleaned.stderr.count(b"\n") == 1
    assert bucket.proxy.requests == []


@pytest.mark.parametrize("spared", [6, 7, 9, 12])
def test_a_run_that_cannot_remove_what_it_leaves_says_how_to_go_on(
    bucket: Bucket, tmp_path: Path, call: Run, spared: int
):
    """It has made an object of the journal, and perhaps uploads."""
    (tmp_path / "in.txt").write_bytes(b"a\nb\n")
    run = [
        tmp_path / "in.txt",
        "-o",
        f"{bucket.url}/out/",
        "--shards",
        "2",
        "--endpoint-url",
        bucket.proxy.url,
    ]
    expire_after(bucket, spared)
    failed = call(*run).stderr.decode()
    command = f"recshuf clean {bucket.url}/out/ --yes --endpoint-url {bucket.proxy.url}"
    assert f": continue with the same command and --resume, or remove them with {command}\n" in failed
    bucket.proxy.clear()
    assert call(*run, "--resume").returncode == 0
    assert sorted(bucket.list_keys()) == ["out.recshuf.json", "out/shard-00000.txt", "out/shard-00001.txt"]
    assert bucket.list_uploads() == []


def expire_after(bucket: Bucket, spared: int) -> None:
    """Answer all but some requests with an error that is final."""
    numbers = itertools.count()

    def strike(request: ProxiedRequest) -> bool:
        return next(numbers) >= spared and request.answer(400, "ExpiredToken")

    bucket.proxy.add("", strike, 10**6)
