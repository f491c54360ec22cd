"""Inputs in a bucket: the records and the bytes of a run on the same files, or one clear error."""

import sys
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import InputError, MissingInputError, RecshufWarning, UsageError
from tests.support.effort import mostly_slow
from tests.support.formats.sample_folders import KINDS, make_folder
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import (
    SEED,
    SHARDS,
    AnyBucket,
    in_each_store,
    put_files,
    shuffle,
    shuffle_locally,
)
from tests.support.objects.object_server import CREDENTIALS, Bucket
from tests.support.objects.other_buckets import GcsTestBucket
from tests.support.processes.task_runs import DyingEngine, LostError, divide_small
from tests.support.small_runs import list_shards

slow = pytest.mark.slow


def check_equal(tmp_path: Path, bucket: AnyBucket, **options: Any) -> None:
    """Check that the files of `tmp_path / "in"` give the same output, manifest included, from a bucket."""
    local, remote = str(tmp_path / "in"), f"{bucket.url}/in"
    expected = shuffle_locally(tmp_path / "in", tmp_path / "local", **options)
    put_files(bucket, tmp_path / "in")
    found = shuffle_locally(f"{remote}/", tmp_path / "remote", **options)
    assert {
        name: content.replace(remote.encode(), local.encode()) for name, content in found.items()
    } == expected


@in_each_store
@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("jsonl", "parquet"),
        ("hdf5", None),
        *(pytest.param(name, "jsonl", marks=slow) for name in ("parquet", "csv")),
    ],
)
def test_the_output_is_that_of_a_run_on_local_files(
    tmp_path: Path, bucket: AnyBucket, name: str, to: str | None
):
    make_inputs(tmp_path / "in", name, (300, 200, 0, 250) if to is None else (300, 200))
    check_equal(tmp_path, bucket, to=to)


def test_compressed_inputs_are_read(tmp_path: Path, s3_bucket: Bucket, source: Path):
    (tmp_path / "in").mkdir()
    for suffix in ("zst", "gz"):
        shuffle(source, tmp_path / "in" / f"a.txt.{suffix}", shards=None)
    check_equal(tmp_path, s3_bucket)


def test_a_store_is_scattered_from_a_bucket_and_counted_by_plans(tmp_path: Path, bucket: AnyBucket):
    make_inputs(tmp_path / "in", "parquet", (300, 200))
    expected = shuffle_locally(tmp_path / "in", tmp_path / "local", shards=2)
    put_files(bucket, tmp_path / "in")
    assert recshuf.plan(f"{bucket.url}/in", f"{tmp_path}/out/").record_count == 500
    recshuf.scatter(f"{bucket.url}/in/", tmp_path / "store", seed=5)
    recshuf.gather(tmp_path / "store", f"{tmp_path}/remote/", shards=2)
    assert {one.name: one.read_bytes() for one in (tmp_path / "remote").iterdir()} == {
        name.removeprefix("data/out/"): content for name, content in expected.items() if "shard" in name
    }


@pytest.mark.parametrize("change", mostly_slow(["content", "size", "gone"], "content"))
def test_a_failed_run_is_resumed_unless_an_object_has_changed(
    tmp_path: Path, bucket: AnyBucket, change: str, monkeypatch: pytest.MonkeyPatch
):
    """Content of the same size, written in the same second, has another ETag only."""
    divide_small(monkeypatch)
    make_inputs(tmp_path / "in", "jsonl", (300, 200))
    put_files(bucket, tmp_path / "in")
    inputs, output, options = f"{bucket.url}/in/", tmp_path / "out", {"piles": 64, "memory": "300MB"}
    expected = shuffle_locally(inputs, tmp_path / "local", **options)
    output.mkdir()
    DyingEngine.left = 3
    with pytest.raises(LostError):
        shuffle(inputs, f"{output}/out/", engine="dying", **options)
    content = bucket.read("in/input0.jsonl")
    if change == "gone":
        bucket.delete("in/input0.jsonl")
    else:
        bucket.put("in/input0.jsonl", content[::-1] if change == "content" else content[:-1])
    said = {
        "content": ": has changed since the unfinished run: it was replaced",
        "size": ".*size",
        "gone": "",
    }
    with pytest.raises((InputError, UsageError), match=rf"input0.jsonl{said[change]}|inputs"):
        shuffle(inputs, f"{output}/out/", resume=True, engine="threads", **options)
    assert list(output.glob("out*")) == []
    if bucket.url.startswith("az"):  # the same content has another ETag
        return
    bucket.put("in/input0.jsonl", content)
    shuffle(inputs, f"{output}/out/", resume=True, engine="threads", **options)
    for name, shard in expected.items():
        assert (output / name.removeprefix("data/")).read_bytes() == shard


