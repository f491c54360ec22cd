"""The tasks of a saved plan, each a command: together they write the bytes of one run, in any order within a stage."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from recshuf.system.locks import share_folder
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import HARMS, divide_small, read_all, shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

COUNTS = (300, 200, 0, 150)
STAGES = ("count", "scatter", "gather", "commit")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    divide_small(monkeypatch, block_bytes=3000)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return tmp_path


def make_plan(call: Run, folder: Path, *arguments: str, name: str = "jsonl", to: str = "jsonl") -> list[Path]:
    inputs = make_inputs(folder / "in", name, COUNTS)
    options = "--seed 5 --piles 64 --shards 3 --memory 300MB --engine tasks --to"
    plan = ["--plan", "--report", f"{folder}/plan.json", *options.split(), to, *arguments]
    done = call(*inputs, "-o", f"{folder}/there/out/", *plan)
    assert done.returncode == 0, done.stderr
    assert os.listdir(folder / "there") == []
    return inputs


def numbers_of(call: Run, folder: Path, stage: str) -> list[int]:
    done = call("task", folder / "plan.json", stage)
    assert (done.returncode, done.stderr) == (0, b"")
    return [int(word) for word in done.stdout.split()]


def run_number(call: Run, folder: Path, number: int) -> bytes:
    done = call("task", folder / "plan.json", str(number))
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    return done.stderr


def run_stages(call: Run, folder: Path, *stages: str) -> bytes:
    """Run all tasks of some stages, and return what the last one said."""
    return [run_number(call, folder, number) for name in stages for number in numbers_of(call, folder, name)][
        -1
    ]


def test_a_plan_that_is_missing_says_what_to_give(call: Run, folder: Path):
    done = call("task", folder / "plan.json", "count")
    assert done.returncode == 1
    assert (
        b"No such file or directory; give the file that --plan --report FILE --engine tasks wrote"
        in done.stderr
    )


@pytest.mark.parametrize(("name", "to"), [("jsonl", "parquet"), ("hdf5", "hdf5")])
def test_tasks_together_write_the_same_bytes(call: Run, folder: Path, name: str, to: str):
    inputs = make_plan(call, folder, name=name, to=to)
    shuffle(inputs, folder / "here" / "out", to=to)
    for stage in STAGES:
        numbers = numbers_of(call, folder, stage)
        random.Random(3).shuffle(numbers)
        for number in numbers:
            assert not (folder / "there" / "out").exists()
            shown = run_number(call, folder, number)
    assert b"shuffled" in shown or b"records" in shown
    assert read_all(folder / "there") == read_all(folder / "here")
    assert os.listdir(folder / "there") == os.listdir(folder / "here")


def test_a_plan_without_a_seed_draws_one(call: Run, folder: Path):
    make_plan(call, folder)
    values = json.loads((folder / "plan.json").read_text())
    first = values["run"]["options"].pop("seed")
    make_plan(call, folder, "--overwrite")
    assert first == 5
    plan = ["--plan", "--report", "-", "--engine", "tasks"]
    seeds = {
        json.loads(call(folder / "in", "-o", f"{folder}/other/", *plan).stdout)["run"]["options"]["seed"]
        for _ in range(2)
    }
    assert len(seeds) == 2


def test_the_plan_has_a_pile_set_for_each_task_of_the_scatter(call: Run, folder: Path):
    make_plan(call, folder)
    count = json.loads((folder / "plan.json").read_text())["set_count"]
    assert count == len(numbers_of(call, folder, "scatter")) > 1


def test_tasks_that_a_machine_can_run_at_once_share_its_memory(
    call: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    inputs = make_inputs(folder / "in", "jsonl", COUNTS)
    plan = [*inputs, "-o", f"{folder}/out/", "--plan", "--report", "-", "--engine", "tasks", "--workers"]
    alone, shared = (
        json.loads(call(*plan, count).stdout)["run"]["options"]["memory"] for count in ("4", "1")
    )
    assert shared < alone / 2


@pytest.mark.parametrize("stage", ["scatter", "gather", "commit"])
def test_a_task_that_comes_too_early_says_what_is_missing(call: Run, folder: Path, stage: str):
    inputs = make_plan(call, folder)
    ready = STAGES[: STAGES.index(stage)]
    missing = numbers_of(call, folder, ready[-1])[1]
    for number in [one for name in ready for one in numbers_of(call, folder, name) if one != missing]:
        run_number(call, folder, number)
    early = numbers_of(call, folder, stage)[-1]
    if stage == "scatter":
        early = numbers_of(call, folder, stage)[2]  # its part begins with a row that others count
    done = call("task", folder / "plan.json", str(early))
    assert done.returncode == 2
    assert f"error: task {missing}: not done".encode() in done.stderr
    run_number(call, folder, missing)
    run_stages(call, folder, *STAGES)
    shuffle(inputs, folder / "here" / "out")
    assert read_all(folder / "there") == read_all(folder / "here")


def test_a_task_may_run_again(call: Run, folder: Path):
    inputs = make_plan(call, folder)
    shuffle(inputs, folder / "here" / "out")
    for stage in STAGES[:-1]:
        for number in numbers_of(call, folder, stage) * 2:
            run_number(call, folder, number)
    (last,) = numbers_of(call, folder, "commit")
    run_number(call, folder, last)
    assert read_all(folder / "there") == read_all(folder / "here")
    again = call("task", folder / "plan.json", str(last))
    assert again.returncode == 0
    assert b"there/out/: complete; this task has put it in place before" in again.stderr.replace(
        b"out:", b"out/:"
    )
    late = call("task", folder / "plan.json", "0")
    assert late.returncode == 1
    assert b"was written after this plan was made; if by its tasks, all are done; else " in late.stderr
    assert os.listdir(folder / "there") == os.listdir(folder / "here")


def test_a_task_that_is_done_needs_nothing_again(call: Run, folder: Path):
    make_plan(call, folder)
    gather = numbers_of(call, folder, "gather")
    run_stages(call, folder, *STAGES[:3])
    shutil.rmtree(folder / "there" / ".out.recshuf" / "piles")
    run_number(call, folder, gather[0])


def test_a_commit_waits_for_the_end_of_other_tasks(call: Run, folder: Path):
    make_plan(call, folder)
    run_stages(call, folder, *STAGES[:3])
    (last,) = numbers_of(call, folder, "commit")
    task = share_folder(folder / "there" / ".out.recshuf", "out")
    done = call("task", folder / "plan.json", str(last))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"out: another run is writing it" in done.stderr
    os.close(task)
    run_number(call, folder, last)


@pytest.mark.parametrize("harm", HARMS)
def test_a_commit_without_a_shard_names_the_task_to_run_again(call: Run, folder: Path, harm: str):
    shuffle(make_plan(call, folder), folder / "here" / "out")
    run_stages(call, folder, *STAGES[:3])
    HARMS[harm](next((folder / "there" / ".out.recshuf" / "tasks").glob("shards-*/*")))
    (last,) = numbers_of(call, folder, "commit")
    done = call("task", folder / "plan.json", str(last))
    assert done.returncode == 2
    assert b"is missing or damaged" in done.stderr
    assert b"run this task again, or delete that folder" in done.stderr
    (named,) = re.findall(rb"task (\d+): not done; run recshuf task", done.stderr)
    run_number(call, folder, int(named))
    run_number(call, folder, last)
    assert read_all(folder / "there") == read_all(folder / "here")


def test_other_runs_leave_the_work_of_tasks_alone(call: Run, folder: Path):
    inputs = make_plan(call, folder)
    for number in numbers_of(call, folder, "count"):
        run_number(call, folder, number)
    done = call(*inputs, "-o", f"{folder}/there/out/", "--shards", "3")
    assert done.returncode == 1
    assert b"an unfinished run left" in done.stderr
    (folder / "plan.json").rename(folder / "first.json")
    shutil.rmtree(folder / "in")
    make_plan_again = call(
        *make_inputs(folder / "in", "jsonl", COUNTS), "-o", f"{folder}/there/out/", "--engine", "tasks", "--plan",
        "--report", folder / "plan.json",
    )  # fmt: skip
    assert make_plan_again.returncode == 0
    done = call("task", folder / "plan.json", "0")
    assert (done.returncode, b"holds tasks of another plan" in done.stderr) == (2, True)


def list_readers(folder: Path, index: int) -> list[int]:
    """Return the tasks that read an input."""
    tasks = json.loads((folder / "plan.json").read_text())["run"]["tasks"]
    counting = [number for number, part in enumerate(tasks["counted"]) if part[0] == index]
    sets = [number for number, parts in enumerate(tasks["sets"]) if any(part[0] == index for part in parts)]
    return counting + [len(tasks["counted"]) + number for number in sets]


def test_an_input_that_changes_between_tasks_is_named_by_each_that_reads_it(call: Run, folder: Path):
    inputs = make_plan(call, folder)
    others, *_ = list_readers(folder, 0)
    run_number(call, folder, others)
    inputs[1].write_bytes(b"{}\n")
    readers = {*numbers_of(call, folder, "count")} & {*list_readers(folder, 1)}
    for number in readers:
        done = call("task", folder / "plan.json", str(number))
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert f"error: {inputs[1]}: ".encode() in done.stderr
        assert b"changed while it was read" in done.stderr
    assert readers


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("text", "text"),
        pytest.param("csv", "parquet", marks=pytest.mark.slow),
        ("parquet", "hdf5"),
        pytest.param("hdf5", "jsonl", marks=pytest.mark.slow),
    ],
)
def test_tasks_open_only_the_inputs_that_they_read(call: Run, folder: Path, name: str, to: str):
    inputs = make_plan(call, folder, name=name, to=to)
    shuffle(inputs, folder / "here" / "out", to=to)
    first, *_ = list_readers(folder, 0)
    run_number(call, folder, first)
    away = folder / "away"
    (folder / "in").rename(away)
    (folder / "in").mkdir()
    for number in [*numbers_of(call, folder, "count"), *numbers_of(call, folder, "scatter")]:
        own = [path for index, path in enumerate(inputs) if number in list_readers(folder, index)]
        for path in own:
            (away / path.name).rename(path)
        run_number(call, folder, number)
        for path in own:
            path.rename(away / path.name)
    for number in numbers_of(call, folder, "gather"):
        run_number(call, folder, number)
    (folder / "in").rmdir()
    away.rename(folder / "in")
    run_number(call, folder, *numbers_of(call, folder, "commit"))
    assert read_all(folder / "there") == read_all(folder / "here")


def test_a_pile_set_that_a_machine_lacks_is_named_and_can_be_written_again(call: Run, folder: Path):
    inputs = make_plan(call, folder)
    run_stages(call, folder, "count", "scatter")
    lost = sorted((folder / "there" / ".out.recshuf" / "piles").iterdir())[0]
    lost.unlink()
    gather = numbers_of(call, folder, "gather")
    done = call("task", folder / "plan.json", str(gather[0]))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert f"error: {lost}: cannot be opened".encode() in done.stderr
    assert b"; share its folder between all machines; if it is lost, " in done.stderr
    again = int(done.stderr.split(b"run recshuf task ")[1].split()[0])
    assert again == numbers_of(call, folder, "scatter")[0]
    run_number(call, folder, again)
    run_stages(call, folder, "gather", "commit")
    shuffle(inputs, folder / "here" / "out")
    assert read_all(folder / "there") == read_all(folder / "here")


def test_an_engine_of_tasks_needs_a_saved_plan(call: Run, folder: Path):
    (path,) = make_inputs(folder / "in", "text", [5])
    for options, message in (
        (["--plan"], "--engine tasks: name the file for the plan with --report FILE"),
        ([], "recshuf INPUT... -o OUTPUT --engine tasks --plan --report FILE"),
    ):
        done = call(path, "-o", folder / "out.txt", "--engine", "tasks", *options)
        assert (done.returncode, message.encode() in done.stderr) == (2, True)


def test_what_is_no_task_or_no_plan_is_refused(call: Run, folder: Path):
    make_plan(call, folder)
    for what, message in (
        ("99", "there is no task 99; the plan has tasks 0 to"),
        ("9" * 5000, "there is no task 999999999999999999...; the plan has tasks 0 to"),
        ("all", "all: is no number of a task and no stage"),
    ):
        done = call("task", folder / "plan.json", what)
        assert (done.returncode, message.encode() in done.stderr) == (2, True)
    for content in ("x", "[]", "{}"):
        (folder / "other.json").write_text(content)
        done = call("task", folder / "other.json", "0")
        assert (done.returncode, b"make it with --plan --report" in done.stderr) == (2, True)
    assert call("task", folder / "none.json", "0").returncode == 1
