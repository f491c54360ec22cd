"""Tasks of several machines that write to a bucket, and pile sets there: the bytes of a run in one process."""

import os
import re
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import InputError, MemoryLimitError, OutputError, PileError, UsageError
from recshuf.job.arguments import make_job
from recshuf.job.options import ENGINES
from recshuf.output.objects.stage import Uploads
from recshuf.run.header import open_sets
from recshuf.storage.reading.objects import count_read_bytes
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import (
    SHARDS,
    AnyBucket,
    Contents,
    Output,
    check_whole,
    in_each_store,
    shuffle_locally,
)
from tests.support.objects.object_outputs import shuffle as shuffle_here
from tests.support.objects.object_server import Bucket
from tests.support.processes.killed_runs import write_journal
from tests.support.processes.task_runs import DyingEngine, LostError, divide_small

slow = pytest.mark.slow
COUNTS = (200, 80, 0, 60)
ALL = 11
"""Number of tasks of these inputs."""
TASKS = {"piles": 64, "memory": "300MB"}
RUN_FILE = "data/.out.recshuf/tasks/run.json"


@pytest.fixture(autouse=True)
def _many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=2600)
    monkeypatch.setitem(ENGINES, "twins", "tests.support.processes.task_runs:TwinThreadEngine")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder that all machines share."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def place(bucket: AnyBucket) -> str:
    """Return the prefix at which machines leave pile sets for each other: beside the output, whose name its name begins with."""
    return f"{bucket.url}/data/out-tmp"


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "text", COUNTS)


@pytest.fixture
def expected(inputs: list[Path], tmp_path: Path) -> Contents:
    """Return what a run in one process writes."""
    return shuffle_locally(inputs, tmp_path / "local", **TASKS)


def shuffle(inputs: list[Path], output: str, place: Path | str, **options: Any) -> recshuf.ShuffleReport:
    return shuffle_here(inputs, output, temp_dir=place, **{"engine": "threads"} | TASKS | options)


def die_after(count: int, inputs: list[Path], output: str, place: Path | str, **options: Any) -> None:
    """Die when so many of the tasks have been run: `ALL`, of which the last ones write a shard each."""
    DyingEngine.left = count
    with pytest.raises(LostError):
        shuffle(inputs, output, place, engine="dying", **options)


def test_the_objects_are_those_of_a_run_in_one_process_also_if_each_task_runs_twice(
    tmp_path: Path, bucket: AnyBucket, place: str, scratch: Path
):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    report = shuffle(inputs, f"{bucket.url}/data/out/", place, engine="twins")
    check_whole(bucket, expected)
    assert os.listdir(scratch) == []
    assert report.spilled_bytes > 0