def test_requests_are_reported(tmp_path: Path, s3_bucket: Bucket, source: Path):
    content = b"".join(b"%0999d\n" % number for number in range(24_000))
    s3_bucket.put("in.txt", content)
    s3_bucket.proxy.answer(r"GET .*in\.txt", 503, "SlowDown", times=2)
    report = shuffle(f"{s3_bucket.url}/in.txt", tmp_path / "out.txt", shards=None, memory="1GB")
    found = report.downloads
    assert found is not None
    assert found.requests == len(s3_bucket.proxy.requests)
    assert (found.retries, found.byte_count) == (2, len(content))
    assert found.median_request_bytes >= 4 << 20
    assert report.to_json()["downloads"] == {
        "requests": found.requests,
        "retries": 2,
        "byte_count": len(content),
        "median_request_bytes": found.median_request_bytes,
    }
    s3_bucket.put("source.txt", source.read_bytes())
    for one in (
        recshuf.scatter(f"{s3_bucket.url}/source.txt", tmp_path / "store"),
        recshuf.verify(source, f"{s3_bucket.url}/source.txt"),
    ):
        assert one.downloads is not None
        assert one.downloads.byte_count == source.stat().st_size
    assert recshuf.verify(source, source).downloads is None


@pytest.mark.parametrize(("memory", "times"), [("1GB", 1), ("40MB", 2)])
def test_a_run_that_verifies_itself_fetches_its_inputs_once_if_memory_is_not_scarce(
    tmp_path: Path, s3_bucket: Bucket, memory: str, times: int
):
    s3_bucket.put("in.txt", LARGE)
    source, output = f"{s3_bucket.url}/in.txt", tmp_path / "out.txt"
    report = shuffle(source, output, shards=None, memory=memory, workers=1, verify=True)
    assert report.downloads is not None
    assert report.downloads.byte_count // len(LARGE) == times


# What is read back


def test_verify_finds_what_is_wrong_with_an_output_in_a_bucket(bucket: AnyBucket, source: Path):
    shuffle(source, f"{bucket.url}/out/")
    assert recshuf.verify(source, f"{bucket.url}/out/")
    assert recshuf.verify(f"{bucket.url}/out/", f"{bucket.url}/out")
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


# Faults

LARGE = b"".join(b"%0999d\n" % number for number in range(20_000))
"""Read in many requests."""
GETS = "GET .*/in([.]|%2E)txt"


@pytest.fixture
def large(bucket: AnyBucket, no_pauses: None) -> AnyBucket:
    """Return a bucket with an object of 20 MB, ``in.txt``."""
    bucket.put("in.txt", LARGE)
    return bucket


def read(bucket: AnyBucket, tmp_path: Path, **options: Any) -> recshuf.ShuffleReport:
    return shuffle(f"{bucket.url}/in.txt", tmp_path / "out.txt", shards=None, **options)


@in_each_store
@pytest.mark.parametrize(
    ("number", "change"),
    [(1, "replaced"), (2, "deleted")],
)
def test_an_object_that_changes_is_an_error(tmp_path: Path, large: AnyBucket, number: int, change: str):
    seen = iter(range(1000))
    strike = (
        (lambda: large.put("in.txt", LARGE[::-1])) if change == "replaced" else lambda: large.delete("in.txt")
    )
    large.proxy.call(GETS, lambda: next(seen) == number and strike(), times=1000)
    # Azure compares ETags first.
    is_told = change == "deleted" and not large.url.startswith("az")
    error, said = (MissingInputError, ": it is gone") if is_told else (InputError, "")
    with pytest.raises(error, match=f"in.txt: changed while it was read{said}; run again when nobody writes"):
        read(large, tmp_path)
    assert not (tmp_path / "out.txt").exists()


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
def test_what_the_store_refuses_is_an_error_that_names_the_url(
    tmp_path: Path, s3_bucket: Bucket, status: int, code: str, said: str
):
    s3_bucket.put("in.txt", b"a\n")
    for request in (GETS, "HEAD .*", ""):
        told = said
        if request == "HEAD .*":  # its answer has no code
            told = said.replace(code, f"({code}|{status})")
            if code in ("ExpiredToken", "RequestTimeTooSkewed"):
                told = rf"(the store answers|access is denied) \(?{status}"
        s3_bucket.proxy.clear()
        s3_bucket.proxy.answer(request, status, code, times=100)
        with pytest.raises(InputError, match=f"^{s3_bucket.url}/in.txt: {told}"):
            read(s3_bucket, tmp_path)


