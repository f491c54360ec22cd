"""A run that is killed while it removes its remains: whatever comes next removes the rest, and the output stays."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import AlreadyCompleteError, OutputExistsError, RecshufError
from recshuf.output.local.stage import WorkFolder
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small, read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNTS = (60, 40)
OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 16, "memory": "300MB"}
KILLED = 7
CUTS: dict[str, dict[str, Any]] = {"out/": {"shards": 2}, "out.txt": {}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400, region_bytes=100)


def die_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """End the process before one of the removals of files and folders after the commit."""
    steps = iter(range(10**6))

    def kill_or(whole: Callable[..., None]) -> Callable[..., None]:
        def remove(*given: Any, **options: Any) -> None:
            if next(steps) == step:
                os._exit(KILLED)
            whole(*given, **options)

        return remove

    remove_all = WorkFolder.remove

    def begin(work: WorkFolder) -> None:
        for name in ("unlink", "rmdir"):
            patch.setattr(os, name, kill_or(getattr(os, name)))
        remove_all(work)

    patch.setattr(WorkFolder, "remove", begin)


def is_killed(step: int, function: Callable[[], object]) -> bool:
    """Call a function in a child that dies at a step; return whether there was such a step."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            die_at(pytest.MonkeyPatch(), step)
            function()
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


class Removal:
    """A run before its commit, which is killed at each of its removals in turn.

    Parameters
    ----------
    commit
        What ends the run.
    """

    def __init__(self, folder: Path, commit: Callable[[], object]) -> None:
        self._folder, self._commit = folder, commit
        self._aside = folder.with_name("aside")
        shutil.copytree(folder, self._aside)

    def try_each(self, go_on: Callable[[], object]) -> None:
        """Kill the run at each removal, do what comes next, and compare what is left with that of a whole run."""
        self._commit()
        whole = self._list()
        step = 0
        while True:
            shutil.rmtree(self._folder)
            shutil.copytree(self._aside, self._folder)
            if not is_killed(step, self._commit):
                break
            go_on()
            assert self._list() == whole, step
            step += 1
        assert step > 2

    def _list(self) -> tuple[dict[str, bytes], list[str]]:
        for path in self._folder.glob(".*.recshuf"):
            path.rmdir()  # an empty one may be that of a task that begins
        return read_all(self._folder), sorted(os.listdir(self._folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture(params=["beside", "elsewhere"])
def piles(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """Return where pile sets are."""
    if request.param == "beside":
        return {}
    (folder / "temp").mkdir()
    return {"temp_dir": folder / "temp"}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("next_run", ["commit", "task", "ray", "local"])
def test_what_a_killed_commit_of_tasks_leaves_is_removed_by_whatever_comes_next(
    tmp_path: Path, folder: Path, piles: dict[str, Any], name: str, next_run: str
):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    options = OPTIONS | CUTS[name] | piles
    run = runs.plan_tasks(inputs, f"{folder}/{name}", **options)[1]
    (last,) = runs.list_tasks(run, "commit")
    for number in range(last):
        runs.run_task(run, number)

    def go_on() -> None:
        if next_run in ("ray", "local"):
            engine = "threads" if next_run == "ray" else "local"
            with pytest.raises(AlreadyCompleteError):
                recshuf.shuffle(inputs, f"{folder}/{name}", **options, engine=engine, resume=True)
            return
        with pytest.raises(OutputExistsError) as raised:
            runs.run_task(run, last if next_run == "commit" else 0)
        is_told = next_run == "commit" and name == "out/"
        assert isinstance(raised.value, AlreadyCompleteError) == is_told

    Removal(folder, lambda: runs.run_task(run, last)).try_each(go_on)


@pytest.mark.parametrize("name", CUTS)
def test_another_plan_begins_where_a_killed_run_left_something(tmp_path: Path, folder: Path, name: str):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    options = OPTIONS | CUTS[name] | {"overwrite": True}
    if name == "out/":
        recshuf.shuffle(inputs[0], f"{folder}/{name}", **options | {"shards": 5})

    def plan_and_run() -> None:
        run = runs.plan_tasks(inputs, f"{folder}/{name}", **options)[1]
        for number in range(*runs.list_tasks(run, "commit")):
            runs.run_task(run, number)
        runs.run_task(run, *runs.list_tasks(run, "commit"))

    Removal(folder, plan_and_run).try_each(plan_and_run)


@pytest.mark.parametrize("name", CUTS)
def test_what_a_killed_run_of_one_process_leaves_is_removed_by_the_next(
    tmp_path: Path, folder: Path, name: str
):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)

    def run(*, resume: bool = False) -> None:
        recshuf.shuffle(inputs, f"{folder}/{name}", **OPTIONS | CUTS[name], resume=resume)

    def go_on() -> None:
        with pytest.raises(AlreadyCompleteError):
            run(resume=True)

    Removal(folder, run).try_each(go_on)


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}], ids=["resume", "overwrite"])
def test_an_empty_work_folder_is_removed_without_a_word(
    folder: Path, options: dict[str, Any], is_complete: bool, recwarn: pytest.WarningsRecorder
):
    (path,) = make_inputs(folder / "in", "text", COUNTS[:1])
    if is_complete:
        recshuf.shuffle(path, f"{folder}/out/", **OPTIONS)
    (folder / ".out.recshuf").mkdir(mode=0o700)
    with pytest.raises(AlreadyCompleteError) if is_complete and "resume" in options else nullcontext():
        recshuf.shuffle(path, f"{folder}/out/", **OPTIONS, **options)
    assert sorted(os.listdir(folder)) == ["in", "out", "out.recshuf.json"]
    assert not recwarn.list


def test_a_failed_run_that_is_killed_while_it_removes_itself_begins_anew(tmp_path: Path, folder: Path):
    good, bad = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    content = bad.read_bytes()

    def run() -> None:
        recshuf.shuffle([good, bad], f"{folder}/out/", **OPTIONS, to="parquet", shards=2)

    def fail() -> None:
        bad.write_bytes(content + b'{"id"\n')
        with pytest.raises(RecshufError):
            run()

    def go_on() -> None:
        bad.write_bytes(content)
        run()
        assert len(os.listdir(folder / "out")) == 2
        shutil.rmtree(folder / "out")
        (folder / "out.recshuf.json").unlink()

    Removal(folder, fail).try_each(go_on)