def test_one_object(tmp_path: Path, bucket: AnyBucket, shared: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    shuffle_here(inputs, tmp_path / "out.parquet", shards=None, **TASKS)
    bucket.proxy.clear()
    shuffle(inputs, f"{bucket.url}/data/out.parquet", shared, shards=None, engine="threads")
    check_whole(bucket, {"data/out.parquet": (tmp_path / "out.parquet").read_bytes()})
    assert os.listdir(shared) == []
    if bucket.url.startswith("s3"):
        # Each process looks once whether it is a prefix: that of the run, and that of its tasks.
        assert bucket.proxy.count(r"GET .*list-type=2.*prefix=data%2Fout\.parquet%2F") == 2


def test_a_run_that_dies_is_continued(inputs: list[Path], bucket: AnyBucket, expected: Contents, place: str):
    """Four tasks write shards; nothing of them is seen, and an old set is replaced at the end."""
    shuffle_here(inputs[:1], f"{bucket.url}/data/out/", shards=9, seed=1)
    old = bucket.read_all()
    die_after(ALL - 4, inputs, f"{bucket.url}/data/out/", place, overwrite=True)
    assert bucket.read_all().items() >= old.items()
    said = r"unfinished run left .*/data/.out.recshuf/.*tasks: \d+; .*resume=True"
    with pytest.raises(OutputError, match=said):
        shuffle(inputs, f"{bucket.url}/data/out/", place, overwrite=True)
    shuffle(inputs, f"{bucket.url}/data/out/", place, resume=True, overwrite=True)
    check_whole(bucket, expected)


def test_results_of_another_run_are_not_taken(
    tmp_path: Path, inputs: list[Path], s3_bucket: AnyBucket, expected: Contents, shared: Path, call: Run
):
    """A task that outlives its run writes its result when all is deleted."""
    others = make_inputs(tmp_path / "others", "text", (90,) * 9)
    die_after(9, others, f"{s3_bucket.url}/data/out/", shared)
    late = {key: s3_bucket.read(key) for key in s3_bucket.list_keys("data/") if "/task-" in key}
    assert call("clean", f"{s3_bucket.url}/data/out/", "--yes").returncode == 0
    for key, content in late.items():
        s3_bucket.put(key, content)
    with pytest.raises(OutputError, match=rf"tasks: {len(late)}; .*resume=True"):
        shuffle(inputs, f"{s3_bucket.url}/data/out/", shared)
    shuffle(inputs, f"{s3_bucket.url}/data/out/", shared, resume=True)
    check_whole(s3_bucket, expected)


def test_tasks_take_credentials_with_them_and_the_bucket_does_not_tell_them(
    tmp_path: Path, s3_bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
):
    inputs = make_inputs(tmp_path / "in", "text", [100])
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    storage = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "storage_options": {"access_key_id": "me", "secret_access_key": "a secret", "region": "us-east-1"},
    }
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    where = (f"{s3_bucket.url}/data/out/", f"{s3_bucket.url}/tmp")
    s3_bucket.proxy.answer(s3_bucket.requests["claim"], *s3_bucket.refusal[:2])
    with pytest.raises(OutputError, match=s3_bucket.refusal[2]):
        shuffle(inputs, *where, engine="twins", **storage)
    left = s3_bucket.read_all()
    assert RUN_FILE in left
    assert not [key for key, content in left.items() if b"a secret" in content]
    shuffle(inputs, *where, resume=True, **storage)
    check_whole(s3_bucket, expected)


# Pile sets in a bucket


@in_each_store
def test_piles_in_a_bucket_give_the_same_bytes(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket, scratch: Path
):
    here = shuffle_locally(inputs, tmp_path / "here", **TASKS)
    there = shuffle_locally(inputs, tmp_path / "there", temp_dir=f"{bucket.url}/tmp", **TASKS)
    assert there == here
    check_whole(bucket, {})
    assert os.listdir(scratch) == []
    assert sorted(os.listdir(tmp_path / "there")) == [".out.recshuf.json", "out"]


def test_a_set_that_changes_is_an_error_and_no_wrong_record(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket
):
    def strike() -> None:
        for key in bucket.list_keys("tmp/"):
            content = bucket.read(key)
            bucket.put(key, content[:99] + bytes([content[99] ^ 1]) + content[100:])

    bucket.proxy.call("GET .*([.]|%2E)piles", strike)
    with pytest.raises((InputError, PileError), match=r"set-.*\.piles: "):
        shuffle_here(inputs, tmp_path / "out", temp_dir=f"{bucket.url}/tmp", **TASKS)
    assert not (tmp_path / "out").exists()


def test_piles_of_dead_runs_are_cleaned(tmp_path: Path, inputs: list[Path], bucket: AnyBucket, call: Run):
    die_after(4, inputs, str(tmp_path / "out"), f"{bucket.url}/tmp")
    sets = [key for key in bucket.list_keys("tmp/recshuf-piles-") if key.endswith(".piles")]
    assert sets
    bucket.put("tmp/others.piles", b"x")
    others = ["tmp/others", "tmp/recshuf-pile"] if bucket.lists_uploads else []
    for key in [*others, "tmp/recshuf-piles-00/set-0.piles"] if others else []:
        bucket.begin_upload(key)
    listed = call("clean", f"{bucket.url}/tmp/").stdout.decode()
    assert f"spilled records, objects: {len(sets)}" in listed
    assert ("/tmp/recshuf-piles-00/set-0.piles: open upload, begun " in listed) == bool(others)
    assert bucket.list_keys("tmp/recshuf-piles-")
    assert call("clean", f"{bucket.url}/tmp", "--yes").returncode == 0
    assert bucket.list_keys() == ["tmp/others.piles"]
    assert not others or bucket.list_uploads() == others


