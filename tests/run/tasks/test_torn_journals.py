"""A commit of tasks on a full disk, whose journal has only a part of its first entry: the next ones complete it."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import DiskFullError
from recshuf.output.local import stage as commit
from recshuf.output.local.log import FileJournal
from recshuf.system.atomic import format_line
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small, read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.output.run_log import Entry

OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 16, "memory": "300MB", "overwrite": True}
KILLED = 7


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400, region_bytes=100)


def fill_disk(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let a disk have room for so many bytes of the journal; from the end if below 0."""

    def append(journal: FileJournal, entry: Entry) -> None:
        journal.path.write_bytes(format_line(entry)[:size])
        raise OSError(errno.ENOSPC, "full")

    patch.setattr(FileJournal, "append", append)


def is_killed(step: int, function: Callable[[], object]) -> bool:
    """Call a function in a child that dies before a rename; return whether there was one of this number."""
    steps = iter(range(10**6))

    def kill_or(whole: Callable[..., Any]) -> Callable[..., Any]:
        def rename(*given: Any) -> Any:
            if next(steps) == step:
                os._exit(KILLED)
            return whole(*given)

        return rename

    child = os.fork()
    if not child:
        with suppress(BaseException):
            patch = pytest.MonkeyPatch()
            patch.setattr(os, "rename", kill_or(os.rename))
            patch.setattr(commit, "exchange", kill_or(commit.exchange))
            function()
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("size", [0, 1, 17, 400, -2, -1])
def test_a_commit_after_one_on_a_full_disk_may_be_killed_at_each_rename(
    tmp_path: Path, replaces: bool, size: int
):
    folder, aside = tmp_path / "data", tmp_path / "aside"
    folder.mkdir()
    inputs = make_inputs(tmp_path / "in", "jsonl", (60, 40))
    if replaces:
        recshuf.shuffle(inputs[0], f"{folder}/out/", **OPTIONS | {"shards": 2})
    run = runs.plan_tasks(inputs, f"{folder}/out/", **OPTIONS, shards=3)[1]
    (last,) = runs.list_tasks(run, "commit")
    for number in range(last):
        runs.run_task(run, number)
    shutil.copytree(folder, aside)
    runs.run_task(run, last)
    whole = read_all(folder)
    step = -1
    is_over = False
    while not is_over:
        shutil.rmtree(folder)
        shutil.copytree(aside, folder)
        with pytest.MonkeyPatch.context() as patch:
            fill_disk(patch, size)
            with pytest.raises(DiskFullError, match="journal"):
                runs.run_task(run, last)
        step += 1
        is_over = not is_killed(step, lambda: runs.run_task(run, last))
        if not is_over:
            runs.run_task(run, last)
        assert read_all(folder) == whole, step
        assert sorted(os.listdir(folder)) == ["out", "out.recshuf.json"]
    assert step == 5
