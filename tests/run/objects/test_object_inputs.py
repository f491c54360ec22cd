"""Inputs in a bucket: the records and the bytes of a run on the same files, or one clear error."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import InputError, MissingInputError, UsageError
from recshuf.formats.compression import OUTPUT_SUFFIXES
from recshuf.run import driver as pipeline
from recshuf.storage import requests
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.objects.object_outputs import shuffle, shuffle_locally, write_lines
from tests.support.objects.object_server import CREDENTIALS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.gcs_buckets import GcsTestBucket
    from tests.support.objects.object_outputs import AnyBucket
    from tests.support.objects.object_server import Bucket


def upload(bucket: AnyBucket, folder: Path) -> None:
    """Put every file of a folder in the bucket, below ``in/``."""
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"in/{path.relative_to(folder)}", path.read_bytes())


def check_equal(tmp_path: Path, bucket: AnyBucket, **options: Any) -> None:
    """Check that the files of `tmp_path / "in"` give the same output, manifest included, from a bucket."""
    local, remote = str(tmp_path / "in"), f"{bucket.url}/in"
    expected = shuffle_locally(tmp_path / "in", tmp_path / "local", **options)
    upload(bucket, tmp_path / "in")
    found = shuffle_locally(f"{remote}/", tmp_path / "remote", **options)
    assert {
        name: content.replace(remote.encode(), local.encode()) for name, content in found.items()
    } == expected


@pytest.mark.parametrize("name", FORMATS)
def test_the_output_is_that_of_a_run_on_local_files(tmp_path: Path, bucket: AnyBucket, name: str):
    make_inputs(tmp_path / "in", name, (300, 200, 0, 250))
    check_equal(tmp_path, bucket)


@pytest.mark.parametrize(
    ("name", "to"), [("jsonl", "parquet"), ("parquet", "jsonl"), ("csv", "parquet"), ("hdf5", "parquet")]
)
def test_conversions_are_those_of_a_run_on_local_files(tmp_path: Path, bucket: AnyBucket, name: str, to: str):
    make_inputs(tmp_path / "in", name, (300, 200))
    check_equal(tmp_path, bucket, to=to, provenance=False)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "bz2", "xz", "lz4"])
def test_compressed_inputs_are_read(tmp_path: Path, s3_bucket: Bucket, compression: str):
    source = write_lines(tmp_path / "in.txt")
    suffix = OUTPUT_SUFFIXES[compression]
    (tmp_path / "in").mkdir()
    shuffle(source, tmp_path / "in" / f"a.txt{suffix}", shards=None)
    check_equal(tmp_path, s3_bucket)


def test_inputs_and_output_can_be_in_buckets(tmp_path: Path, bucket: AnyBucket):
    make_inputs(tmp_path / "in", "jsonl", (300, 200))
    expected = shuffle_locally(tmp_path / "in", tmp_path / "local", to="parquet")
    upload(bucket, tmp_path / "in")
    shuffle(f"{bucket.url}/in/*.jsonl", f"{bucket.url}/data/out/", to="parquet")
    found = bucket.read_all("data/out/")
    assert found == {name: content for name, content in expected.items() if "shard" in name}


def test_an_output_among_the_inputs_is_left_out(tmp_path: Path, bucket: AnyBucket):
    bucket.put("in/a.txt", b"a\nb\n")
    first = shuffle(f"{bucket.url}/in", f"{bucket.url}/in/out/", shards=1)
    second = shuffle(f"{bucket.url}/in", f"{bucket.url}/in/out/", shards=1, overwrite=True)
    assert (
        [one.name for one in first.inputs]
        == [one.name for one in second.inputs]
        == [f"{bucket.url}/in/a.txt"]
    )


def test_a_store_is_scattered_from_a_bucket(tmp_path: Path, bucket: AnyBucket):
    make_inputs(tmp_path / "in", "parquet", (300, 200))
    expected = shuffle_locally(tmp_path / "in", tmp_path / "local", shards=2)
    upload(bucket, tmp_path / "in")
    recshuf.scatter(f"{bucket.url}/in/", tmp_path / "store", seed=5)
    recshuf.gather(tmp_path / "store", f"{tmp_path}/remote/", shards=2)
    assert {one.name: one.read_bytes() for one in (tmp_path / "remote").iterdir()} == {
        name.removeprefix("data/out/"): content for name, content in expected.items() if "shard" in name
    }


def test_the_plan_reads_the_inputs(tmp_path: Path, bucket: AnyBucket):
    make_inputs(tmp_path / "in", "jsonl", (300, 200))
    upload(bucket, tmp_path / "in")
    local, remote = (
        recshuf.plan(given, f"{tmp_path}/out/") for given in (tmp_path / "in", f"{bucket.url}/in")
    )
    assert remote.record_count == local.record_count == 500


def test_tasks_read_a_bucket(tmp_path: Path, s3_bucket: Bucket, run: Run):
    make_inputs(tmp_path / "in", "jsonl", (300, 200))
    upload(s3_bucket, tmp_path / "in")
    expected = shuffle_locally(f"{s3_bucket.url}/in/", tmp_path / "local")
    (tmp_path / "tasks").mkdir()
    given = [f"{s3_bucket.url}/in/", "-o", f"{tmp_path}/tasks/out/", "--seed", "5", "--shards", "4"]
    plan = tmp_path / "plan.json"
    assert run(*given, "--engine", "tasks", "--plan", "--report", plan).returncode == 0
    for stage in ("count", "scatter", "gather", "commit"):
        for number in run("task", plan, stage).stdout.split():
            assert run("task", plan, number.decode()).returncode == 0
    found = {path.name: path.read_bytes() for path in (tmp_path / "tasks" / "out").iterdir()}
    assert found == {
        name.removeprefix("data/out/"): content for name, content in expected.items() if "shard" in name
    }


def test_a_failed_run_is_resumed_unless_an_object_has_changed(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    make_inputs(tmp_path / "in", "jsonl", (300, 200))
    upload(bucket, tmp_path / "in")
    expected = shuffle_locally(f"{bucket.url}/in/", tmp_path / "local")

    def fail(*_: object) -> None:
        raise RuntimeError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "_commit", fail)
        (tmp_path / "out").mkdir()
        with pytest.raises(RuntimeError):
            shuffle(f"{bucket.url}/in/", f"{tmp_path}/out/out/")
    content = bucket.read("in/input0.jsonl")
    bucket.put("in/input0.jsonl", content[::-1])
    with pytest.raises(
        InputError, match=r"input0.jsonl: has changed since the unfinished run: it was replaced"
    ):
        shuffle(f"{bucket.url}/in/", f"{tmp_path}/out/out/", resume=True)
    if bucket.url.startswith("az"):  # the same content has another ETag
        return
    bucket.put("in/input0.jsonl", content)
    shuffle(f"{bucket.url}/in/", f"{tmp_path}/out/out/", resume=True)
    for name, shard in expected.items():
        assert (tmp_path / "out" / name.removeprefix("data/")).read_bytes() == shard


def test_requests_are_reported(tmp_path: Path, s3_bucket: Bucket):
    content = b"".join(b"%0999d\n" % number for number in range(64_000))
    s3_bucket.put("in.txt", content)
    report = shuffle(f"{s3_bucket.url}/in.txt", tmp_path / "out.txt", shards=None, memory="1GB")
    found = report.downloads
    assert found is not None
    assert found.requests == len(s3_bucket.proxy.requests)
    assert (found.retries, found.byte_count) == (0, len(content))
    assert found.median_request_bytes >= 4 << 20
    assert report.to_json()["downloads"] == {
        "requests": found.requests,
        "retries": 0,
        "byte_count": len(content),
        "median_request_bytes": found.median_request_bytes,
    }
    assert shuffle(tmp_path / "out.txt", tmp_path / "again.txt", shards=None).downloads is None


def test_requests_of_scatter_and_verify_are_reported(tmp_path: Path, bucket: Bucket):
    source = write_lines(tmp_path / "in.txt")
    bucket.put("in.txt", source.read_bytes())
    scattered = recshuf.scatter(f"{bucket.url}/in.txt", tmp_path / "store")
    compared = recshuf.verify(source, f"{bucket.url}/in.txt")
    for report in (scattered, compared):
        assert report.downloads is not None
        assert report.downloads.byte_count == source.stat().st_size
    assert recshuf.scatter(source, tmp_path / "other").downloads is None
    assert recshuf.verify(source, source).downloads is None


# What is read back


@pytest.mark.parametrize("to", ["text", "parquet"])
def test_an_output_in_a_bucket_is_verified(tmp_path: Path, bucket: AnyBucket, to: str):
    source = write_lines(tmp_path / "in.txt")
    bucket.put("in/in.txt", source.read_bytes())
    shuffle(source, f"{bucket.url}/data/out/", to=to)
    assert recshuf.verify(source, f"{bucket.url}/data/out/")
    assert recshuf.verify(f"{bucket.url}/in/", f"{bucket.url}/data/out")


def test_verify_finds_what_is_wrong_with_an_output_in_a_bucket(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    shuffle(source, f"{bucket.url}/out/")
    shard, content = "out/shard-00001.txt", bucket.read("out/shard-00001.txt")
    bucket.put(shard, content.replace(b"line", b"LINE", 1))
    bucket.put("out/other.txt", b"more\n")
    bucket.delete("out/shard-00002.txt")
    found = recshuf.verify(source, f"{bucket.url}/out/")
    assert (found.missing, found.extra) == (251, 1)
    assert found.differences[:3] == (
        f"{bucket.url}/{shard}: has another checksum in the manifest",
        f"{bucket.url}/out/shard-00002.txt: is missing, and the manifest names it",
        f"{bucket.url}/out/other.txt: is not named in the manifest",
    )


def test_the_order_of_an_output_in_a_bucket_is_checked(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt", 5000)
    shuffle(source, f"{bucket.url}/out/")
    bucket.put("in.txt", source.read_bytes())
    assert recshuf.check(f"{bucket.url}/out/", against=f"{bucket.url}/in.txt").is_uniform
    assert not recshuf.check(f"{bucket.url}/in.txt", against=source).is_uniform
    assert recshuf.picture(f"{bucket.url}/out/", against=source).startswith(b"\x89PNG")


# Faults


@pytest.fixture
def large(bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch) -> AnyBucket:
    """Return a bucket with an object of 20 MB, ``in.txt``, read in many requests and retried without a pause."""
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    bucket.put("in.txt", LARGE)
    return bucket


@pytest.fixture
def s3_large(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return the same in S3."""
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    s3_bucket.put("in.txt", LARGE)
    return s3_bucket


