"""Bad records that tasks have set aside, and a disk or somebody else has damaged: their task runs again."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recshuf.errors import DiskFullError, UsageError
from tests.support.processes.task_runs import HARMS as OF_FILES
from tests.support.processes.task_runs import TwinPlan, divide_small, limit_files, replace_by_folder
from tests.support.small_runs import Listener

HARMS: dict[str, Callable[[Path], object]] = OF_FILES | {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
    "folder": replace_by_folder,
}


def spoil(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines[7::20] = [b"\xff{\n"] * len(lines[7::20])
    return b"".join(lines)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinPlan:
    """Return tasks with bad records in two inputs, which wait for the commit."""
    divide_small(monkeypatch, block_bytes=2200, region_bytes=150)
    plan = TwinPlan(tmp_path, spoil=spoil, shards=2, to="parquet", piles=16)
    plan.do_before_the_commit()
    return plan


def list_bad(run: TwinPlan) -> list[Path]:
    return sorted((run.work / "piles").glob("bad-*"))


def find_task(run: TwinPlan, said: Listener) -> int:
    """Return the task that a warning names, with a file of bad records."""
    found = re.fullmatch(r"(.*)/bad-[^/]*\.jsonl: .*; task (\d+) writes it again", said.warnings[0])
    assert found
    assert found[1] == str(run.work / "piles")
    return int(found[2])


@pytest.mark.parametrize("harm", ["cut", pytest.param("folder", marks=pytest.mark.slow)])
def test_the_commit_names_the_task_that_has_lost_bad_records(run: TwinPlan, harm: str):
    assert len(list_bad(run)) > 1
    HARMS[harm](list_bad(run)[1])
    said = Listener()
    with pytest.raises(UsageError, match=r"task \d+: not done; run recshuf task with") as raised:
        run.do(run.last, progress=said)
    number = find_task(run, said)
    assert str(raised.value).startswith(f"task {number}:")
    assert number in run.list("scatter")
    run.do(number)
    run.commit()
    run.check()


@pytest.mark.parametrize("harm", ["flipped", pytest.param("longer", marks=pytest.mark.slow)])
def test_a_task_that_has_lost_bad_records_is_not_done(run: TwinPlan, harm: str):
    for path in list_bad(run)[:2]:
        HARMS[harm](path)
    run.do_all()
    run.check()


@pytest.mark.parametrize(("harm", "with_sets"), [("deleted", False), ("cut", True)])
def test_an_engine_writes_lost_bad_records_again(run: TwinPlan, harm: str, with_sets: bool):
    for path in list_bad(run)[:2]:
        HARMS[harm](path)
    for path in (run.work / "piles").glob("set-*") if with_sets else ():
        path.unlink()
    said = Listener()
    run.shuffle(engine="threads", resume=True, progress=said)
    find_task(run, said)
    run.check()


def test_a_full_disk_is_no_loss_of_bad_records(run: TwinPlan):
    with limit_files(0), pytest.raises(DiskFullError, match="may not grow this large"):
        run.commit()
    run.commit()
    run.check()
