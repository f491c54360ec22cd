"""Tasks of several machines that write to a bucket: the bytes of a run in one process, seen when they are whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.engines.registry import ENGINES
from recshuf.errors import AlreadyCompleteError, OutputError, UsageError
from recshuf.output.objects.transaction import UploadTransaction
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.object_outputs import SEED, SHARDS, STORES, check_whole, shuffle_locally
from tests.support.object_outputs import shuffle as shuffle_here
from tests.support.task_runs import DyingEngine, LostError, divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.object_outputs import AnyBucket

COUNTS = (300, 200, 0, 250)
TASKS = {"piles": 64, "memory": "300MB"}


@pytest.fixture(params=STORES)
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    divide_small(monkeypatch, block_bytes=3000)
    monkeypatch.setitem(ENGINES, "twins", "tests.support.task_runs:TwinThreadEngine")
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder that all machines share."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def shuffle(inputs: list[Path], output: str, shared: Path, **options: Any) -> recshuf.ShuffleReport:
    return shuffle_here(inputs, output, temp_dir=shared, **{"engine": "twins"} | TASKS | options)


def die_before(short: int, inputs: list[Path], output: str, shared: Path, **options: Any) -> None:
    """Die before so many of the tasks have been run."""
    DyingEngine.left = most = 10**6
    shuffle(inputs, str(shared / "counted"), shared, engine="dying", **options)
    DyingEngine.left = most - DyingEngine.left - short
    with pytest.raises(LostError):
        shuffle(inputs, output, shared, engine="dying", **options)


@pytest.mark.parametrize("name", FORMATS)
def test_the_objects_are_those_of_a_run_in_one_process_also_if_each_task_runs_twice(
    tmp_path: Path, bucket: AnyBucket, shared: Path, scratch: Path, name: str
) -> None:
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    report = shuffle(inputs, f"{bucket.url}/data/out/", shared)
    check_whole(bucket, expected)
    assert os.listdir(shared) == os.listdir(scratch) == []
    assert report.spilled_bytes > 0


def test_one_object(tmp_path: Path, bucket: AnyBucket, shared: Path) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    shuffle_here(inputs, tmp_path / "out.parquet", shards=None, **TASKS)
    shuffle(inputs, f"{bucket.url}/data/out.parquet", shared, shards=None)
    check_whole(bucket, {"data/out.parquet": (tmp_path / "out.parquet").read_bytes()})


def test_an_old_set_is_replaced(tmp_path: Path, bucket: AnyBucket, shared: Path) -> None:
    shuffle_here(make_inputs(tmp_path / "old", "text", (50,)), f"{bucket.url}/data/out/", shards=9)
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    shuffle(inputs, f"{bucket.url}/data/out/", shared, overwrite=True)
    check_whole(bucket, shuffle_locally(inputs, tmp_path / "local", **TASKS))


@pytest.mark.parametrize("short", [1, 2, 4])
def test_a_run_that_dies_is_continued(tmp_path: Path, bucket: AnyBucket, shared: Path, short: int) -> None:
    """Four tasks write shards; nothing of them is seen."""
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    die_before(short, inputs, f"{bucket.url}/data/out/", shared)
    assert bucket.list_keys("data/out") == []
    with pytest.raises(
        OutputError, match=f"{bucket.url}/data/out/: an unfinished run left {shared}/.out-.*resume=True"
    ):
        shuffle(inputs, f"{bucket.url}/data/out/", shared)
    shuffle(inputs, f"{bucket.url}/data/out/", shared, resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize("moment", ["noted", "claimed"])
def test_a_run_that_dies_at_its_end_is_continued(
    tmp_path: Path, bucket: AnyBucket, shared: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    place = {"noted": "commit", "claimed": "_complete"}[moment]
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            shuffle(inputs, f"{bucket.url}/data/out/", shared)
    assert bucket.list_keys("data/out") == []
    try:
        shuffle(inputs, f"{bucket.url}/data/out/", shared, resume=True)
    except AlreadyCompleteError:
        assert moment == "claimed"
    check_whole(bucket, expected)
    assert os.listdir(shared) == []


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_shards_whose_uploads_are_lost_are_written_again(
    tmp_path: Path, bucket: AnyBucket, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shuffle(inputs, f"{bucket.url}/data/out/", shared)
    bucket.abort_one()
    shuffle(inputs, f"{bucket.url}/data/out/", shared, resume=True)
    check_whole(bucket, expected)


def test_what_a_dead_run_left_is_cleaned(tmp_path: Path, bucket: AnyBucket, shared: Path, run: Run) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    die_before(1, inputs, f"{bucket.url}/data/out/", shared)
    assert run("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    assert bucket.read_all() == {}
    if bucket.lists_uploads:
        assert bucket.list_uploads() == []
    shuffle(inputs, f"{bucket.url}/data/out/", shared, resume=True)
    assert bucket.read_all() == shuffle_locally(inputs, tmp_path / "local", **TASKS)


def test_commands_write_the_same_objects(
    tmp_path: Path, s3_bucket: AnyBucket, shared: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", to="parquet", **TASKS)
    plan = tmp_path / "plan.json"
    options = [
        "--seed",
        SEED,
        "--shards",
        SHARDS,
        "--workers",
        1,
        "--to",
        "parquet",
        "--piles",
        64,
        "--memory",
        "300MB",
    ]
    where = ["--engine", "tasks", "--temp-dir", shared, "--plan", "--report", plan]
    planned = call(*inputs, "-o", f"{s3_bucket.url}/data/out/", *options, *where)
    assert planned.returncode == 0, planned.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for stage in ("count", "scatter", "gather", "commit"):
        assert s3_bucket.list_keys("data/out") == []
        for number in call("task", plan, stage).stdout.split():
            done = call("task", plan, number.decode())
            assert done.returncode == 0, done.stderr
    check_whole(s3_bucket, expected)
    assert os.listdir(shared) == []


def test_a_folder_is_needed() -> None:
    with pytest.raises(
        UsageError, match="engine: the machines of a run into s3://b/out/ need a folder that they"
    ):
        recshuf.shuffle("in", "s3://b/out/", engine="ray")