LARGE = b"".join(b"%0999d\n" % number for number in range(20_000))
GETS = "GET .*/in([.]|%2E)txt"


def read(bucket: AnyBucket, tmp_path: Path, **options: Any) -> recshuf.ShuffleReport:
    return shuffle(f"{bucket.url}/in.txt", tmp_path / "out.txt", shards=None, **options)


@pytest.mark.parametrize("fault", ["slow down", "reset", "dropped body", "short body"])
def test_requests_that_fail_are_tried_again(tmp_path: Path, large: AnyBucket, fault: str):
    shuffle_whole = read(large, tmp_path)
    expected = (tmp_path / "out.txt").read_bytes()
    strike = {
        "slow down": lambda: large.proxy.answer(GETS, 503, "SlowDown", times=5),
        "reset": lambda: large.proxy.reset(GETS, times=5),
        "dropped body": lambda: large.proxy.cut_body(GETS, times=5),
        "short body": lambda: large.proxy.cut_body(GETS, times=5, cuts="stated"),
    }
    strike[fault]()
    found = read(large, tmp_path, overwrite=True)
    assert (tmp_path / "out.txt").read_bytes() == expected
    assert shuffle_whole.downloads is not None
    assert found.downloads is not None
    assert (shuffle_whole.downloads.retries, found.downloads.retries) == (0, 5)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_object_that_changes_is_an_error(tmp_path: Path, large: AnyBucket, number: int):
    seen = iter(range(1000))
    large.proxy.call(GETS, lambda: next(seen) == number and large.put("in.txt", LARGE[::-1]), times=1000)
    with pytest.raises(
        InputError, match=r"in.txt: changed while it was read; run again when nobody writes to it"
    ):
        read(large, tmp_path)
    assert not (tmp_path / "out.txt").exists()