def test_a_journal_cannot_have_other_objects_deleted(tmp_path: Path, source: Path, s3_bucket: AnyBucket):
    keys = ["precious/a", "recshuf-piles-1", "tmp/recshuf-piles-1/b"]
    for key in keys:
        s3_bucket.put(key, b"x")
    named = ("precious/", "recshuf-piles-1/../precious/", "", "tmp/recshuf-piles-1/")
    write_journal(tmp_path / "out", [{"piles": f"{s3_bucket.url}/{name}"} for name in named])
    shuffle_here(source, f"{tmp_path}/out/")
    assert s3_bucket.list_keys() == keys[:2]


def test_the_plan_says_where_piles_go_and_how_many_sets(
    tmp_path: Path, inputs: list[Path], s3_bucket: AnyBucket, call: Run
):
    """An input that is read in parts has several."""
    output, where = tmp_path / "out.txt", f"{s3_bucket.url}/tmp"
    planned = call(*inputs, "-o", output, "--temp-dir", where, "--plan")
    assert f", uploaded to {where}/\n".encode() in planned.stdout
    plan = recshuf.plan(inputs, output, temp_dir=where, **TASKS)
    assert plan.set_count == plan.to_json()["set_count"] > len(inputs)
    assert runs.plan_tasks(inputs, output, temp_dir=where, **TASKS)[0].set_count == plan.set_count
    shuffle_here(inputs, output, temp_dir=where, shards=None, **TASKS)
    assert s3_bucket.proxy.count("(POST .*piles.*uploads|PUT .*[.]piles$)") == plan.set_count


@pytest.mark.parametrize("workers", [1, 5])
def test_what_tasks_fetch_ahead_fits_in_memory_together(s3_bucket: AnyBucket, workers: int):
    job = make_job("in", "out/", {"temp_dir": f"{s3_bucket.url}/tmp", "memory": "1GB", "workers": workers})
    with closing(open_sets(job, f"{s3_bucket.url}/tmp/")) as scratch:
        assert 0 < scratch.ahead_bytes * workers <= count_read_bytes(job.memory_bytes, workers)


def test_what_piles_in_a_bucket_do_not_allow_is_refused(tmp_path: Path, source: Path):
    processes = "temp_dir at a URL: other processes cannot use standard input and output"
    for options, said in (
        ({"inputs": "-"}, processes),
        ({"output": "-"}, processes),
        ({"temp_dir": "https://a/b/"}, "temp_dir https://a/b/: is only read; give s3://"),
        ({"temp_dir": "s3a://a/b/"}, "s3a://a/b/: URLs of s3a:// are not known; give s3://"),
        (
            {"output": "s3://b/out/", "engine": "ray", "temp_dir": None},
            "engine: the machines of a run into s3://b/out/ need a place for what waits",
        ),
    ):
        given = {"inputs": "in", "output": "out/", "temp_dir": "s3://b/tmp"} | options
        with pytest.raises(UsageError, match=said):
            recshuf.shuffle(given.pop("inputs"), given.pop("output"), **given)
    recshuf.scatter(source, tmp_path / "store")
    for call, given in ((recshuf.verify, source), (recshuf.gather, tmp_path / "store")):
        with pytest.raises(
            UsageError, match="temp_dir s3://b/tmp/: is for shuffles only; give a local folder"
        ):
            call(given, tmp_path / "out.txt", temp_dir="s3://b/tmp")


# Runs that are forgotten


@pytest.mark.parametrize("content", [b"{}", None])
def test_clean_says_that_sets_of_a_lost_run_stay_and_how_to_remove_them(
    bucket: AnyBucket, source: Path, call: Run, content: bytes | None
):
    output, temp_dir = f"{bucket.url}/data/out/", f"{bucket.url}/tmp"
    run = runs.plan_tasks(source, output, shards=SHARDS, temp_dir=temp_dir)[1]
    for number in range(runs.list_tasks(run, "gather")[0]):
        runs.run_task(run, number)
    if content is None:
        bucket.delete(RUN_FILE)
    else:
        bucket.put(RUN_FILE, content)
    told = call("clean", output, "--yes").stdout.decode()
    assert "tasks/run.json: is missing or damaged, so the spilled records of these tasks stay" in told
    assert "recshuf clean of the URL that was their --temp-dir" in told
    assert all(key.startswith("tmp/recshuf-piles-") for key in bucket.list_keys())
    assert bucket.list_keys()
    assert call("clean", temp_dir, "--yes").returncode == 0
    check_whole(bucket, {})


