"""Outputs in a bucket: the bytes of a local run, seen when they are whole, and nothing left behind."""

import dataclasses
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import (
    AlreadyCompleteError,
    CheckError,
    InputError,
    OutputError,
    OutputExistsError,
    RecshufError,
    UsageError,
)
from recshuf.job.arguments import make_job
from recshuf.output.objects import uploader
from recshuf.storage import writing as file_parts
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import (
    SHARDS,
    STORES,
    AnyBucket,
    Output,
    check_whole,
    in_each_store,
    read_visible,
    shuffle,
    shuffle_locally,
    write_lines,
)
from tests.support.processes.task_runs import SavedPlan, divide_small

slow = pytest.mark.slow
COUNTS = (300, 200, 0, 250)


@pytest.mark.parametrize(
    ("bucket", "name", "counts", "options"),
    [
        *((store, "csv", COUNTS, {"split": "a=0.6,b=0.4", "verify": True}) for store in STORES),
        ("s3_bucket", "text", (1, 0, 1), {}),  # two shards are empty
        ("s3_bucket", "parquet", COUNTS, {"group_by": "tag", "verify": True}),
        ("s3_bucket", "jsonl", COUNTS, {"to": "parquet", "provenance": True, "verify": True}),
        ("s3_bucket", "hdf5", COUNTS, {"head_count": 100, "verify": True}),
    ],
    indirect=["bucket"],
)
def test_the_objects_are_those_of_a_local_run(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, name: str, counts: tuple[int], options: dict[str, Any]
):
    inputs = make_inputs(tmp_path / "in", name, counts)
    expected = shuffle_locally(inputs, tmp_path / "local", **options)
    report = shuffle(inputs, f"{bucket.url}/data/out/", **options)
    check_whole(bucket, expected)
    assert os.listdir(scratch) == []
    assert [one.name for one in report.passes][3:] == ["verify"] * ("verify" in options)
    names = [f"data/out/{shard.name}" for shard in report.shards]
    assert [shard.file_bytes for shard in report.shards] == [len(expected[name]) for name in names]


