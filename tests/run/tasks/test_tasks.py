"""A run whose tasks others run gives the bytes of a run in one process, however it is divided and whoever dies."""

import gzip
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import (
    AlreadyCompleteError,
    ConversionError,
    InputError,
    Interrupted,
    OutputError,
    OutputExistsError,
    UnfinishedOutputError,
    UsageError,
)
from recshuf.job.options import ENGINES
from recshuf.output.local.log import FileResults
from recshuf.piles.pile_set import GrowingPileSet
from recshuf.run.task import do_work
from tests.support.effort import TRIES_ALL, mostly_slow
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.processes.deaths import die_everywhere, dies
from tests.support.processes.task_runs import (
    HARMS,
    SavedPlan,
    ThreadEngine,
    TwinPlan,
    die_after,
    divide_small,
    read_all,
    shuffle,
)
from tests.support.small_runs import Listener, infer_from_few, read_files

COUNTS = (300, 100, 0, 400, 3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch)


def compare(inputs: list[Path], folder: Path, name: str = "out", **options: Any) -> recshuf.ShuffleReport:
    """Compare the output of tasks in other threads with that of a run in this process."""
    engine = options.pop("engine", "threads")
    here = shuffle(inputs, folder / "here" / name, **options)
    if options.get("on_bad_record"):
        (folder / "bad").rename(folder / "bad-here")
    there = shuffle(inputs, folder / "there" / name, engine=engine, **options)
    assert read_all(folder / "there") == read_all(folder / "here")
    assert (there.inputs, there.shards, there.features) == (here.inputs, here.shards, here.features)
    assert there.records_written == here.records_written
    assert there.spilled_bytes > 0
    assert sorted(os.listdir(folder / "there")) == sorted(os.listdir(folder / "here"))
    return there


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return tmp_path


# The bytes


SETTINGS: dict[str, dict[str, Any]] = {
    "sample": {"head_count": 50},
    "copies": {"copies": [1.5] * 5},
    "provenance": {"to": "parquet", "provenance": True},
    "verified": {"verify": True},
    "bytes-of-shards": {"shards": None, "shard_bytes": 9000},
    "bytes-of-shards-of-copies": {"shards": None, "shard_bytes": 900, "copies": [3, 2, 1, "1.5", 0]},
    "shards-of-inputs": {"shards": None},
    "more-shards-than-records": {"shards": 900},
}


@pytest.mark.parametrize(
    "setting", mostly_slow(SETTINGS, "sample", "verified", "bytes-of-shards", "bytes-of-shards-of-copies")
)
def test_options_do_what_they_do_in_one_process(folder: Path, setting: str):
    compare(make_inputs(folder / "in", "jsonl", COUNTS), folder, **SETTINGS[setting])


def test_compressed_inputs_are_read_whole(folder: Path):
    inputs = make_inputs(folder / "in", "text", COUNTS)
    packed = folder / "in" / "packed.txt.gz"
    packed.write_bytes(gzip.compress(b"".join(path.read_bytes() for path in inputs)))
    compare([*inputs, packed], folder)


@settings(max_examples=40 if TRIES_ALL else 6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=4),
    st.integers(100, 20_000),
    st.integers(1, 400),
    st.sampled_from([1, 8, 64, 200]),
    st.sampled_from(FORMATS),
)
def test_any_division(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    block_bytes: int,
    region_bytes: int,
    piles: int,
    name: str,
):
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        divide_small(patch, block_bytes, region_bytes)
        inputs = make_inputs(folder / "in", name, counts)
        shuffle(inputs, folder / "here", piles=piles)
        shuffle(inputs, folder / "there", piles=piles, engine="threads")
    assert read_all(folder / "there") == read_all(folder / "here")
    shutil.rmtree(folder)


# Types and bad records