def test_a_missing_bucket_is_named(tmp_path: Path, s3_bucket: Bucket):
    for url in ("s3://no-such-bucket/", "s3://no-such-bucket/a.txt", "s3://no-such-bucket/*.txt"):
        said = r"^s3://no-such-bucket: there is no such bucket; check the name$"
        with pytest.raises(MissingInputError, match=said):
            shuffle(url, tmp_path / "out.txt", shards=None)
    s3_bucket.put("in.txt", b"a\n")
    s3_bucket.proxy.answer(GETS, 404, "NoSuchBucket", times=100)
    with pytest.raises(MissingInputError, match=f"^{s3_bucket.url}: there is no such bucket; check the name"):
        read(s3_bucket, tmp_path)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, s3_bucket: Bucket):
    said = r"the store cannot be reached: .*, after 8 attempts; check the endpoint URL and the network"
    waits = r"the store cannot be reached: .*, after 2 attempts; waits, and tries again up to 8 times$"
    with pytest.raises(InputError, match=said), pytest.warns(RecshufWarning, match=waits) as heard:
        read(s3_bucket, tmp_path, endpoint_url="http://127.0.0.1:9")
    assert len(heard) == 1


def test_public_objects_need_no_credentials(
    tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3_bucket.put("in.txt", b"a\n", {"x-amz-acl": "public-read"})
    with pytest.raises(UsageError, match="there are no credentials; set AWS_ACCESS_KEY_ID"):
        read(s3_bucket, tmp_path)
    assert read(s3_bucket, tmp_path, storage_options={"skip_signature": "true"}).records == 1


def test_each_store_of_a_run_has_its_own_options(
    tmp_path: Path,
    s3_bucket: Bucket,
    gcs_bucket: GcsTestBucket,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    shuffle(source, f"{gcs_bucket.url}/in.txt", shards=None, seed=1)
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


def test_an_unknown_option_and_a_missing_library_are_named(
    tmp_path: Path, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UsageError, match=r"^storage_options colour: is not taken"):
        read(s3_bucket, tmp_path, storage_options={"colour": "red"})
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"reading s3:// needs obstore; install recshuf\[cloud\]"):
        read(s3_bucket, tmp_path)


# Formats that are no lines and no Parquet: from a bucket and into it, by tasks and by way of a store, as from files


@pytest.mark.parametrize("kind", mostly_slow(KINDS, "webdataset"))
def test_a_bucket_gets_the_bytes_of_files(
    tmp_path: Path, s3_bucket: Bucket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_folder(tmp_path / "in", kind)
    put_files(s3_bucket, tmp_path / "in")
    cut = {"seed": SEED, "shards": SHARDS, "workers": 1}
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", **cut, **options)
    expected = {path.name: path.read_bytes() for path in list_shards(tmp_path / "out")}
    assert len(expected) == SHARDS
    source, outputs = (
        f"{s3_bucket.url}/in/",
        [f"{s3_bucket.url}/{name}/" for name in ("one", "tasks", "gathered")],
    )
    recshuf.shuffle(source, outputs[0], verify=True, **cut, **options)
    divide_small(monkeypatch, sum(path.stat().st_size for path in (tmp_path / "in").iterdir()) // 6)
    engine = {"engine": "threads", "temp_dir": f"{s3_bucket.url}/tmp", "piles": 8, "memory": "300MB"}
    recshuf.shuffle(source, outputs[1], **engine, **cut, **options)
    keeps_keys = kind == "webdataset"  # as a store does
    if not keeps_keys:
        to = {name: value for name, value in options.items() if name == "to"}
        of_inputs = {name: value for name, value in options.items() if name != "to"}
        recshuf.scatter(source, tmp_path / "store", seed=SEED, **of_inputs)
        recshuf.gather(tmp_path / "store", outputs[2], shards=SHARDS, **to)
    for name in ("one", "tasks", "gathered")[: 2 if keeps_keys else 3]:
        found = {key.partition("/")[2]: body for key, body in s3_bucket.read_all(f"{name}/").items()}
        assert {name: found.get(name) for name in expected} == expected