def test_an_object_that_vanishes_is_an_error(tmp_path: Path, large: AnyBucket):
    seen = iter(range(1000))
    large.proxy.call(GETS, lambda: next(seen) == 2 and large.delete("in.txt"), times=1000)
    # Azure compares ETags first.
    error, said = (InputError, "") if large.url.startswith("az") else (MissingInputError, ": it is gone")
    with pytest.raises(error, match=f"in.txt: changed while it was read{said}; run again"):
        read(large, tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, "ExpiredToken", r"the credentials have expired \(ExpiredToken\); renew them, and run again"),
        (403, "AccessDenied", r"access is denied \(AccessDenied\); check the credentials and the policy"),
        (403, "RequestTimeTooSkewed", r"the clock of this machine is wrong, says the store"),
        (501, "NotImplemented", r"the store does not support this request \(NotImplemented\); check"),
        (301, "PermanentRedirect", r"the bucket is in another region \(301\); set AWS_REGION"),
        (503, "SlowDown", r"the store is busy \(SlowDown\), after 8 attempts; run again later"),
    ],
)
@pytest.mark.parametrize("request_pattern", [GETS, "HEAD .*", ""])
def test_what_the_store_refuses_is_an_error_that_names_the_url(
    tmp_path: Path, s3_large: Bucket, status: int, code: str, said: str, request_pattern: str
):
    s3_large.proxy.answer(request_pattern, status, code, times=100)
    expected = said if request_pattern != "HEAD .*" else said.replace(code, f"({code}|{status})")
    if request_pattern == "HEAD .*" and code in ("ExpiredToken", "RequestTimeTooSkewed"):
        expected = rf"(the store answers|access is denied) \(?{status}"
    with pytest.raises(InputError, match=f"^{s3_large.url}/in.txt: {expected}"):
        read(s3_large, tmp_path)