def test_types_are_those_of_all_tasks_together(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Columns that only one part has, and numbers that are whole in most."""
    infer_from_few(monkeypatch)
    lines = [{"a": number, "b": None} for number in range(900)]
    lines[0] = {"z": "first"}
    lines[450] = {"b": [{"c": 1}], "a": 7}
    lines[880] = {"a": 0.5, "d": True}
    inputs = [folder / "0.jsonl", folder / "1.jsonl"]
    for path, own in zip(inputs, (lines[:600], lines[600:]), strict=True):
        path.write_text("".join(json.dumps(line) + "\n" for line in own))
    compare(inputs, folder, "out.parquet")


def test_types_that_tasks_find_in_conflict_are_named_with_both_places(folder: Path):
    lines = [{"a": 1}] * 600 + [{"a": "x"}]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(
        InputError, match=r"in.jsonl: line 601, field 'a': holds a string, but a number in line"
    ):
        shuffle([folder / "in.jsonl"], folder / "out.parquet", engine="threads")
    assert sorted(os.listdir(folder)) == ["here", "in.jsonl", "there"]


def test_tasks_take_no_types_from_a_prefix(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """So what does not fit is no reason to read all inputs, and to have others write all shards, again."""
    infer_from_few(monkeypatch)
    inputs = [folder / f"{index}.jsonl" for index in range(3)]
    for index, path in enumerate(inputs):
        path.write_text('{"a": 1}\n' * 300 + '{"a": null}\n' * (index == 2))
    passes = {}
    for engine in ("local", "threads"):
        progress = Listener()
        with pytest.raises(ConversionError, match="holds no nulls"):
            shuffle(inputs, folder / f"{engine}.npy", engine=engine, progress=progress)
        passes[engine] = progress.passes
    assert ["observe" in passes[engine] for engine in ("local", "threads")] == [True, False]


def test_bad_records_are_set_aside_in_the_order_of_inputs_and_lines(folder: Path):
    inputs = make_inputs(folder / "in", "csv", COUNTS)
    for path in inputs[:4]:
        lines = path.read_bytes().splitlines(keepends=True)
        for number in range(5, len(lines), 97):
            lines[number] = b"\xff{,,,,,\n"
        path.write_bytes(b"".join(lines))
    bad = f"quarantine:{folder}/bad"
    report = compare(inputs, folder, "out.parquet", on_bad_record=bad)
    assert (folder / "bad").read_bytes() == (folder / "bad-here").read_bytes()
    assert report.quarantined > 5


# Runs that die


@pytest.mark.parametrize("count", mostly_slow([0, 9, 26], 9, 26))
def test_a_run_that_dies_is_continued(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int):
    """10 tasks count, 14 scatter, and 3 gather. The rest has the limits of the attempt that does it."""
    limits: set[tuple[int, int]] = set()

    def note(run: Any, number: int) -> dict[str, Any]:
        limits.add((run.job.memory_bytes, run.job.workers))
        return do_work(run, number)

    inputs = make_inputs(folder / "in", "jsonl", COUNTS)
    shuffle(inputs, folder / "here" / "out", to="parquet")
    die_after(count, inputs, folder / "there" / "out", to="parquet")
    assert not (folder / "there" / "out").exists()
    if count:
        with pytest.raises(OutputError, match=f"finished parts: {count}; give resume=True"):
            shuffle(inputs, folder / "there" / "out", to="parquet", engine="threads")
    monkeypatch.setattr("recshuf.run.task.do_work", note)
    given = {"memory": "250MB", "workers": 1}
    shuffle(inputs, folder / "there" / "out", to="parquet", engine="threads", resume=True, **given)
    assert read_all(folder / "there") == read_all(folder / "here")
    assert all(memory <= 250 * 10**6 and workers == 1 for memory, workers in limits)


@pytest.mark.parametrize(
    ("output", "count", "lost", "harm"),
    [
        ("out", 19, "piles/set-*", "deleted"),
        ("out", 26, "tasks/shards-*/shard-00001.txt", "flipped"),
        pytest.param("out", 26, "tasks/shards-*/shard-00001.txt", "deleted", marks=pytest.mark.slow),
        # All tasks but the commit
        pytest.param("out.txt", 25, "tasks/shards-*/out.txt", "flipped", marks=pytest.mark.slow),
    ],
)
def test_what_is_lost_is_written_again(folder: Path, output: str, count: int, lost: str, harm: str):
    inputs = make_inputs(folder / "in", "text", COUNTS)
    shuffle(inputs, folder / "here" / output)
    die_after(count, inputs, folder / "there" / output)
    HARMS[harm](sorted((folder / "there" / f".{output}.recshuf").glob(lost))[0])
    shuffle(inputs, folder / "there" / output, engine="threads", resume=True)
    assert read_all(folder / "there") == read_all(folder / "here")


class NotingEngine(ThreadEngine):
    """Keeps the tasks that it is given, and notes its end."""

    calls: ClassVar[list[Callable[[], object]]] = []
    is_closed = False

    def close(self) -> None:
        NotingEngine.is_closed = True

    def run(self, function: Any, tasks: Any, workers: int) -> Generator[Any, None, None]:
        NotingEngine.calls += [partial(function, task) for task in tasks]
        yield from super().run(function, tasks, workers)


def test_the_task_of_a_run_that_has_ended_does_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor while another run is writing the output; this process has joined others since."""
    monkeypatch.setitem(ENGINES, "noting", f"{__name__}:NotingEngine")
    inputs, output = make_inputs(folder / "in", "text", COUNTS), folder / "there" / "out"
    shuffle(inputs, output, engine="noting")
    assert NotingEngine.is_closed
    shuffle(inputs, folder / "here" / "out", engine="threads")
    for is_dead in (False, True):
        if is_dead:
            die_after(13, inputs, output, overwrite=True)
        left = read_all(folder / "there")
        for call in NotingEngine.calls[::10]:
            with pytest.raises(OutputError, match="the run of this task has ended"):
                call()
        assert read_all(folder / "there") == left


@pytest.mark.parametrize("stage", ["scatter", "gather"])
def test_of_two_processes_that_run_a_task_the_later_one_deletes_what_it_has_written(
    folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch
):
    plan = SavedPlan(
        make_inputs(folder / "in", "text", COUNTS), f"{folder}/there/out/", seed=5, memory="300MB"
    )
    number = plan.list(stage)[0]
    plan.do(*range(number))
    place, left = FileResults.place, {path.name for path in (folder / "there").rglob("*")}

    def place_later(self: FileResults, name: str, values: dict[str, Any]) -> Any:
        place(self, name, values | {"by": "another"})
        return place(self, name, values)

    monkeypatch.setattr(FileResults, "place", place_later)
    plan.do(number)
    (added,) = {path.name for path in (folder / "there").rglob("*")} - left - {"piles"}
    assert added.startswith("task-")


@pytest.mark.parametrize("stage", ["scatter", "gather"])
def test_a_signal_that_comes_when_a_result_is_in_place_takes_away_nothing_that_it_names(
    folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch
):
    inputs = make_inputs(folder / "in", "text", COUNTS)
    shuffle(inputs, folder / "here" / "out")
    plan = SavedPlan(inputs, f"{folder}/there/out/", seed=5, piles=64, memory="300MB", shards=3)
    number, place = plan.list(stage)[0], FileResults.place
    plan.do(*range(number))

    def place_and_stop(*given: Any) -> None:
        place(*given)
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(FileResults, "place", place_and_stop)
        with pytest.raises(Interrupted):
            plan.do(number)
    plan.do(*range(number + 1, plan.last + 1))
    assert read_all(folder / "there") == read_all(folder / "here")


def test_an_error_of_a_task_leaves_what_is_needed_to_continue(folder: Path, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(folder / "in", "text", COUNTS)
    shuffle(inputs, folder / "here" / "out")
    with monkeypatch.context() as patch:
        patch.setattr(GrowingPileSet, "seal", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shuffle(inputs, folder / "there" / "out", engine="threads")
    assert not list((folder / "there" / ".out.recshuf" / "piles").iterdir())
    shuffle(inputs, folder / "there" / "out", engine="threads", resume=True)
    assert read_all(folder / "there") == read_all(folder / "here")


# What tasks cannot do


def test_what_engines_cannot_do_is_refused(folder: Path):
    inputs = make_inputs(folder / "in", "text", COUNTS)
    os.mkfifo(folder / "out.txt")
    address = {"ray_address": "10.0.0.1:6379"}
    for output, options, said in (
        ("out.txt", {"engine": "threads"}, "engine: other processes cannot write a stream; give a file or"),
        ("out", {"engine": "local"} | address, r"ray_address 10\.0\.0\.1:6379: is used with engine ray only"),
        ("out", {"engine": "tasks"} | address, r"ray_address 10\.0\.0\.1:6379: is used with engine ray only"),
        ("out", {"engine": "spark"}, "'spark' is not possible; choose one of local, processes, ray, tasks"),
    ):
        with pytest.raises(UsageError, match=said):
            shuffle(inputs, folder / output, **options)


# Tasks in any order, each twice at once, and killed anywhere


FEW = (90, 0, 60)
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "shards": ("text", "out/", {"shards": 3}),
    "parts": ("jsonl", "out/", {"shards": 7, "split": "a=0.6,b=0.3,c=0.1"}),
    "groups": ("csv", "out/", {"shards": 7, "group_by": "fields,text", "group_order": "random"}),
    "sample": ("hdf5", "out/", {"shards": 2, "head_count": 70}),
    "file, converted": ("jsonl", "out.parquet", {"provenance": True}),
    "replaced": ("jsonl", "out/", {"to": "hdf5", "shards": 2, "overwrite": True, "earlier": {"shards": 5}}),
    "bad records": ("csv", "out/", {"to": "parquet", "shards": 2, "spoil": lambda lines: lines + b"\xff,\n1,2,3,4\n"}),
    "file, verified": ("csv", "out.csv.gz", {"verify": True}),
}  # fmt: skip
NOT_DONE = 3


class Plan(TwinPlan):
    """The tasks of a run of some kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        given, name, options = KINDS[kind]
        super().__init__(folder, given, name, counts=FEW, workers=1, piles=32, **options)

    def run_again(self) -> None:
        """Run all tasks as a user would after one of them has died, perhaps the commit when the output was in place."""
        with suppress(OutputExistsError, UnfinishedOutputError):
            self.do_all()
            return
        with suppress(OutputExistsError):
            self.commit()

    def read(self) -> dict[str, bytes]:
        """Return the files of the output, beside which nothing is left."""
        for folder in self.folder.glob(".*.recshuf"):
            folder.rmdir()  # an empty one may be that of a task that begins
        return read_files(self.folder)

    def run_twins(self, number: int) -> bool:
        """Run a task in two processes at once; return whether those before it were done."""
        children = [os.fork() or self._end_child(number) for _ in range(2)]
        codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
        assert codes in ({0}, {NOT_DONE})
        return codes == {0}

    def _end_child(self, number: int) -> None:
        code = 1
        try:
            self.do(number)
            code = 0
        except UsageError as error:
            code = NOT_DONE if "not done" in str(error) else 1
        finally:
            os._exit(code)


@pytest.mark.parametrize("kind", mostly_slow(KINDS, "bad records"))
def test_tasks_in_any_order_and_each_twice_at_once_write_the_bytes_of_one_process(tmp_path: Path, kind: str):
    plan = Plan(tmp_path, kind)
    left = random.Random(kind).sample(range(plan.last), plan.last)
    assert plan.last > 4
    with pytest.raises(UsageError, match=r"^task \d+.*: not done"):
        plan.commit()
    refused = 0
    while left:
        number = left.pop()
        if not plan.run_twins(number):
            left.insert(0, number)
            refused += 1
    assert refused
    plan.commit()
    plan.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file, converted", "bad records", "replaced"])
def test_tasks_that_die_before_any_change_run_again(tmp_path: Path, kind: str):
    plan = Plan(tmp_path, kind)
    deaths = 0
    for step in die_everywhere(plan.do_all, plan.folder, every=1 if TRIES_ALL else 53, first=5):
        plan.run_again()
        assert plan.read() == plan.whole, step
        deaths += 1
    assert deaths > 2


@pytest.mark.parametrize("kind", mostly_slow(["bad records", "file, verified"], "bad records"))
def test_a_commit_that_dies_before_any_change_is_completed_by_whatever_comes_next(tmp_path: Path, kind: str):
    plan = Plan(tmp_path, kind)
    plan.do_before_the_commit()

    def commit() -> None:
        with suppress(OutputExistsError):  # it is in place, and told so
            plan.commit()

    deaths = 0
    for step in die_everywhere(commit, plan.folder, every=1 if TRIES_ALL else 5):
        if deaths % 3 == 0:
            dies(commit, plan.folder, step // 2)
        if deaths % 3 == 1:
            with suppress(OutputExistsError, UnfinishedOutputError):
                plan.do(0)
        if deaths % 3 == 2:
            with suppress(AlreadyCompleteError):
                plan.shuffle(engine="threads", resume=True)
        commit()
        assert plan.read() == plan.whole, step
        deaths += 1
    assert deaths > 4
