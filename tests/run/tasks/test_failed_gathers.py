"""A task of the gather that cannot write its shards, or read the piles: it says what to do, and doing that helps."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import DiskFullError, OutputError, PileError, UsageError
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import SavedPlan, read_all
from tests.support.stores.store_reader import read_footer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


OPTIONS: dict[str, Any] = {"seed": 5, "piles": 16, "memory": "300MB"}


class Gather(SavedPlan):
    """A run by tasks that is to gather, and what one process makes of it."""

    def __init__(self, folder: Path, name: str = "out/", **options: Any) -> None:
        self._folder = folder
        (folder / "there").mkdir()
        given = OPTIONS | options | ({"shards": 2} if name.endswith("/") else {})
        self.inputs = make_inputs(folder / "in", "jsonl", (100, 0, 60))
        (folder / "here").mkdir()
        recshuf.shuffle(self.inputs, f"{folder}/here/{name}", **given | {"temp_dir": None})
        self.output = f"{folder}/there/{name}"
        super().__init__(self.inputs, self.output, **given)
        self.tasks = self.list("gather")
        self.do(*range(self.tasks.start))

    def fail(self, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            self.do(self.tasks[0])

    def check(self) -> None:
        """Run the tasks that are left, and check the output."""
        self.do_all()
        self.compare()

    def compare(self) -> None:
        """Check that the output is that of the run in one process."""
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


@pytest.mark.parametrize(
    ("name", "to", "byte_count"), [("out/", "text", 0), ("out/", "parquet", 100), ("out.jsonl", "jsonl", 100)]
)
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


# Piles


def damage_region(content: bytes) -> bytes:
    """Return a pile set with another bit in its first slice."""
    start = int(read_footer(content)[1][0, 1])
    damaged = bytearray(content)
    damaged[start + 30] ^= 1
    return bytes(damaged)


def find_sets(gather: Gather) -> list[Path]:
    return sorted((gather.inputs[0].parents[1] / "there" / ".out.recshuf" / "piles").iterdir())


DAMAGED = r"region \d+ does not read back .*; give (--resume|resume=True), or run recshuf task {} again\b"


def test_the_task_of_a_damaged_region_is_named_and_runs_again(tmp_path: Path):
    gather = Gather(tmp_path)
    scatter = gather.list("scatter")
    for number, path in zip(scatter, find_sets(gather), strict=True):
        path.write_bytes(damage_region(path.read_bytes()))
        gather.fail(PileError, DAMAGED.format(number))
        with pytest.raises(UsageError, match=f"^task {number}: not done"):
            gather.do(*gather.tasks)
        gather.do(number)
    gather.check()


def test_an_engine_writes_a_set_with_a_damaged_region_again(tmp_path: Path):
    gather = Gather(tmp_path)
    path = find_sets(gather)[-1]
    path.write_bytes(damage_region(path.read_bytes()))
    given = OPTIONS | {"shards": 2, "engine": "threads", "resume": True}
    with pytest.raises(PileError, match=DAMAGED.format(gather.tasks.start - 1)):
        recshuf.shuffle(gather.inputs, gather.output, **given)
    recshuf.shuffle(gather.inputs, gather.output, **given)
    gather.compare()