def test_an_inferred_schema_that_fails_is_replaced(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    """The second input has no integers."""
    # Real prefixes are megabytes.
    monkeypatch.setattr("recshuf.run.decoding.PREFIX_BYTES", 1 << 10)
    inputs = [tmp_path / f"in{number}.jsonl" for number in range(2)]
    for number, path in enumerate(inputs):
        path.write_text("".join(f'{{"a": {row + number / 2}}}\n' for row in range(1000)).replace(".0}", "}"))
    expected = shuffle_locally(inputs, tmp_path / "local", to="parquet")
    shuffle(inputs, f"{bucket.url}/data/out/", to="parquet")
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["begin"]) >= SHARDS


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the smallest parts that S3 takes."""
    for module in (uploader, file_parts):
        monkeypatch.setattr(module, "PART_BYTES", 5 << 20)


@pytest.mark.usefixtures("small_parts")
def test_large_shards_go_in_parts(tmp_path: Path, bucket: AnyBucket, scratch: Path):
    """With little memory they are files first."""
    (tmp_path / "in.txt").write_bytes(b"".join(b"%0998d\n" % number for number in range(25_000)))
    expected = shuffle_locally(tmp_path / "in.txt", tmp_path / "local", shards=2)
    shuffle(tmp_path / "in.txt", f"{bucket.url}/data/out/", shards=2, memory="128MB", workers=4)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) >= 2 * 3
    assert os.listdir(scratch) == []


def test_a_store_is_gathered_into_a_bucket(tmp_path: Path, bucket: AnyBucket, source: Path):
    recshuf.scatter(source, tmp_path / "store", seed=5)
    outputs = (f"{tmp_path}/out/", f"{bucket.url}/data/out/")
    for output in outputs:
        recshuf.gather(tmp_path / "store", output, shards=SHARDS, epoch=1, mix=4)
    check_whole(
        bucket,
        {
            **{f"data/out/{path.name}": path.read_bytes() for path in (tmp_path / "out").iterdir()},
            "data/.out.recshuf.json": (tmp_path / ".out.recshuf.json").read_bytes(),
        },
    )


# Visibility


def test_nothing_is_visible_before_the_commit_and_the_manifest_comes_last(bucket: AnyBucket, output: Output):
    output.put_old()
    old, seen = read_visible(bucket), []
    bucket.proxy.call("", lambda: seen.append((bucket.proxy.requests[-1], read_visible(bucket))), times=10**6)
    output.shuffle(overwrite=True)
    is_claim = [bool(re.match(bucket.requests["claim"], request)) for request, _ in seen]
    is_manifest = [bool(re.match(bucket.requests["manifest"], request)) for request, _ in seen]
    assert is_claim.count(True) == is_manifest.count(True) == 1
    assert all(visible == old for _, visible in seen[: is_claim.index(True) + 1])
    shards = {key: content for key, content in output.expected.items() if "shard" in key}
    assert seen[is_manifest.index(True)][1].items() >= shards.items()
    assert seen[-1][1] == output.expected


# What is there already


@in_each_store
def test_an_old_set_is_replaced_as_a_whole(bucket: AnyBucket, output: Output):
    output.shuffle(shards=9)
    others = {"data/out2/other": b"1", "data/outer": b"2"}
    for key, content in others.items():
        bucket.put(key, content)
    output.shuffle(overwrite=True)
    check_whole(bucket, output.expected | others)
    # A prefix with objects is a directory.
    shuffle(output.source, f"{bucket.url}/data/out", shards=None, overwrite=True)
    assert bucket.list_keys("data/out/") == ["data/out/shard-00000.txt"]


def test_what_exists_is_not_replaced_unasked(bucket: AnyBucket, output: Output):
    bucket.put("data/one.txt", b"precious")
    bucket.put("data/out/precious", b"precious")
    before = bucket.read_all()
    with pytest.raises(OutputExistsError, match=r"one\.txt: exists already; give overwrite=True"):
        shuffle(output.source, f"{bucket.url}/data/one.txt", shards=None)
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="holds 'precious', which is not from an earlier run; move"):
            output.shuffle(overwrite=overwrite)
    bucket.put("data/.out.recshuf.json", b"{}")
    with pytest.raises(OutputError, match=r"out\.recshuf\.json: is not a manifest"):
        output.shuffle(overwrite=True)
    assert bucket.read_all() == before | {"data/.out.recshuf.json": b"{}"}


# Faults

REQUESTS = ("journal", "run", "begin", "part", "complete", "manifest", "list", "delete")
FAULTS: dict[str, Callable[[AnyBucket, str], None]] = {
    "busy": lambda bucket, request: bucket.proxy.answer(request, 503, "SlowDown"),
    "reset": lambda bucket, request: bucket.proxy.reset(request),
    "lost": lambda bucket, request: bucket.proxy.lose_reply(request),
}


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_store_are_overcome(bucket: AnyBucket, output: Output, fault: str):
    """One of each kind of request."""
    for name in REQUESTS:
        FAULTS[fault](bucket, bucket.requests[name])
    output.shuffle()
    assert bucket.read_all() == output.expected
    # An upload whose begin was answered to nobody is aborted, too, if the store lists uploads.
    assert len(bucket.list_uploads()) == (bucket.url.startswith("gs") and fault == "lost")


def test_a_run_that_fails_before_a_part_is_finished_leaves_nothing(
    bucket: AnyBucket, output: Output, scratch: Path
):
    """But for uploads of others, below the same prefix."""
    bucket.begin_upload("data/out/of-others")
    others = bucket.list_uploads()
    for request_name in ("part", "journal", "run", "begin"):
        assert not hasattr(output.fail(request_name), "__notes__")
        assert bucket.list_keys() == os.listdir(scratch) == [], request_name
        assert bucket.list_uploads() == others
    output.shuffle()
    assert bucket.read_all() == output.expected
    assert bucket.list_uploads() == others


# The signature of Azure holds conditions.
@pytest.mark.parametrize("bucket", STORES[:2], indirect=True)
def test_a_store_that_ignores_conditions_is_refused(bucket: AnyBucket, output: Output):
    bucket.proxy.ignore_conditions("(PUT|POST) ")
    with pytest.raises(OutputError, match="the store ignores If-None-Match"):
        output.shuffle()
    check_whole(bucket, {})


@pytest.mark.parametrize("has_prefix", [False, True])
def test_an_input_that_fails_leaves_nothing(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, has_prefix: bool
):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n' * 5000 + "bad\n")
    options = {
        "to": "parquet",
        "schema": {"a": "int64"},
        "temp_dir": f"{bucket.url}/tmp" if has_prefix else None,
    }
    with pytest.raises(InputError):
        shuffle(tmp_path / "in.jsonl", f"{bucket.url}/data/out/", **options)
    assert bucket.list_keys() == bucket.list_uploads() == os.listdir(scratch) == []


# Usage


def test_what_is_not_possible_is_refused(source: Path, s3_bucket: AnyBucket):
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("s3://b/out/", {"temp_dir": "hf://b/x"}, "temp_dir hf://b/x: is only read; give s3://"),
        ("s3://b", {}, "is a whole bucket; give a prefix in it"),
        ("s3://b/", {}, "is a whole bucket; give a prefix in it"),
        ("s3://b/out/", {"temp_dir": "s3://b"}, "temp_dir s3://b: is a whole bucket; give a prefix in it"),
        ("s3://b/a//out/", {}, "s3://b/a//out/: has an empty part in its key"),
        ("s3://b/a//out.txt", {"shards": None}, "has an empty part in its key"),
        ("s3://b/out/./x/", {}, "s3://b/out/./x/: has a part '.' in its key"),
        ("s3://b/../x", {"shards": None}, "s3://b/../x: has a part '..' in its key"),
        ("s3://b/a\tb/", {}, "has a control character in its key"),
        (
            "s3://b/out/",
            {"temp_dir": "s3://b/a//tmp"},
            "temp_dir s3://b/a//tmp: has an empty part in its key",
        ),
        ("https://b/out", {}, "is only read; write to s3://, gs://, az:// or a local folder"),
        *(
            (
                output,
                {"temp_dir": temp_dir},
                f"{temp_dir.rstrip('/')}/: lies in the output {output}, which holds shards only",
            )
            for output, temp_dir in (
                ("s3://b/out/", "s3://b/out/tmp/"),
                ("s3://b/out/", "s3://b/out"),
                ("s3://b/out", "s3://b/out/"),
                ("S3://b/out", "s3://b/out/a/b"),
                ("gs://b/a/out.parquet", "gs://b/a/out.parquet/tmp"),
            )
        ),
    ]
    for output, options, said in cases:
        with pytest.raises(UsageError, match=re.escape(said)):
            shuffle(source, output, **options)
    for temp_dir in ("s3://other/out/tmp", "gs://b/out/tmp", "s3://b/output/tmp"):
        make_job(str(source), "s3://b/out/", {"temp_dir": temp_dir})
    assert s3_bucket.proxy.requests == []


@pytest.mark.usefixtures("small_parts")
def test_the_report_has_the_requests_to_the_store(tmp_path: Path, bucket: AnyBucket):
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


def test_the_plan_says_how_much_disk_is_needed(tmp_path: Path, bucket: AnyBucket):
    source = write_lines(tmp_path / "in.txt", 200_000)
    whole = recshuf.plan(source, tmp_path / "out/", shards=1000)
    plan = recshuf.plan(source, f"{bucket.url}/out/", shards=1000, memory="128MB", workers=4)
    assert plan.peak_disk_bytes - plan.spilled_bytes == whole.peak_disk_bytes // 1000 * (
        plan.shard_writers + uploader.MOST_SHARDS
    )
    assert recshuf.plan(source, f"{bucket.url}/out/", shards=1000, memory="1GB").peak_disk_bytes == 0
    assert bucket.list_keys() == []


# `--verify`: compared after the commit, and what differs is an error that says what is there


SHARD = r"(GET|HEAD) .*shard(-|%2D)00001"
"""Requests of who reads a shard; some encode hyphens."""
AGAIN = "is in place, and was not compared: continue with the same command and resume=True"


def damage(bucket: AnyBucket) -> None:
    """Change one of the lines that `write_lines` wrote."""
    shard = bucket.read("data/out/shard-00001.txt")
    bucket.put("data/out/shard-00001.txt", shard.replace(b"line", b"LINE", 1))


def after_commit(bucket: AnyBucket, strike: Callable[[], object]) -> None:
    """Have something happen when the manifest is put; what is asked for later comes after the commit."""
    bucket.proxy.call(bucket.requests["manifest"], strike)


def damage_after_commit(bucket: AnyBucket) -> None:
    after_commit(bucket, lambda: bucket.proxy.call(SHARD, lambda: damage(bucket)))


def test_a_set_that_differs_is_an_error_and_stays(bucket: AnyBucket, source: Path, call: Run):
    url = f"{bucket.url}/data/out/"
    damage_after_commit(bucket)
    done = call(source, "-o", url, "--shards", "4", "--verify")
    assert done.returncode == 1
    assert "verify: 1 record missing, 1 extra; " in done.stderr.decode()
    assert f"{url} is in place: do not use it, write it again with --overwrite" in done.stderr.decode()
    assert len(bucket.list_keys("data/")) == 5
    assert bucket.list_keys("data/.out.recshuf/") == bucket.list_uploads() == []


# Runs that die


@pytest.mark.parametrize(
    ("is_in_place", "is_damaged"),
    [(True, True), (False, False)],
)
def test_a_run_that_dies_is_compared_when_it_is_resumed(
    bucket: AnyBucket, output: Output, is_in_place: bool, is_damaged: bool
):
    """Before its commit is completed, or before its output is read again."""
    if is_in_place:
        shards = SHARD.removesuffix("0001")
        refuse = partial(bucket.proxy.answer, shards, *bucket.refusal[:2], times=10**6)
        after_commit(bucket, refuse)
        with pytest.raises(RecshufError) as died:
            output.shuffle(verify=True)
        assert died.value.__notes__ == [f"{output.url} {AGAIN}"]
        bucket.proxy.clear()
        output.check()
        if is_damaged:
            damage(bucket)
    else:
        output.fail("complete", verify=True)
        if is_damaged:
            damage_after_commit(bucket)
    bucket.proxy.requests.clear()
    with pytest.raises(CheckError if is_damaged else AlreadyCompleteError) as told:
        output.shuffle(verify=True, resume=True)
    assert ("1 record missing, 1 extra" in str(told.value)) == is_damaged
    assert bucket.proxy.count(SHARD.replace("(GET|HEAD)", "GET")) > 0
    if not is_damaged:
        output.check()


# Tasks


def test_the_task_that_commits_compares(
    bucket: AnyBucket, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also when it is run again."""
    divide_small(monkeypatch, block_bytes=3000)
    options: dict[str, Any] = {"verify": True, "shards": 2, "piles": 4, "seed": 5}
    run = SavedPlan(source, f"{bucket.url}/data/out/", temp_dir=tmp_path, **options)
    run.do_before_the_commit()
    run.commit()
    damage(bucket)
    with pytest.raises(CheckError, match="is in place: do not use it"):
        run.commit()
