"""Tasks of several machines that write to a bucket: the bytes of a run in one process, seen when they are whole."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import AlreadyCompleteError, InputError, OutputError, PileError, UsageError
from recshuf.job.arguments import make_job
from recshuf.job.options import ENGINES
from recshuf.output.local.stage import WorkFolder
from recshuf.output.objects.stage import UploadTransaction
from recshuf.piles.set_folder import ObjectPileFile
from recshuf.run.set_folders import _SetScratch, _UploadedSets, open_sets
from recshuf.storage.reading.objects import count_read_bytes
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.objects.object_outputs import SEED, SHARDS, check_whole, shuffle_locally
from tests.support.objects.object_outputs import shuffle as shuffle_here
from tests.support.processes.task_runs import DyingEngine, LostError, divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket

COUNTS = (300, 200, 0, 250)
TASKS = {"piles": 64, "memory": "300MB"}


@pytest.fixture(autouse=True)
def _many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400)
    monkeypatch.setitem(ENGINES, "twins", "tests.support.processes.task_runs:TwinThreadEngine")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder that all machines share."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, bucket: AnyBucket, tmp_path: Path) -> Path | str:
    """Return where machines leave pile sets for each other: a folder that they share, or a prefix."""
    if request.param == "bucket":
        return f"{bucket.url}/tmp"
    found: Path = request.getfixturevalue("shared")
    return found


def list_place(place: Path | str) -> list[str]:
    """Return what is in a shared folder; a bucket is checked as a whole."""
    return [] if isinstance(place, str) else os.listdir(place)


def shuffle(inputs: list[Path], output: str, shared: Path | str, **options: Any) -> recshuf.ShuffleReport:
    return shuffle_here(inputs, output, temp_dir=shared, **{"engine": "twins"} | TASKS | options)


def die_before(short: int, inputs: list[Path], output: str, shared: Path | str, **options: Any) -> None:
    """Die before so many of the tasks have been run."""
    DyingEngine.left = most = 10**6
    shuffle(inputs, str(inputs[0].parent.parent / "counted"), shared, engine="dying", **options)
    DyingEngine.left = most - DyingEngine.left - short
    with pytest.raises(LostError):
        shuffle(inputs, output, shared, engine="dying", **options)


@pytest.mark.parametrize("name", FORMATS)
def test_the_objects_are_those_of_a_run_in_one_process_also_if_each_task_runs_twice(
    tmp_path: Path, bucket: AnyBucket, place: Path | str, scratch: Path, name: str
) -> None:
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    report = shuffle(inputs, f"{bucket.url}/data/out/", place)
    check_whole(bucket, expected)
    assert list_place(place) == os.listdir(scratch) == []
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
def test_a_run_that_dies_is_continued(
    tmp_path: Path, bucket: AnyBucket, place: Path | str, short: int
) -> None:
    """Four tasks write shards; nothing of them is seen."""
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    die_before(short, inputs, f"{bucket.url}/data/out/", place)
    assert bucket.list_keys("data/out") == []
    with pytest.raises(
        OutputError, match=r"unfinished run left .*/data/.out.recshuf/.*tasks: \d\d; .*resume=True"
    ):
        shuffle(inputs, f"{bucket.url}/data/out/", place)
    shuffle(inputs, f"{bucket.url}/data/out/", place, resume=True)
    check_whole(bucket, expected)
    assert list_place(place) == []


@pytest.mark.parametrize("moment", ["noted", "claimed"])
def test_a_run_that_dies_at_its_end_is_continued(
    tmp_path: Path, bucket: AnyBucket, place: Path | str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    step = {"noted": "commit", "claimed": "_complete"}[moment]
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            shuffle(inputs, f"{bucket.url}/data/out/", place)
    assert bucket.list_keys("data/out") == []
    try:
        shuffle(inputs, f"{bucket.url}/data/out/", place, resume=True)
    except AlreadyCompleteError:
        assert moment == "claimed"
    check_whole(bucket, expected)
    assert list_place(place) == []


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


def test_what_a_dead_run_left_is_cleaned(
    tmp_path: Path, bucket: AnyBucket, place: Path | str, run: Run
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    die_before(1, inputs, f"{bucket.url}/data/out/", place)
    assert (
        f"{bucket.url}/data/.out.recshuf/tasks/: results of tasks: 14"
        in run("clean", f"{bucket.url}/data/out").stdout.decode()
    )
    assert run("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    assert bucket.read_all() == {}
    assert list_place(place) == []
    if bucket.lists_uploads:
        assert bucket.list_uploads() == []
    shuffle(inputs, f"{bucket.url}/data/out/", place, resume=True)
    assert bucket.read_all() == shuffle_locally(inputs, tmp_path / "local", **TASKS)


@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_commands_write_the_same_objects(
    tmp_path: Path, bucket: AnyBucket, place: Path | str, call: Run, monkeypatch: pytest.MonkeyPatch
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
    where = ["--engine", "tasks", "--temp-dir", place, "--plan", "--report", plan]
    planned = call(*inputs, "-o", f"{bucket.url}/data/out/", *options, *where)
    assert planned.returncode == 0, planned.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for stage in ("count", "scatter", "gather", "commit"):
        assert bucket.list_keys("data/out") == []
        for number in call("task", plan, stage).stdout.split():
            done = call("task", plan, number.decode())
            assert done.returncode == 0, done.stderr
    check_whole(bucket, expected)
    assert list_place(place) == []


def test_results_of_another_run_are_not_taken(
    tmp_path: Path, s3_bucket: AnyBucket, shared: Path, call: Run
) -> None:
    """A task that outlives its run writes its result when all is deleted."""
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    others = make_inputs(tmp_path / "others", "text", (90,) * 9)
    die_before(3, others, f"{s3_bucket.url}/data/out/", shared)
    results = [key for key in s3_bucket.list_keys("data/") if "/task-" in key]
    late = {key: s3_bucket.read(key) for key in results}
    assert call("clean", f"{s3_bucket.url}/data/out/", "--yes").returncode == 0
    for key, content in late.items():
        s3_bucket.put(key, content)
    with pytest.raises(OutputError, match=rf"tasks: {len(late)}; .*resume=True"):
        shuffle(inputs, f"{s3_bucket.url}/data/out/", shared)
    shuffle(inputs, f"{s3_bucket.url}/data/out/", shared, resume=True)
    check_whole(s3_bucket, shuffle_locally(inputs, tmp_path / "local", **TASKS))


@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_bad_records_are_set_aside(tmp_path: Path, bucket: AnyBucket, place: Path | str) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    for path in inputs[:2]:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:77], b"{bad\n", *lines[77:], b"[\n"]))
    options = {"to": "parquet", **TASKS}
    expected = shuffle_locally(
        inputs, tmp_path / "local", on_bad_record=f"quarantine:{tmp_path}/here", **options
    )
    report = shuffle(
        inputs, f"{bucket.url}/data/out/", place, on_bad_record=f"quarantine:{tmp_path}/there", **options
    )
    check_whole(bucket, expected)
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert (report.quarantined, list_place(place)) == (4, [])


def test_tasks_take_credentials_with_them_and_the_bucket_does_not_tell_them(
    tmp_path: Path, s3_bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "local", **TASKS)
    storage = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "storage_options": {"access_key_id": "me", "secret_access_key": "a secret", "region": "us-east-1"},
    }
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shuffle(inputs, f"{s3_bucket.url}/data/out/", f"{s3_bucket.url}/tmp", **storage)
    left = s3_bucket.read_all()
    assert "data/.out.recshuf/tasks/run.json" in left
    assert not [key for key, content in left.items() if b"a secret" in content]
    shuffle(inputs, f"{s3_bucket.url}/data/out/", f"{s3_bucket.url}/tmp", resume=True, **storage)
    check_whole(s3_bucket, expected)


def test_a_place_for_piles_is_needed() -> None:
    with pytest.raises(
        UsageError, match="engine: the machines of a run into s3://b/out/ need a place for what waits"
    ):
        recshuf.shuffle("in", "s3://b/out/", engine="ray")


# Pile sets in a bucket


@pytest.mark.parametrize(("engine", "name"), [*product(["local"], FORMATS), ("twins", "parquet")])
def test_piles_in_a_bucket_give_the_same_bytes(
    tmp_path: Path, bucket: AnyBucket, scratch: Path, name: str, engine: str
) -> None:
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "here", **TASKS)
    found = shuffle_locally(inputs, tmp_path / "there", engine=engine, temp_dir=f"{bucket.url}/tmp", **TASKS)
    assert found == expected
    check_whole(bucket, {})
    assert os.listdir(scratch) == []
    assert sorted(os.listdir(tmp_path / "there")) == ["out", "out.recshuf.json"]


def test_inputs_piles_and_output_in_a_bucket(tmp_path: Path, bucket: AnyBucket, scratch: Path) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    for path in inputs:
        bucket.put(f"in/{path.name}", path.read_bytes())
    expected = shuffle_locally(inputs, tmp_path / "local", to="parquet", **TASKS | {"memory": "600MB"})
    report = shuffle_here(
        f"{bucket.url}/in/",
        f"{bucket.url}/data/out/",
        to="parquet",
        temp_dir=f"{bucket.url}/tmp/",
        **TASKS | {"memory": "600MB"},
    )
    found = bucket.read_all()
    manifest = "data/out.recshuf.json"
    assert {name: found[name] for name in expected if name != manifest} == {
        name: content for name, content in expected.items() if name != manifest
    }
    assert {name for name in found if not name.startswith("in/")} == set(expected)
    assert os.listdir(scratch) == []
    assert report.spilled_bytes > 0


def die_with_piles(count: int, inputs: list[Path], folder: Path, bucket: AnyBucket, **options: Any) -> None:
    DyingEngine.left = count
    with pytest.raises(LostError):
        shuffle_here(inputs, folder, engine="dying", temp_dir=f"{bucket.url}/tmp", **TASKS, **options)


@pytest.mark.parametrize("count", [7, 14])
@pytest.mark.parametrize("harm", ["none", "deleted", "replaced"])
def test_a_run_with_piles_in_a_bucket_is_continued(
    tmp_path: Path, bucket: AnyBucket, harm: str, count: int
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    expected = shuffle_locally(inputs, tmp_path / "here", **TASKS)
    (tmp_path / "there").mkdir()
    die_with_piles(count, inputs, tmp_path / "there" / "out", bucket)
    sets = [key for key in bucket.list_keys("tmp/") if key.endswith(".piles")]
    assert sets
    if harm == "deleted":
        bucket.delete(sets[0])
    elif harm == "replaced":
        bucket.put(sets[0], bucket.read(sets[0])[:-9])
    assert (
        shuffle_locally_again(inputs, tmp_path / "there", engine="twins", temp_dir=f"{bucket.url}/tmp")
        == expected
    )
    check_whole(bucket, {})


def shuffle_locally_again(inputs: list[Path], folder: Path, **options: Any) -> dict[str, bytes]:
    shuffle_here(inputs, folder / "out", resume=True, **TASKS, **options)
    return {
        f"data/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_piles_of_a_dead_run_are_cleaned(tmp_path: Path, bucket: AnyBucket, run: Run) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    die_with_piles(9, inputs, tmp_path / "out", bucket)
    bucket.put("tmp/others.piles", b"x")
    sets = [key for key in bucket.list_keys("tmp/recshuf-piles-") if key.endswith(".piles")]
    listed = run("clean", f"{bucket.url}/tmp/")
    assert f"spilled records, objects: {len(sets)}" in listed.stdout.decode()
    assert bucket.list_keys("tmp/recshuf-piles-")
    assert run("clean", f"{bucket.url}/tmp", "--yes").returncode == 0
    assert bucket.list_keys() == ["tmp/others.piles"]


def test_uploads_of_piles_that_a_dead_run_had_not_finished_are_cleaned(
    s3_bucket: AnyBucket, call: Run
) -> None:
    others = ["tmp/others", "tmp/recshuf-pile"]
    for key in [*others, "tmp/recshuf-piles-00/set-0.piles"]:
        s3_bucket.begin_upload(key)
    listed = call("clean", f"{s3_bucket.url}/tmp/").stdout
    assert b"/tmp/recshuf-piles-00/set-0.piles: open upload, begun " in listed
    assert call("clean", f"{s3_bucket.url}/tmp/", "--yes").returncode == 0
    assert s3_bucket.list_uploads() == others


def test_a_run_with_piles_in_a_bucket_is_not_continued_without(tmp_path: Path, s3_bucket: AnyBucket) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    die_with_piles(9, inputs, tmp_path / "out", s3_bucket)
    with pytest.raises(UsageError, match="the temp_dir was a URL in the unfinished run and is not given"):
        shuffle_here(inputs, tmp_path / "out", resume=True, **TASKS, engine="twins")


def test_an_input_that_fails_leaves_no_piles(tmp_path: Path, bucket: AnyBucket, scratch: Path) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    inputs[-1].write_bytes(inputs[-1].read_bytes() + b"{\n")
    with pytest.raises(InputError, match="line 251"):
        shuffle_here(inputs, tmp_path / "out", to="parquet", temp_dir=f"{bucket.url}/tmp", **TASKS)
    check_whole(bucket, {})
    assert os.listdir(scratch) == []


def test_a_set_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    read = ObjectPileFile.read

    def read_changed(self: ObjectPileFile, offset: int, size: int) -> Any:
        monkeypatch.setattr(ObjectPileFile, "read", read)
        key = self.name.removeprefix(f"{bucket.url}/")
        bucket.put(key, bytes(len(bucket.read(key))))
        return self.read(0, 1) if offset else read(self, offset, size)

    monkeypatch.setattr(ObjectPileFile, "read", read_changed)
    monkeypatch.setattr(_SetScratch, "_fetch_end", lambda self, name: open_unread(self, name))
    with pytest.raises((InputError, PileError), match=r"set-.*\.piles: changed while it was read"):
        shuffle_here(inputs, tmp_path / "out", temp_dir=f"{bucket.url}/tmp", **TASKS)


def open_unread(scratch: _SetScratch, name: str) -> None:
    """Open a set without fetching its end."""
    scratch._handles.setdefault(name, scratch._sets.open(name, scratch._stamps[name]))


def test_the_plan_says_where_piles_go(tmp_path: Path, s3_bucket: AnyBucket, call: Run) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    planned = call(*inputs, "-o", tmp_path / "out.txt", "--temp-dir", f"{s3_bucket.url}/tmp", "--plan")
    assert f", uploaded to {s3_bucket.url}/tmp/\n".encode() in planned.stdout


def test_the_plan_counts_the_piles_of_an_input_that_is_read_in_parts(
    tmp_path: Path, s3_bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    where = {"temp_dir": f"{s3_bucket.url}/tmp"} | TASKS
    planned = recshuf.plan(inputs, tmp_path / "out.txt", **where)
    run = runs.plan_tasks(inputs, tmp_path / "out.txt", **where)
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "commit", interrupt)
        patch.setattr(_UploadedSets, "remove", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            shuffle_here(inputs, tmp_path / "out.txt", **where, shards=None)
    sets = [key for key in s3_bucket.list_keys("tmp/") if key.endswith(".piles")]
    assert planned.set_count == planned.to_json()["set_count"] == run[0].set_count == len(sets)
    assert planned.set_count > len(inputs)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_tasks_fetch_ahead_fits_in_memory_together(s3_bucket: AnyBucket, workers: int) -> None:
    job = make_job("in", "out/", {"temp_dir": f"{s3_bucket.url}/tmp", "memory": "1GB", "workers": workers})
    with closing(open_sets(job, f"{s3_bucket.url}/tmp/").open_scratch(0)) as scratch:
        assert 0 < scratch.ahead_bytes * workers <= count_read_bytes(job.memory_bytes, workers)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": "-"}, "temp_dir at a URL: other processes cannot use standard input and output"),
        ({"output": "-"}, "temp_dir at a URL: other processes cannot use standard input and output"),
        ({"temp_dir": "https://a/b/"}, "temp_dir https://a/b/: is only read; give s3://"),
        ({"temp_dir": "s3a://a/b/"}, "s3a://a/b/: URLs of s3a:// are not known; give s3://"),
    ],
)
def test_what_piles_in_a_bucket_do_not_allow_is_refused(options: dict[str, Any], said: str) -> None:
    given = {"inputs": "in", "output": "out/", "temp_dir": "s3://b/tmp"} | options
    with pytest.raises(UsageError, match=said):
        recshuf.shuffle(given.pop("inputs"), given.pop("output"), **given)


def test_other_commands_keep_their_scratch_on_disks(tmp_path: Path) -> None:
    source = make_inputs(tmp_path / "in", "text", (9,))[0]
    recshuf.scatter(source, tmp_path / "store")
    for call in (recshuf.verify, recshuf.gather):
        given = tmp_path / "store" if call is recshuf.gather else source
        with pytest.raises(
            UsageError, match="temp_dir s3://b/tmp/: is for shuffles only; give a local folder"
        ):
            call(given, tmp_path / "out.txt", temp_dir="s3://b/tmp")


def test_each_process_looks_once_whether_an_output_is_a_prefix(
    tmp_path: Path, s3_bucket: AnyBucket, shared: Path
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    shuffle(inputs, f"{s3_bucket.url}/data/out.txt", shared, shards=None, engine="threads")
    looks = s3_bucket.proxy.count(r"GET .*list-type=2.*prefix=data%2Fout\.txt%2F")
    assert looks == 2  # by the run, and by the process of its tasks
