"""Runs by processes of this machine give the bytes of a run by threads, whatever ends them before."""

import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import EngineError, MemoryLimitError, UsageError
from recshuf.job.arguments import make_job
from recshuf.job.options import ENGINES
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import Moment, ThreadEngine, divide_small, read_all, shuffle
from tests.support.small_runs import change_plans

COUNTS = (300, 100, 0, 400)
PROCESSES: dict[str, Any] = {"engine": "processes", "workers": 2, "memory": "1GB"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tables": ("parquet", {}),
    "converted, bad records": ("jsonl", {"to": "parquet", "on_bad_record": "quarantine:bad"}),
    "verified, provenance": ("csv", {"to": "parquet", "verify": True, "provenance": True}),
    "split": ("csv", {"split": "a=0.6,b=0.4"}),
    "groups": ("parquet", {"group_by": "tag"}),
    "no repeats": ("jsonl", {"dedup": "pad"}),
    "weights": ("jsonl", {"weights": [2, 1, 0, 1], "head_count": 500}),
    "one file": ("jsonl", {"to": "hdf5"}),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_processes_write_what_threads_write(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = KINDS[kind]
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    if "bad records" in kind:
        inputs[1].write_bytes(inputs[1].read_bytes() + b"{\n")
    found = {}
    for engine in ("local", "processes"):
        (tmp_path / engine).mkdir()
        monkeypatch.chdir(tmp_path / engine)
        output = tmp_path / engine / ("out.h5" if kind == "one file" else "out")
        progress = Moment("gather", lambda: None)
        shuffle(inputs, output, **options | PROCESSES | {"engine": engine, "progress": progress})
        assert progress.has_come
        found[engine] = read_all(tmp_path / engine)
    assert found["processes"] == found["local"]
    assert len(found["local"]) > 1 or kind == "one file"


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Servers of other tests may be children, too, and stay."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def kill_all() -> None:
    """Kill the processes of runs that have not died yet."""
    for child in psutil.Process().children():
        with suppress(psutil.ZombieProcess):
            if any("recshuf.run.engines" in part for part in child.cmdline()):
                child.kill()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "act", "kind"),
    [
        ("scatter", kill_all, EngineError),
        ("gather", kill_all, EngineError),
        ("gather", interrupt, KeyboardInterrupt),
    ],
)
def test_a_run_whose_processes_end_is_continued(
    tmp_path: Path, stage: str, act: Callable[[], None], kind: type[BaseException]
) -> None:
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    given = PROCESSES | {"to": "parquet", "shards": 6}
    shuffle(inputs, tmp_path / "here" / "out", **given | {"engine": "local"})
    with pytest.raises(kind) as raised:
        shuffle(inputs, tmp_path / "there" / "out", **given, progress=Moment(stage, act))
    assert "continue with the same command and resume=True" in raised.value.__notes__[0]
    with pytest.raises(UsageError, match="continue it with engine processes or ray"):
        shuffle(inputs, tmp_path / "there" / "out", **given | {"engine": "local", "resume": True})
    shuffle(inputs, tmp_path / "there" / "out", **given | {"workers": 1, "resume": True})
    assert read_all(tmp_path / "there") == read_all(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["-c", "script"])
def test_a_program_needs_no_main_guard(tmp_path: Path, starts: str):
    make_inputs(tmp_path / "in", "text", COUNTS)
    code = f"import recshuf; print(recshuf.shuffle('in', 'out/', seed=5, **{PROCESSES}).records)"
    (tmp_path / "script").write_text(code)
    command = [sys.executable, *(["-c", code] if starts == "-c" else [starts])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, env=os.environ)
    assert (done.stdout, done.stderr) == (b"800\n", b"")


