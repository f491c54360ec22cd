"""The tasks of a plan, in any order, each twice at once, and killed anywhere: the bytes are those of one process."""

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputExistsError, UnfinishedOutputError, UsageError
from tests.support.effort import TRIES_ALL, mostly_slow
from tests.support.processes.deaths import die_everywhere, dies
from tests.support.processes.task_runs import TwinPlan, divide_small
from tests.support.small_runs import read_files

COUNTS = (90, 0, 60)
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
        super().__init__(folder, given, name, counts=COUNTS, workers=1, piles=32, **options)

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


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=1000, region_bytes=40)


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