def test_a_missing_bucket_is_named(tmp_path: Path, s3_bucket: Bucket):
    for url in ("s3://no-such-bucket/", "s3://no-such-bucket/a.txt", "s3://no-such-bucket/*.txt"):
        with pytest.raises(
            MissingInputError, match=r"^s3://no-such-bucket: there is no such bucket; check the name$"
        ):
            shuffle(url, tmp_path / "out.txt", shards=None)


def test_a_bucket_that_vanishes_is_named(tmp_path: Path, s3_large: Bucket):
    s3_large.proxy.answer(GETS, 404, "NoSuchBucket", times=100)
    with pytest.raises(MissingInputError, match=f"^{s3_large.url}: there is no such bucket; check the name$"):
        read(s3_large, tmp_path)


def test_missing_credentials_are_named(tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="there are no credentials; set AWS_ACCESS_KEY_ID"):
        shuffle(f"{s3_bucket.url}/in.txt", tmp_path / "out.txt", shards=None)


def test_a_server_that_does_not_answer_is_named(
    tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    with pytest.raises(
        InputError,
        match=r"the store cannot be reached: .*, after 8 attempts; check endpoint_url and the network",
    ):
        shuffle(f"{s3_bucket.url}/a", tmp_path / "out.txt", shards=None, endpoint_url="http://127.0.0.1:9")


def test_public_objects_need_no_credentials(
    tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3_bucket.client.put_object(Bucket=s3_bucket.name, Key="in.txt", Body=b"a\n", ACL="public-read")
    report = shuffle(
        f"{s3_bucket.url}/in.txt",
        tmp_path / "out.txt",
        shards=None,
        storage_options={"skip_signature": "true"},
    )
    assert report.records == 1


def test_each_store_of_a_run_has_its_own_options(
    tmp_path: Path, s3_bucket: Bucket, gcs_bucket: GcsTestBucket, monkeypatch: pytest.MonkeyPatch
):
    write_lines(tmp_path / "in.txt")
    shuffle(tmp_path / "in.txt", f"{gcs_bucket.url}/in.txt", shards=None, seed=1)
    shuffle(f"{gcs_bucket.url}/in.txt", f"{tmp_path}/local/", shards=2)
    for name in ("GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE", *CREDENTIALS, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    options = {
        "gs:endpoint_url": gcs_bucket.proxy.url,
        "gs:skip_signature": "true",
        "s3:access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "s3:secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        f"{s3_bucket.url}:endpoint_url": s3_bucket.proxy.url,
    }
    shuffle(f"{gcs_bucket.url}/in.txt", f"{s3_bucket.url}/out/", shards=2, storage_options=options)
    for path in (tmp_path / "local").iterdir():
        assert s3_bucket.read(f"out/{path.name}") == path.read_bytes()


def test_an_unknown_storage_option_is_refused(tmp_path: Path, s3_bucket: Bucket):
    with pytest.raises(UsageError, match=r"^storage_options colour: is not taken"):
        shuffle(f"{s3_bucket.url}/a", tmp_path / "out.txt", storage_options={"colour": "red"})


def test_missing_libraries_are_named(tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"reading s3:// needs obstore; install recshuf\[cloud\]"):
        shuffle(f"{s3_bucket.url}/a", tmp_path / "out.txt")


def test_local_runs_import_no_library_for_stores(tmp_path: Path):
    source = write_lines(tmp_path / "in.txt")
    script = (
        "import sys, recshuf; recshuf.shuffle(sys.argv[1], sys.argv[2]); "
        "print(sorted({'obstore', 'boto3', 'botocore', 'fsspec', 'google.auth', 'requests', 'azure.core'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, source, tmp_path / "out.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "[]\n"
