"""A task of the gather that cannot write its shards, or read the piles: it says what to do, and doing that helps."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf import api
from recshuf.errors import DiskFullError, OutputError
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS: dict[str, Any] = {"seed": 5, "piles": 16, "memory": "300MB"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400, region_bytes=200)


class Gather:
    """A run by tasks that is to gather, and what one process makes of it."""

    def __init__(self, folder: Path, name: str = "out/", **options: Any) -> None:
        self._folder = folder
        (folder / "there").mkdir()
        given = OPTIONS | options | ({"shards": 2} if name.endswith("/") else {})
        self.inputs = make_inputs(folder / "in", "jsonl", (100, 0, 60))
        (folder / "here").mkdir()
        recshuf.shuffle(self.inputs, f"{folder}/here/{name}", **given)
        self.output = f"{folder}/there/{name}"
        self.plan = api.plan_tasks(self.inputs, self.output, **given)[1]
        (self.last,) = api.list_tasks(self.plan, "commit")
        self.tasks = api.list_tasks(self.plan, "gather")
        self.run(range(self.tasks.start))

    def run(self, numbers: range) -> None:
        for number in numbers:
            api.run_task(self.plan, number)

    def fail(self, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            api.run_task(self.plan, self.tasks[0])

    def check(self) -> None:
        """Check that the output is that of the run in one process, when the other tasks have run."""
        self.run(range(self.last + 1))
        assert read_all(self._folder / "there") == read_all(self._folder / "here")


# Shards


@contextmanager
def limit_files(byte_count: int) -> Iterator[None]:
    """Let no file grow larger."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("byte_count", [0, 100])
@pytest.mark.parametrize(("name", "to"), [("out/", "text"), ("out/", "parquet"), ("out.jsonl", "jsonl")])
def test_a_shard_that_may_not_grow_is_named(tmp_path: Path, name: str, to: str, byte_count: int):
    gather = Gather(tmp_path, name, **{"format": "text"} if to == "text" else {"to": to})
    with limit_files(byte_count):
        gather.fail(DiskFullError, r"/there/out\S*: the file may not grow this large; raise ulimit -f")
    gather.check()


FAILURES = {
    errno.ENOSPC: (DiskFullError, "no space left for the output .*needed in all, .* free.; free some"),
    errno.EDQUOT: (DiskFullError, "no space left for the output .*needed in all, .* free.; free some"),
    errno.EIO: (OutputError, "cannot be written: Input/output error"),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_disk_that_fails_is_named(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch):
    gather = Gather(tmp_path)
    kind, said = FAILURES[code]

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        gather.fail(kind, f"/there/out: {said}")
    gather.check()
