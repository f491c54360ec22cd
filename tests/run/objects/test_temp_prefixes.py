"""The prefix for spilled records: refused before a run begins if it cannot be used, and no obstacle afterwards."""

import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import MemoryLimitError, OutputError, RecshufWarning
from recshuf.output.objects.stage import Uploads
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import SHARDS, AnyBucket, Output, check_whole, kill_at, shuffle
from tests.support.objects.object_server import Bucket
from tests.support.processes.killed_runs import read_journal

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
        *(partial(shuffle, source, output, resume=output == outputs[1], **where) for output in outputs),
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


@pytest.mark.parametrize("is_of_dead_run", [False, True])
def test_what_a_store_does_not_let_a_run_delete_there_is_named(
    bucket: AnyBucket, source: Path, tmp_path: Path, call: Run, is_of_dead_run: bool
):
    output = f"{tmp_path}/out/"
    write = partial(shuffle, source, output, temp_dir=f"{bucket.url}/tmp")
    if is_of_dead_run:
        assert kill_at(bucket.proxy, 0, write, r"(PUT|POST) .*\.piles") == -signal.SIGKILL
        bucket.put(f"tmp/{name_sets(tmp_path)}/set-00000.piles", b"left")
        write = partial(shuffle, source, output)
    bucket.proxy.answer(bucket.requests["delete"], *bucket.refusal[:2], times=10**6)
    way = rf"/tmp/recshuf-piles-.*{bucket.refusal[2]}.*; recshuf clean {bucket.url}/tmp/ lists and removes"
    with pytest.warns(RecshufWarning, match=way):
        write()
    bucket.proxy.clear()
    assert {path.name for path in tmp_path.iterdir()} >= {"out", ".out.recshuf.json"}
    assert not (tmp_path / ".out.recshuf").exists()
    assert bucket.list_keys("tmp/recshuf-piles-")
    assert call("clean", f"{bucket.url}/tmp/", "--yes").stdout.endswith(b"\nremoved\n")
    check_whole(bucket, {})


def name_sets(folder: Path) -> str:
    """Return the name of the prefix that a run to ``out`` in a folder has chosen for its sets."""
    sets: str = read_journal(folder / "out")[0]["piles"]
    return sets.rstrip("/").rpartition("/")[2]


@pytest.mark.parametrize(
    "temp_dir", ["data/out-tmp", *(pytest.param(one, marks=pytest.mark.slow) for one in ("data/", "data/o"))]
)
def test_a_prefix_beside_the_output_is_taken(bucket: AnyBucket, output: Output, temp_dir: str):
    output.shuffle(temp_dir=f"{bucket.url}/{temp_dir}")
    output.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["jsonl", "hdf5"], "jsonl"))
def test_the_memory_that_an_error_names_is_enough(tmp_path: Path, s3_bucket: Bucket, name: str):
    inputs = make_inputs(tmp_path / "in", name, [30, 20])
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