def test_clean_removes_what_a_first_task_that_died_has_left(bucket: AnyBucket, source: Path, call: Run):
    """It has no result yet."""
    output = f"{bucket.url}/data/out/"
    run = runs.plan_tasks(source, output, shards=SHARDS, temp_dir=f"{bucket.url}/tmp")[1]
    bucket.proxy.answer(".*task-", *bucket.refusal[:2], times=10**6)
    with pytest.raises(OutputError):
        runs.run_task(run, 0)
    bucket.proxy.clear()
    assert RUN_FILE in bucket.list_keys()
    assert call("clean", output, "--yes").stdout.endswith(b"results of tasks: 0\nremoved\n")
    check_whole(bucket, {})


# Prefixes that cannot be used, and such that nothing can be deleted from


MISSING = r"^\w+://no-such-bucket: there is no such (bucket|container); check the name, or create it$"


def miss(bucket: AnyBucket) -> str:
    """Return a prefix in a bucket of the same store that does not exist."""
    return f"{bucket.url.partition('://')[0]}://no-such-bucket/tmp/"


def test_a_missing_bucket_is_found_before_the_run_begins(
    bucket: AnyBucket, source: Path, tmp_path: Path, scratch: Path
):
    outputs = (f"{bucket.url}/data/out/", f"{tmp_path}/out/")
    where = {"shards": SHARDS, "temp_dir": miss(bucket)}
    for call in (
        *(partial(shuffle_here, source, output, resume=output == outputs[1], **where) for output in outputs),
        *(partial(plan, source, outputs[0], **where) for plan in (recshuf.plan, runs.plan_tasks)),
    ):
        with pytest.raises(OutputError, match=MISSING) as caught:
            call()
        assert not hasattr(caught.value, "__notes__")
    assert bucket.proxy.count("PUT|POST") == 0
    check_whole(bucket, {})
    assert set(tmp_path.iterdir()) == {source, scratch}


def test_clean_removes_the_rest_if_the_bucket_is_gone(
    bucket: AnyBucket, output: Output, call: Run, monkeypatch: pytest.MonkeyPatch
):
    # It was there when the run began, and the run was killed.
    with monkeypatch.context() as patch:
        patch.setattr("recshuf.run.driver.check_sets", lambda job: None)
        patch.setattr(Uploads, "remove", Uploads.release)
        with pytest.raises(OutputError, match=r"no-such-bucket: there is no such"):
            output.shuffle(temp_dir=miss(bucket))
    assert "data/.out.recshuf/tasks/run.json" in bucket.list_keys()
    assert call("clean", output.url, "--yes").stdout.endswith(b"\nremoved\n")
    check_whole(bucket, {})


@slow
def test_the_memory_that_an_error_names_is_enough(tmp_path: Path, s3_bucket: Bucket):
    inputs = make_inputs(tmp_path / "in", "jsonl", [30, 20])
    options: dict[str, Any] = {"to": "parquet", "shards": 2, "workers": 2}
    local, remote, spilled = f"{tmp_path}/out/", f"{s3_bucket.url}/out/", f"{s3_bucket.url}/tmp/"
    for run in (
        partial(recshuf.plan, inputs, local),
        partial(recshuf.plan, inputs, remote),
        partial(recshuf.plan, inputs, local, temp_dir=spilled),
        partial(runs.plan_tasks, inputs, local),
        partial(runs.plan_tasks, inputs, remote, temp_dir=spilled),
        partial(recshuf.shuffle, inputs, remote, temp_dir=spilled),
    ):
        with pytest.raises(MemoryLimitError) as told:
            run(memory="64MB", **options)
        [named] = re.findall(r"needs at least ([\d.]+ \wB) of memory", str(told.value))
        run(memory=named, **options)
