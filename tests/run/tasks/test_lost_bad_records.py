"""Bad records that tasks have set aside, and a disk or somebody else has damaged: their task runs again."""

from __future__ import annotations

import re
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import DiskFullError, UsageError
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import HARMS as OF_FILES
from tests.support.processes.task_runs import SavedPlan, divide_small, read_all
from tests.support.small_runs import Listener

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS: dict[str, Any] = {"seed": 5, "shards": 2, "to": "parquet", "piles": 16, "memory": "300MB"}


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], object]] = OF_FILES | {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
    "folder": replace_by_folder,
}


class Warnings(Listener):
    """The warnings of a run."""

    def check(self, place: Path | str, task: int | None = None) -> None:
        """Check that the first one names a file of bad records in a folder, and the task that writes it, if that is known."""
        found = re.fullmatch(r"(.*)bad-[^/]*\.jsonl: .*; task (\d+) writes it again", self.warnings[0])
        assert found
        assert found[1] == f"{place}/"
        assert task in (None, int(found[2]))


class BadRun(SavedPlan):
    """A run by tasks with bad records in each input, and what one process makes of it.

    Parameters
    ----------
    folder
        Holds inputs and outputs.
    temp_dir
        A path or URL.
    """

    def __init__(self, folder: Path, temp_dir: Path | str | None = None) -> None:
        self.folder = folder
        self.output = folder / "there"
        self.output.mkdir()
        inputs = make_inputs(folder / "in", "jsonl", (100, 0, 60))
        for path in inputs[::2]:
            lines = path.read_bytes().splitlines(keepends=True)
            lines[7::20] = [b"\xff{\n"] * len(lines[7::20])
            path.write_bytes(b"".join(lines))
        self.shuffle = partial(recshuf.shuffle, inputs, **OPTIONS)
        self.shuffle(f"{folder}/here/out/", on_bad_record=f"quarantine:{folder}/here/../bad.jsonl")
        (folder / "bad.jsonl").rename(folder / "here" / "bad.jsonl")
        self.given = {"on_bad_record": f"quarantine:{self.output}/bad.jsonl", "temp_dir": temp_dir}
        super().__init__(inputs, f"{self.output}/out/", **OPTIONS | self.given)
        self.piles = self.output / ".out.recshuf" / "piles"

    def check(self) -> None:
        """Check that the output and the bad records are those of the run in one process."""
        assert read_all(self.output) == read_all(self.folder / "here")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=2200, region_bytes=150)


@pytest.mark.parametrize("harm", ["cut", pytest.param("folder", marks=pytest.mark.slow)])
def test_the_commit_names_the_task_that_has_lost_bad_records(tmp_path: Path, harm: str):
    run = BadRun(tmp_path)
    run.do_before_the_commit()
    lost = sorted(run.piles.glob("bad-*"))
    assert len(lost) > 1
    HARMS[harm](lost[1])
    said = Warnings()
    with pytest.raises(UsageError, match=r"task \d+: not done; run recshuf task with") as raised:
        run.do(run.last, progress=said)
    number = int(str(raised.value).split(":")[0].removeprefix("task "))
    said.check(run.piles, number)
    assert number in run.list("scatter")
    run.do(number)
    run.commit()
    run.check()


@pytest.mark.parametrize("harm", ["flipped", pytest.param("longer", marks=pytest.mark.slow)])
def test_a_task_that_has_lost_bad_records_is_not_done(tmp_path: Path, harm: str):
    run = BadRun(tmp_path)
    run.do_before_the_commit()
    for path in sorted(run.piles.glob("bad-*"))[:2]:
        HARMS[harm](path)
    run.do_all()
    run.check()


@pytest.mark.parametrize(("harm", "with_sets"), [("deleted", False), ("cut", True)])
def test_an_engine_writes_lost_bad_records_again(tmp_path: Path, harm: str, with_sets: bool):
    run = BadRun(tmp_path)
    run.do_before_the_commit()
    for path in sorted(run.piles.glob("bad-*"))[:2]:
        HARMS[harm](path)
    if with_sets:
        for path in sorted(run.piles.glob("set-*")):
            path.unlink()
    said = Warnings()
    run.shuffle(f"{run.output}/out/", **run.given, engine="threads", resume=True, progress=said)
    said.check(run.piles)
    run.check()


def test_a_full_disk_is_no_loss_of_bad_records(tmp_path: Path):
    run = BadRun(tmp_path)
    run.do_before_the_commit()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        with pytest.raises(DiskFullError, match="may not grow this large"):
            run.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    run.commit()
    run.check()
