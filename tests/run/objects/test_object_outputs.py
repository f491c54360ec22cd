"""Outputs in a bucket: the bytes of a local run, seen when they are whole, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, InputError, OutputError, OutputExistsError, UsageError
from recshuf.output.objects import uploader
from recshuf.run.resolve import ResolvedJob
from recshuf.storage.writing import parts as file_parts
from recshuf.storage.writing import s3
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.objects.object_outputs import (
    SHARDS,
    check_whole,
    shuffle,
    shuffle_locally,
    write_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket


@pytest.mark.parametrize("name", FORMATS)
def test_the_objects_are_those_of_a_local_run(tmp_path: Path, bucket: AnyBucket, scratch: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, (300, 200, 0, 250))
    expected = shuffle_locally(inputs, tmp_path / "local")
    report = shuffle(inputs, f"{bucket.url}/data/out/")
    check_whole(bucket, expected)
    assert os.listdir(scratch) == []
    names = [f"data/out/{shard.name}" for shard in report.shards]
    assert [shard.file_bytes for shard in report.shards] == [len(expected[name]) for name in names]


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [("out/", [], "1 shard in"), ("out", ["--shards", "3"], "3 shards in"), ("out.txt", [], "to")],
)
def test_the_summary_counts_shards(
    tmp_path: Path, bucket: AnyBucket, call: Run, output: str, options: list[str], said: str
):
    (path,) = make_inputs(tmp_path, "text", (300,))
    done = call(path, "-o", f"{bucket.url}/data/{output}", *options)
    assert f", {said} {bucket.url}/data/{output}, " in done.stderr.decode()


@pytest.mark.parametrize(("name", "to"), [("jsonl", "parquet"), ("parquet", "jsonl"), ("csv", "jsonl")])
def test_conversions_are_those_of_a_local_run(tmp_path: Path, bucket: AnyBucket, name: str, to: str):
    inputs = make_inputs(tmp_path / "in", name, (300, 200))
    expected = shuffle_locally(inputs, tmp_path / "local", to=to)
    shuffle(inputs, f"{bucket.url}/data/out/", to=to)
    check_whole(bucket, expected)


def test_an_inferred_schema_that_fails_is_replaced(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("recshuf.run.decoding._PREFIX_BYTES", 1 << 10)
    inputs = [tmp_path / f"in{number}.jsonl" for number in range(2)]
    for number, path in enumerate(inputs):
        path.write_text("".join(f'{{"a": {row + number / 2}}}\n' for row in range(1000)).replace(".0}", "}"))
    expected = shuffle_locally(inputs, tmp_path / "local", to="parquet")
    schemas: list[Any] = []
    find = ResolvedJob.find_table_schema
    monkeypatch.setattr(
        ResolvedJob, "find_table_schema", lambda job: schemas.append(find(job)) or schemas[-1]
    )
    shuffle(inputs, f"{bucket.url}/data/out/", to="parquet")
    assert len(set(map(str, schemas))) == 2
    check_whole(bucket, expected)


@pytest.mark.parametrize("name", ["out.txt", "a/b/out.txt.zst"])
def test_one_object_is_that_of_a_local_run(tmp_path: Path, bucket: AnyBucket, name: str):
    source = write_lines(tmp_path / "in.txt")
    local = tmp_path / os.path.basename(name)  # noqa: PTH119 - a key
    shuffle(source, local, shards=None)
    shuffle(source, f"{bucket.url}/{name}", shards=None)
    check_whole(bucket, {name: local.read_bytes()})


@pytest.mark.parametrize("memory", ["128MB", "1GB"])
def test_large_shards_go_in_parts(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, monkeypatch: pytest.MonkeyPatch, memory: str
):
    """With little memory they are files first."""
    for module in (uploader, file_parts):
        monkeypatch.setattr(module, "PART_BYTES", 5 << 20)
    files: list[int] = []
    monkeypatch.setattr(
        uploader,
        "send_file",
        lambda *given, **named: files.append(1) or file_parts.send_file(*given, **named),
    )
    (tmp_path / "in.txt").write_bytes(b"".join(b"%0998d\n" % number for number in range(25_000)))
    expected = shuffle_locally(tmp_path / "in.txt", tmp_path / "local", shards=2)
    shuffle(tmp_path / "in.txt", f"{bucket.url}/data/out/", shards=2, memory=memory, workers=4)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) >= 2 * 3
    assert len(files) == (2 if memory == "128MB" else 0)
    assert os.listdir(scratch) == []


def test_empty_shards_are_objects(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt", 2)
    expected = shuffle_locally(source, tmp_path / "local")
    shuffle(source, f"{bucket.url}/data/out/")
    check_whole(bucket, expected)
    assert sorted(map(len, expected.values()))[:2] == [0, 0]


def test_a_prefix_with_objects_is_a_directory(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    shuffle(source, f"{bucket.url}/data/out/")
    shuffle(source, f"{bucket.url}/data/out", shards=None, overwrite=True)
    assert bucket.list_keys() == ["data/out.recshuf.json", "data/out/shard-00000.txt"]


def test_a_store_is_gathered_into_a_bucket(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    expected = shuffle_locally(source, tmp_path / "local")
    recshuf.scatter(source, tmp_path / "store", seed=5)
    recshuf.gather(tmp_path / "store", f"{bucket.url}/data/out/", shards=SHARDS)
    found = bucket.read_all()
    assert {key: found[key] for key in found if "shard" in key} == {
        key: expected[key] for key in expected if "shard" in key
    }


def test_bad_lines_are_set_aside(tmp_path: Path, bucket: AnyBucket):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\nbad\n{"a": 2}\n')
    options: dict[str, Any] = {"to": "parquet", "shards": 1}
    shuffle(
        tmp_path / "in.jsonl", f"{bucket.url}/out/", on_bad_record=f"quarantine:{tmp_path / 'bad'}", **options
    )
    assert b"bad" in (tmp_path / "bad").read_bytes()


# Visibility


def list_visible(bucket: AnyBucket) -> set[str]:
    """Return what a reader sees who looks for data."""
    return {key for key in bucket.list_keys() if "/." not in key}


def watch(bucket: AnyBucket) -> list[tuple[str, set[str]]]:
    """Note before each request what is visible."""
    seen: list[tuple[str, set[str]]] = []
    bucket.proxy.call("", lambda: seen.append((bucket.proxy.requests[-1], list_visible(bucket))), times=10**6)
    return seen


def test_nothing_is_visible_before_the_commit_and_the_manifest_comes_last(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    expected = shuffle_locally(source, tmp_path / "local")
    seen = watch(bucket)
    shuffle(source, f"{bucket.url}/data/out/")
    is_claim = [bool(re.match(bucket.requests["claim"], request)) for request, _ in seen]
    is_manifest = [bool(re.match(bucket.requests["manifest"], request)) for request, _ in seen]
    assert is_claim.count(True) == is_manifest.count(True) == 1
    assert all(not visible for _, visible in seen[: is_claim.index(True) + 1])
    shards = {key for key in expected if "shard" in key}
    assert seen[is_manifest.index(True)][1] == shards
    assert seen[-1][1] == set(expected)


def test_an_old_set_stays_until_the_commit(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    shuffle(source, f"{bucket.url}/data/out/", seed=1)
    before = bucket.read_all()
    bucket.proxy.clear()
    found: list[dict[str, bytes]] = []
    bucket.proxy.call(
        bucket.requests["claim"],
        lambda: found.append({key: bucket.read(key) for key in list_visible(bucket)}),
    )
    shuffle(source, f"{bucket.url}/data/out/", overwrite=True)
    assert found == [before]


# What is there already


def test_an_old_set_is_replaced_as_a_whole(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    shuffle(source, f"{bucket.url}/data/out/", shards=9)
    bucket.put("data/out2/other", b"")
    bucket.put("data/outer", b"")
    expected = shuffle_locally(source, tmp_path / "local")
    shuffle(source, f"{bucket.url}/data/out/", overwrite=True)
    check_whole(bucket, expected | {"data/out2/other": b"", "data/outer": b""})


def test_what_exists_is_not_replaced_unasked(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    bucket.put("data/one.txt", b"precious")
    bucket.put("data/out/precious", b"precious")
    before = bucket.read_all()
    with pytest.raises(OutputExistsError, match=r"one\.txt: exists already; give overwrite=True"):
        shuffle(source, f"{bucket.url}/data/one.txt", shards=None)
    for overwrite in (False, True):
        with pytest.raises(
            OutputError, match="holds 'precious', which is not from an earlier run; remove it"
        ):
            shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    bucket.put("data/out.recshuf.json", b"{}")
    with pytest.raises(OutputError, match=r"out\.recshuf\.json: is not a manifest"):
        shuffle(source, f"{bucket.url}/data/out/", overwrite=True)
    assert bucket.read_all() == before | {"data/out.recshuf.json": b"{}"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("late", ["shard-00002.txt", "../out.recshuf.json"])
def test_what_somebody_else_writes_meanwhile_is_not_replaced(
    tmp_path: Path, bucket: AnyBucket, overwrite: bool, late: str
):
    source = write_lines(tmp_path / "in.txt")
    key = os.path.normpath(f"data/out/{late}")
    bucket.proxy.call(bucket.requests["claim"], lambda: bucket.put(key, b"precious"))
    with pytest.raises(
        OutputError, match=f"{re.escape(key)}: was written by another program during this run"
    ):
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    assert bucket.read(key) == b"precious"
    bucket.delete(key)
    with pytest.raises(AlreadyCompleteError, match="complete; the commit"):
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite, resume=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"))


@pytest.mark.parametrize("pattern", ["data/", "data/*", ""])
def test_an_output_among_the_inputs_of_a_later_run_is_warned_of(
    tmp_path: Path, bucket: AnyBucket, call: Run, pattern: str
):
    bucket.put("data/in.txt", write_lines(tmp_path / "in.txt").read_bytes())
    inputs, output = f"{bucket.url}/{pattern}", f"{bucket.url}/data/out/"
    done = call(inputs, "-o", output, "--shards", "2")
    assert done.returncode == 0
    said = f"{output}: lies in the input {inputs}, and a later run on that reads it too; choose an output elsewhere"
    assert said in done.stderr.decode()
    again = call(f"{bucket.url}/data/in.txt", "-o", f"{bucket.url}/data/other/", "--shards", "2")
    assert b"later run" not in again.stderr


# Faults


REQUESTS = ("journal", "run", "begin", "part", "complete", "manifest", "list", "delete")
FAULTS: dict[str, Callable[[AnyBucket, str], None]] = {
    "busy": lambda bucket, request: bucket.proxy.answer(request, 503, "SlowDown"),
    "reset": lambda bucket, request: bucket.proxy.reset(request),
    "lost": lambda bucket, request: bucket.proxy.lose_reply(request),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_faults_of_the_store_are_overcome(tmp_path: Path, bucket: AnyBucket, request_name: str, fault: str):
    source = write_lines(tmp_path / "in.txt")
    FAULTS[fault](bucket, bucket.requests[request_name])
    shuffle(source, f"{bucket.url}/data/out/")
    found = bucket.read_all()
    assert found == shuffle_locally(source, tmp_path / "local")
    # An upload whose begin was answered to nobody is aborted, too, if the store lists uploads.
    assert len(bucket.list_uploads()) == (
        bucket.url.startswith("gs") and (request_name, fault) == ("begin", "lost")
    )


@pytest.mark.parametrize("request_name", [name for name in REQUESTS if name not in ("delete", "list")])
def test_a_run_that_fails_leaves_nothing_or_what_resume_completes(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, request_name: str
):
    source = write_lines(tmp_path / "in.txt")
    request = bucket.requests[request_name]
    status, code, said = bucket.refusal
    bucket.proxy.answer(request, status, code, times=10**6)
    with pytest.raises(OutputError, match=said) as caught:
        shuffle(source, f"{bucket.url}/data/out/")
    assert os.listdir(scratch) == []
    has_parts = any("resume=True" in note for note in getattr(caught.value, "__notes__", ()))
    assert has_parts == (request_name in ("complete", "manifest"))
    if not has_parts:
        assert bucket.list_keys() == bucket.list_uploads() == []
    bucket.proxy.clear()
    try:
        shuffle(source, f"{bucket.url}/data/out/", resume=has_parts)
    except AlreadyCompleteError:
        assert has_parts
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"))


@pytest.mark.parametrize(
    "bucket", ["s3_bucket", "gcs_bucket"], indirect=True
)  # the signature of Azure holds conditions
def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path, bucket: AnyBucket):
    bucket.proxy.ignore_conditions("(PUT|POST) ")
    with pytest.raises(OutputError, match="the store ignores If-None-Match"):
        shuffle(write_lines(tmp_path / "in.txt"), f"{bucket.url}/data/out/")
    check_whole(bucket, {})


def test_an_input_that_fails_leaves_nothing(tmp_path: Path, bucket: AnyBucket, scratch: Path):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n' * 5000 + "bad\n")
    with pytest.raises(InputError):
        shuffle(tmp_path / "in.jsonl", f"{bucket.url}/data/out/", to="parquet", schema={"a": "int64"})
    assert bucket.list_keys() == bucket.list_uploads() == os.listdir(scratch) == []


# Usage


def test_what_is_not_possible_is_refused(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("s3://b/out/", {"temp_dir": "hf://b/x"}, "temp_dir hf://b/x: is only read; give s3://"),
        ("s3://b", {}, "is a whole bucket; give a prefix in it"),
        ("s3://b/", {}, "is a whole bucket; give a prefix in it"),
        ("s3://b/out/", {"temp_dir": "s3://b"}, "temp_dir s3://b: is a whole bucket; give a prefix in it"),
        ("s3://b/a//out/", {}, "s3://b/a//out/: has an empty part in its key"),
        ("s3://b//out/", {}, "has an empty part in its key"),
        ("s3://b/out//", {}, "has an empty part in its key"),
        ("s3://b/a//out.txt", {"shards": None}, "has an empty part in its key"),
        ("s3://b/out/./x/", {}, "s3://b/out/./x/: has a part '.' in its key"),
        ("s3://b/../x", {"shards": None}, "s3://b/../x: has a part '..' in its key"),
        ("s3://b/a\tb/", {}, "has a control character in its key"),
        ("s3://b/out/", {"temp_dir": "s3://b/tmp/.."}, "temp_dir s3://b/tmp/..: has a part '..' in its key"),
        (
            "s3://b/out/",
            {"temp_dir": "s3://b/a//tmp"},
            "temp_dir s3://b/a//tmp: has an empty part in its key",
        ),
        ("https://b/out", {}, "is only read; write to s3://, gs://, az:// or a local folder"),
    ]
    for output, options, said in cases:
        with pytest.raises(UsageError, match=re.escape(said)):
            shuffle(source, output, **options)
    assert bucket.proxy.requests == []


def test_a_page_about_an_output_that_is_not_read_is_refused(tmp_path: Path, bucket: AnyBucket, call: Run):
    source = write_lines(tmp_path / "in.txt")
    done = call(source, "-o", f"{bucket.url}/out/", "--html", tmp_path / "page.html")
    assert done.returncode == 2
    assert b"--html reads the output again" in done.stderr
    assert bucket.proxy.requests == []


def test_a_local_run_imports_no_library_of_object_stores(tmp_path: Path):
    source = write_lines(tmp_path / "in.txt")
    script = (
        f"import sys, recshuf; recshuf.shuffle({str(source)!r}, {str(tmp_path / 'out.txt')!r})\n"
        "assert not {'boto3', 'botocore', 'obstore', 'fsspec', 'google.auth', 'requests', 'azure.core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_report_has_the_requests_to_the_store(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    for module in (uploader, file_parts):
        monkeypatch.setattr(module, "PART_BYTES", 5 << 20)
    (tmp_path / "in.txt").write_bytes(b"".join(b"%099999d\n" % number for number in range(205)))
    bucket.proxy.answer(bucket.requests["part"], 503, "SlowDown", times=2)
    report = shuffle(tmp_path / "in.txt", f"{bucket.url}/out.txt", shards=None)
    found = report.uploads
    assert found
    assert (found.parts, found.byte_count, found.median_part_bytes) == (4, 20_500_000, 5 << 20)
    assert found.retries == 2
    # Errors that are expected are no answers.
    answered = [one for one in bucket.proxy.requests if "HEAD" not in one]
    assert 0 <= len(answered) - found.requests <= 3
    assert report.to_json()["uploads"] == dataclasses.asdict(found)
    assert "uploads" not in shuffle(tmp_path / "in.txt", tmp_path / "out.txt", shards=None).to_json()


@pytest.mark.slow
def test_many_shards_are_those_of_a_local_run(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    """More objects than a page of a listing or a request to delete holds; the emulators of S3 and GCS have pages of 100."""
    assert s3._DELETED_AT_ONCE <= 1000, "S3 takes no more keys"
    monkeypatch.setattr(s3, "_DELETED_AT_ONCE", 100)
    source = write_lines(tmp_path / "in.txt", 20_000)
    shards = 1001 if bucket.url.startswith("az:") else 201
    expected = shuffle_locally(source, tmp_path / "local", shards=shards)
    shuffle(source, f"{bucket.url}/data/out/", shards=shards)
    check_whole(bucket, expected)
    shuffle(source, f"{bucket.url}/data/out/", shards=1, overwrite=True)
    assert bucket.list_keys() == ["data/out.recshuf.json", "data/out/shard-00000.txt"]


def test_the_plan_says_how_much_disk_is_needed(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt", 200_000)
    whole = recshuf.plan(source, tmp_path / "out/", shards=1000)
    plan = recshuf.plan(source, f"{bucket.url}/out/", shards=1000, memory="128MB", workers=4)
    assert plan.peak_disk_bytes - plan.spilled_bytes == whole.peak_disk_bytes // 1000 * (
        plan.shard_writers + uploader.MOST_SHARDS
    )
    assert recshuf.plan(source, f"{bucket.url}/out/", shards=1000, memory="1GB").peak_disk_bytes == 0
    assert bucket.list_keys() == []


def test_an_error_is_one_line(tmp_path: Path, bucket: AnyBucket, run: Run):
    source = write_lines(tmp_path / "in.txt")
    status, code, said = bucket.refusal
    bucket.proxy.answer(bucket.requests["part"], status, code, times=100)
    done = run(source, "-o", f"{bucket.url}/data/out/", "--shards", "4")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert re.search(said, done.stderr.decode())