def test_streams_tables_and_too_little_memory_are_refused(tmp_path: Path):
    (path,) = make_inputs(tmp_path / "in", "text", [90])
    table = pa.table({"id": [1]})
    for inputs, output in (("-", tmp_path / "out"), (path, "-"), (table, tmp_path / "out.parquet")):
        with pytest.raises(UsageError, match=r"other processes cannot (use standard input|read <table)"):
            recshuf.shuffle(inputs, output, **PROCESSES, stdin=io.BytesIO())
    with pytest.raises(UsageError, match=r"give memory=.214MB. or more, or engine local"):
        recshuf.shuffle(path, tmp_path / "out", engine="processes", memory="200MB")
    (path,) = make_inputs(tmp_path / "lines", "jsonl", [90])
    given = {**PROCESSES, "memory": "430MB"}
    with pytest.raises(MemoryLimitError, match=r"limit is 430 MB; raise memory or lower workers") as raised:
        recshuf.plan(path, tmp_path / "out.parquet", **given)
    enough = re.findall(r"needs at least (.*) of memory", str(raised.value))[0]
    assert recshuf.plan(path, tmp_path / "out.parquet", **given | {"memory": enough}).processes == 2
    assert recshuf.plan(path, tmp_path / "out.parquet", **given | {"workers": 1}).processes == 1


CHOSEN: dict[str, tuple[dict[str, Any], bool]] = {
    "many workers": ({}, True),
    "few workers": ({"workers": 7}, False),
    "threads": ({"engine": "local"}, False),
    "few shards": ({"shards": 4}, False),
    "little memory": ({"memory": "1.2GB"}, False),
    "a conversion": ({"to": "parquet"}, False),
    "verified": ({"verify": True}, True),
}


@pytest.mark.parametrize("fits", [False, True])
def test_processes_are_chosen_where_they_are_faster(
    tmp_path: Path, fits: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("recshuf.run.driver._DIVIDED_BYTES", 0)
    if not fits:
        change_plans(monkeypatch, resident_bytes=0, block_bytes=1000)
    inputs = {name: make_inputs(tmp_path / name, name, COUNTS) for name in ("jsonl", "hdf5")}
    for name, (options, expected) in CHOSEN.items():
        given = {"workers": 8, "shards": 8, "memory": "8GB", "piles": 64} | options
        plan = recshuf.plan(inputs["jsonl"], f"{tmp_path}/out/", **given)
        assert plan.processes == 8 * (expected and not fits), name
    assert recshuf.plan(inputs["hdf5"], f"{tmp_path}/out/", workers=8, shards=8).processes == 0
    monkeypatch.setattr("recshuf.run.driver._DIVIDED_BYTES", 10**6)
    assert (
        recshuf.plan(inputs["jsonl"], f"{tmp_path}/out/", **given | CHOSEN["many workers"][0]).processes == 0
    )


def test_workers_and_memory_are_those_of_the_run(tmp_path: Path):
    def divide(tasks: int, **options: Any) -> tuple[int, int, int]:
        job = make_job([str(tmp_path)], "out", {"engine": "processes"} | options).share(tasks)  # type: ignore[arg-type]
        return job.processes, job.workers, job.memory_bytes // 10**6

    assert divide(99, workers=8, memory="4GB") == (8, 1, 350)
    assert divide(2, workers=8, memory="4GB") == (2, 4, 1850)
    assert divide(1, workers=8, memory="4GB") == (1, 8, 3850)
    assert divide(99, workers=8, memory="900MB") == (4, 2, 75)


_RUN = """
import pickle, sys
function, task = pickle.load(sys.stdin.buffer)
result = function(task)
import pyarrow as pa
pickle.dump((result, pa.default_memory_pool().backend_name), sys.stdout.buffer)
"""
_CHOOSE = """
from recshuf.system.memory import choose_allocators
choose_allocators(300_000_000)
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""


def run_child(code: str, given: bytes = b"") -> bytes:
    return subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True).stdout


class ChildEngine(ThreadEngine):
    """Hands each task to a new process, which knows nothing else."""

    backends: ClassVar[set[str]] = set()

    def run(self, function: Any, tasks: Any, workers: int) -> Generator[Any, None, None]:
        for task in tasks:
            result, backend = pickle.loads(run_child(_RUN, pickle.dumps((function, task))))
            self.backends.add(backend)
            yield result


@pytest.mark.slow
def test_a_process_that_is_handed_a_task_chooses_the_allocators_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ENGINES, "children", f"{__name__}:ChildEngine")
    shuffle(make_inputs(tmp_path / "few", "jsonl", [9]), tmp_path / "out", engine="children", shards=1)
    assert ChildEngine.backends == {run_child(_CHOOSE).decode().strip()}
