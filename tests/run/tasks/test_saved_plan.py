"""A saved plan: where and when its tasks run, and what they say of one that is no plan, or is done."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, InputError, OutputExistsError, UsageError
from recshuf.job.arguments import make_job
from recshuf.job.parts import STAGES
from recshuf.job.report import SilentProgress
from recshuf.output.manifest import find_checksum, manifest_path
from recshuf.run.header import Header
from recshuf.run.saved_plan import save_plan
from recshuf.storage import StorageOptions
from recshuf.version import __version__
from tests.run.test_resume import CHANGED, FREE
from tests.support.effort import mostly_slow
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import SEED, shuffle_locally
from tests.support.objects.object_server import Bucket, ProxiedRequest
from tests.support.processes.task_runs import SavedPlan, die_after, read_all, shuffle
from tests.support.small_runs import list_shards

COUNTS = (300, 200, 0, 250)
OPTIONS: dict[str, Any] = {"seed": SEED, "shards": 4, "workers": 1, "piles": 64, "memory": "300MB"}


def plan(inputs: Any, output: str, **options: Any) -> SavedPlan:
    cut = {"shards": 4 if output.endswith("/") else None}
    return SavedPlan(inputs, output, **OPTIONS | cut | options)


# Credentials


@pytest.fixture
def storage(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return how to reach a bucket of which the environment knows nothing."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {"access_key_id": "first", "secret_access_key": "a secret", "region": "us-east-1"}
    return {"endpoint_url": endpoint, "storage_options": options}


def note_keys(bucket: Bucket) -> list[str]:
    """Return a list to which the credentials of all further requests are added."""
    seen: list[str] = []

    def note(request: ProxiedRequest) -> bool:
        seen.append(request.headers["Authorization"])
        return False

    bucket.proxy.add("", note, 10**6)
    return seen


def test_tasks_leave_no_credentials_in_the_work_folder_and_take_those_of_the_plan(
    tmp_path: Path, s3_bucket: Bucket, storage: dict[str, Any]
):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    for path in inputs:
        s3_bucket.put(f"in/{path.name}", path.read_bytes())
    expected = shuffle_locally(inputs, tmp_path / "local", to="parquet")
    run = plan(f"{s3_bucket.url}/in/", f"{tmp_path}/out/", to="parquet", **storage)
    run.do(0)
    left = [path for path in (tmp_path / ".out.recshuf").rglob("*") if path.is_file()]
    assert any(path.suffix == ".pickle" for path in left)
    assert not [path for path in left if b"a secret" in path.read_bytes()]
    run.run["storage"]["options"]["access_key_id"] = "renewed"
    seen = note_keys(s3_bucket)
    run.do(*range(1, run.last + 1))
    assert seen
    assert all("Credential=renewed/" in one for one in seen)
    shards = {f"data/out/{path.name}": path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert shards == {name: content for name, content in expected.items() if name in shards}


# After the commit


@pytest.mark.parametrize("overwrites", mostly_slow([True, False], True))
def test_late_tasks_do_not_begin_a_plan_again(
    tmp_path: Path, output: str, inputs: list[Path], overwrites: bool
):
    given = OPTIONS | {
        "shards": 4 if output.endswith("/") else None,
        "overwrite": overwrites,
        "temp_dir": tmp_path,
    }
    if overwrites:
        recshuf.shuffle(inputs[0], output, **given)
    run = plan(inputs, output, **given)
    run.do_all()
    for stage in STAGES:
        refuse_late(run, stage, is_told=stage == "commit" and output.endswith("/"))
    recshuf.shuffle(inputs, output, **given | {"overwrite": True})


def refuse_late(run: SavedPlan, stage: str, *, is_told: bool = False) -> None:
    """Run a task of a stage after the commit, which may be `is_told` that the output is of this plan."""
    with pytest.raises(OutputExistsError) as raised:
        run.do(run.list(stage)[0])
    assert isinstance(raised.value, AlreadyCompleteError) == is_told
    said = (
        "complete; this task has put it in place before"
        if is_told
        else "was written after this plan was made"
    )
    assert re.search(f"out.*: .*({said})", str(raised.value))
    assert "overwrite" not in str(raised.value)


OTHERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 3},
    "inputs": {"inputs": "other"},
    "sizes": {"inputs": "longer/in"},
    "shards": {"shards": 3},
}


@pytest.mark.parametrize(("other", "begins"), [(other, other in ("seed", "sizes")) for other in OTHERS])
def test_a_commit_over_the_folder_of_another_run_is_an_error(
    tmp_path: Path, other: str, begins: bool, monkeypatch: pytest.MonkeyPatch
):
    for folder, counts in (("in", COUNTS), ("other", COUNTS[::-1]), ("longer/in", (301, 200, 0, 250))):
        make_inputs(tmp_path / folder, "csv", counts)
    monkeypatch.chdir(tmp_path)
    run = plan("in", "out/", to="jsonl")
    options: dict[str, Any] = OPTIONS | {"to": "jsonl"} | OTHERS[other]
    read = Path(options.pop("inputs", "in"))
    if begins:
        run.do_before_the_commit()
    monkeypatch.chdir(read.parent)
    recshuf.shuffle(read.name, f"{tmp_path}/aside/", **options)
    (tmp_path / "aside").rename(tmp_path / "out")
    (tmp_path / ".aside.recshuf.json").rename(tmp_path / ".out.recshuf.json")
    monkeypatch.chdir(tmp_path)
    content = read_all(tmp_path / "out")
    refuse_late(run, "commit")
    assert read_all(tmp_path / "out") == content


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(("overwrites", "replaces"), [(False, False), (True, False), (True, True)])
def test_a_commit_over_a_file_of_others_is_an_error(
    tmp_path: Path, begins: bool, overwrites: bool, replaces: bool
):
    """A plan to replace a file does not replace another of its size."""
    inputs, output = make_inputs(tmp_path / "in", "jsonl", COUNTS), tmp_path / "out.jsonl"
    if replaces:
        recshuf.shuffle(inputs, output, seed=1)
    run = plan(inputs, str(output), overwrite=overwrites)
    if begins:
        run.do_before_the_commit()
    recshuf.shuffle(inputs, tmp_path / "other.jsonl", seed=2)
    content = (tmp_path / "other.jsonl").read_bytes()
    (tmp_path / "other.jsonl").rename(output)
    for stage in STAGES:
        refuse_late(run, stage)
    assert output.read_bytes() == content
    if begins or not replaces:
        output.unlink()
        run.do_all()
        assert output.read_bytes().count(b"\n") == sum(COUNTS)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_others_in_the_folder_of_the_output_is_named_by_tasks(tmp_path: Path, overwrite: bool):
    run = plan(make_inputs(tmp_path / "in", "text", COUNTS), f"{tmp_path}/out/", overwrite=overwrite)
    run.do(0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "foo").touch()
    for number in (1, *run.list("gather")):
        with pytest.raises(OutputExistsError) as raised:
            run.do(number)
        assert str(raised.value) == (
            f"{tmp_path}/out: holds 'foo', which is not from an earlier run; remove it and run this task again"
        )
    (tmp_path / "out" / "foo").unlink()
    run.do_before_the_commit()
    (tmp_path / "out" / "foo").touch()
    with pytest.raises(OutputExistsError, match=r"holds 'foo', .*; remove it and run this task again"):
        run.commit()
    (tmp_path / "out" / "foo").unlink()
    run.commit()


def test_a_commit_that_died_in_the_first_line_of_its_journal_is_done_anew(tmp_path: Path):
    run = plan(make_inputs(tmp_path / "in", "text", COUNTS), f"{tmp_path}/out/")
    run.do_before_the_commit()
    (tmp_path / ".out.recshuf" / "journal.jsonl").write_bytes(b'0123456789abcdef {"format": 4, "id')
    run.commit()
    manifest = json.loads(manifest_path(tmp_path / "out").read_text())
    assert [one["xxh3"] for one in manifest["shards"]] == list(
        map(find_checksum, list_shards(tmp_path / "out"))
    )


# Inputs that change


@pytest.mark.parametrize("moment", mostly_slow(["planned", "begun"], "begun"))
def test_an_input_that_changed_is_named_and_may_be_restored(
    tmp_path: Path, output: str, inputs: list[Path], moment: str
):
    run = plan(inputs, output, temp_dir=tmp_path)
    if moment == "begun":
        run.do_before_the_commit()
    number = 0 if moment == "planned" else run.last
    before, found = inputs[1].read_bytes(), inputs[1].stat()
    inputs[1].write_bytes(before + b'{"id": 7}\n')
    with pytest.raises(InputError) as raised:
        run.do(number)
    assert re.fullmatch(
        r".*: has changed since the plan was made: its size was .*; make the plan again", str(raised.value)
    )
    inputs[1].write_bytes(before)
    os.utime(inputs[1], ns=(found.st_atime_ns, found.st_mtime_ns))
    run.do_all()


@pytest.mark.parametrize("name", ["jsonl", "hdf5"])
def test_other_machines_may_see_other_inodes_of_the_inputs(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, (300, 200, 0, 250))
    shuffle(inputs, tmp_path / "whole", **OPTIONS)
    planned = plan(inputs, f"{tmp_path}/out/")
    planned.do(0)
    for path in inputs:
        before = path.stat().st_ino
        os.replace(shutil.copy2(path, f"{path}.copy"), path)  # noqa: PTH105 - as other tools do
        assert path.stat().st_ino != before
    planned.do(*range(1, planned.last + 1))
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_another_engine_continues_tasks_also_when_it_first_failed(tmp_path: Path, inputs: list[Path]):
    run = plan(inputs, f"{tmp_path}/out/")
    run.do_before_the_commit()
    before, found = inputs[1].read_bytes(), inputs[1].stat()
    inputs[1].write_bytes(before + b'{"id": 7}\n')
    given = OPTIONS | {"seed": None, "engine": "threads", "resume": True}
    with pytest.raises(InputError, match="has changed since the unfinished run"):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", **given)
    inputs[1].write_bytes(before)
    os.utime(inputs[1], ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(UsageError, match="the seed was"):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", **given | {"seed": SEED + 1})
    assert recshuf.shuffle(inputs, f"{tmp_path}/out/", **given).seed == SEED


def test_another_version_than_that_of_the_plan_is_named(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
):
    run = plan(inputs, f"{tmp_path}/out/")
    for name, module in list(sys.modules.items()):
        if name.startswith("recshuf.") and getattr(module, "__version__", None) == __version__:
            monkeypatch.setattr(module, "__version__", "0.0.1")
    with pytest.raises(UsageError) as raised:
        run.do(0)
    assert str(raised.value) == (
        f"the version of recshuf was {__version__} when the plan was made and is 0.0.1; give it as before, or make the "
        "plan again"
    )
    assert os.listdir(tmp_path / ".out.recshuf" / "tasks") == ["inputs.lock"]


# The options

EACH_OPTION: dict[str, tuple[str, dict[str, Any]]] = {
    name: (kind, before | now) for name, (kind, before, now) in CHANGED.items()
} | {
    "max_record_bytes": ("text", {"max_record_bytes": 10**6}),
    "temp_dir": ("text", {"temp_dir": "/tmp"}),
    "spill_compression": ("text", {"spill_compression": "lz4"}),
    "no_space_check": ("text", {"no_space_check": True}),
    "piles": ("text", {"piles": 8}),
    "overwrite": ("text", {"overwrite": True}),
    "verify": ("text", {"verify": True}),
    "memory": ("text", {"memory": 10**9}),
    "workers": ("text", {"workers": 2}),
    "endpoint_url": ("text", {"endpoint_url": "http://localhost:9000"}),
    "storage_options": (
        "text",
        {"storage_options": {"region": "eu-west-1", "gs:endpoint_url": "http://host:9"}},
    ),
    # Of one input
    "record_bytes": ("text", {"format": "binary", "record_bytes": 1}),
    "record_shape": ("text", {"format": "binary", "dtype": "u1", "record_shape": 1}),
    "weights": ("text", {"weights": [1], "head_count": 400}),
    "copies": ("text", {"copies": "0.5"}),
    "on_bad_record": ("jsonl", {"to": "parquet", "on_bad_record": "quarantine:/tmp/bad.jsonl"}),
}


def test_each_option_is_tried_but_those_of_another_engine_or_a_run_that_has_begun():
    assert EACH_OPTION.keys() - CHANGED.keys() == FREE - {"ray_address", "resume"}


def test_the_job_of_the_tasks_is_the_job_that_was_planned(tmp_path: Path):
    for name, (inputs, options) in EACH_OPTION.items():
        given = OPTIONS | {"memory": 300 * 10**6, "storage_options": {}} | options | {"engine": "tasks"}
        job = make_job(make_inputs(tmp_path / "in", inputs, [300]), f"{tmp_path}/out/", given)
        run = json.loads(json.dumps(save_plan(job, SilentProgress())[1]))
        storage = StorageOptions(**run["storage"])
        assert Header.from_json(run, storage).make_job() == job, name


# The working folder


def test_paths_are_those_of_the_folder_where_the_plan_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also of a run that is continued there."""
    for name in ("here", "here/scratch", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{bad\n' * 300)
    monkeypatch.chdir(tmp_path / "here")
    bad = {"on_bad_record": "quarantine:bad.jsonl", "temp_dir": "scratch", "to": "parquet"}
    for inputs, output in ((tmp_path / "in.jsonl", f"{tmp_path}/out/"), ("../in.jsonl", "../again/")):
        monkeypatch.chdir(tmp_path / "here")
        run = plan(inputs, output, overwrite=True, **bad)
        monkeypatch.chdir(tmp_path / "there")
        run.do_all()
    assert read_all(tmp_path / "again") == read_all(tmp_path / "out")
    assert os.listdir(tmp_path / "there") == os.listdir(tmp_path / "here" / "scratch") == []
    assert (tmp_path / "here" / "bad.jsonl").read_bytes().count(b"\n") == 300
    monkeypatch.chdir(tmp_path / "here")
    bad["on_bad_record"] = "quarantine:more.jsonl"
    die_after(3, [tmp_path / "in.jsonl"], tmp_path / "more", **bad)
    report = shuffle([tmp_path / "in.jsonl"], tmp_path / "more", engine="threads", resume=True, **bad)
    assert report.quarantined == 300
    assert sorted(os.listdir()) == ["bad.jsonl", "more.jsonl", "scratch"]
    assert os.listdir("scratch") == []
    monkeypatch.chdir(tmp_path / "there")
    run = plan("../in.jsonl", "../lost/")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").rmdir()
    said = (
        rf"^{tmp_path}/there: No such file or directory; run tasks where this folder is shared, or give abs"
    )
    with pytest.raises(UsageError, match=said):
        run.do(0)
