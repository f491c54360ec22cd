"""Groups: whole, in uniform order, cut between shards; a group that does not fit is refused before a shard is begun."""

import io
import json
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import MemoryLimitError, RecshufWarning
from recshuf.formats.lines.sink import LineSink
from recshuf.piles.regions import FilledRegions
from recshuf.records import value_keys
from tests.conftest import Run
from tests.support.formats.conversion_data import read_columns, write_users
from tests.support.group_oracle import cut_groups, expect_groups
from tests.support.processes.command_line import DEADLINE
from tests.support.processes.deaths import fork, join
from tests.support.processes.task_runs import SavedPlan, divide_small, shuffle
from tests.support.small_runs import Listener, change_plans, put_in_place, read_files, spill

USERS = ("ann", "bo", "", "ann\0", "x" * 40, None, None)


def choose_users(count: int, seed: int = 1) -> list[str | None]:
    return [USERS[number] for number in np.random.default_rng(seed).integers(0, len(USERS), count)]


def read_ids(path: Path) -> list[list[int]]:
    """Return the numbers of the records of each shard."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [read_columns(file).get("id", []) for file in files]


def chain_all(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def to_texts(inputs: Sequence[Sequence[str | None]]) -> list[list[tuple[bytes | None]]]:
    return [[(None if user is None else user.encode(),) for user in users] for users in inputs]


# The order


INPUTS = [choose_users(60), choose_users(0), choose_users(90, 2)]


@pytest.mark.parametrize(("name", "order"), [("parquet", "random"), ("csv", "input")])
def test_groups_and_shards_are_those_of_the_formulas(tmp_path: Path, name: str, order: str):
    """And the same in each format."""
    paths = write_users(tmp_path / "in", name, INPUTS)
    groups = expect_groups(to_texts(INPUTS), 7, order)
    report = recshuf.shuffle(
        paths, tmp_path / "out", seed=7, shards=6, group_by="user", group_order=order, verify=True
    )
    assert read_ids(tmp_path / "out") == cut_groups(groups, 6)
    missing = sum(users.count(None) for users in INPUTS)
    assert report.features == {
        "group_by": {"fields": ["user"], "order": order, "groups": len(groups), "without_value": missing}
    }
    manifest = json.loads((tmp_path / ".out.recshuf.json").read_text())
    assert manifest["group_by"] == report.features["group_by"] == report.to_json()["group_by"]
    assert f"{len(groups)} groups by user, {missing} of them a record without a value" in repr(report)
    assert recshuf.verify(paths, tmp_path / "out")


@pytest.mark.parametrize("bits", [0, 3])
def test_values_with_one_hash_lie_side_by_side_and_nothing_is_lost(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
):
    def hash_texts(texts: pa.LargeBinaryArray, seed: int) -> tuple[Any, Any]:
        low, high = real(texts, seed)
        return low & np.uint64(2**bits - 1), high * np.uint64(0)

    real = value_keys.hash_texts
    put_in_place(monkeypatch, real, hash_texts)
    users = [f"u{number}" for number in np.random.default_rng(5).integers(0, 50, 400)]
    paths = write_users(tmp_path / "in", "jsonl", [users])
    report = recshuf.shuffle(paths, tmp_path / "out", seed=1, shards=3, group_by="user", verify=True)
    ids = chain_all(read_ids(tmp_path / "out"))
    assert sorted(ids) == list(range(400))
    assert report.features["group_by"]["groups"] == 2**bits
    ends = [number for number, (one, other) in enumerate(pairwise(ids)) if one > other]
    assert len(ends) < 2**bits  # ascending within each


# Sizes of groups


def test_a_group_that_does_not_fit_is_refused_and_continued_from_the_pile_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The limits are those of real runs, in thousandths."""
    users = [f"u{number}" for number in np.random.default_rng(5).integers(0, 300, 1600)]
    users = [user if number % 2 else "all" for number, user in enumerate(users)]
    paths = write_users(tmp_path / "in", "jsonl", [users[:500], users[500:]])
    options: dict[str, Any] = {"seed": 7, "shards": 4, "group_by": "user", "piles": 8}
    recshuf.shuffle(paths, tmp_path / "whole", memory="2GB", **options)
    spill(monkeypatch, pile_bytes=1000, value_bytes=lambda plan: plan.value_bytes // 1000)
    heard = Listener()
    message = (
        r"^a group of 800 records \([\d.]+ KB\) needs (\d+) MB of memory, and the limit is 64 MB; continue with resume=True and "
        r"give memory='(\d+MB)', or group by more fields"
    )
    with pytest.raises(MemoryLimitError, match=message) as raised:
        recshuf.shuffle(paths, tmp_path / "out", memory="64MB", progress=heard, **options)
    assert "gather" not in heard.passes
    assert not (tmp_path / "out").exists()
    needed = str(raised.value).split("'")[1]
    less = f"{int(needed[:-2]) * 3 // 4}MB"
    with pytest.raises(MemoryLimitError, match=f"needs {needed[:-2]} MB of memory, and the limit is"):
        recshuf.shuffle(paths, tmp_path / "out", memory=less, resume=True, **options)
    passes: list[str] = []
    reads = Listener(lambda: passes.append(reads.passes[-1]))
    report = recshuf.shuffle(paths, tmp_path / "out", memory=needed, resume=True, progress=reads, **options)
    assert {*passes} == {"gather"}  # nothing was read
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert report.features["group_by"]["groups"] == len(set(users))


def test_a_pile_of_one_value_is_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that is not refused by a hair would be, again and again."""
    spill(monkeypatch, pile_bytes=1000, value_bytes=20_000, pile_count=4)
    monkeypatch.setattr("recshuf.run.scatter_pass._FULL", 100)
    splits = []
    split = FilledRegions.split
    monkeypatch.setattr(
        FilledRegions, "split", lambda self, *given: splits.append(given) or split(self, *given)
    )
    paths = write_users(tmp_path / "in", "jsonl", [["all"] * 600 + [f"u{number}" for number in range(40)]])
    recshuf.shuffle(paths, tmp_path / "out", seed=7, group_by="user", memory="64MB")
    assert sorted(chain_all(read_ids(tmp_path / "out"))) == list(range(640))
    assert 1 <= len(splits) <= 4


def test_a_writer_that_fails_in_a_large_group_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of groups that exceed the plan, one is in memory at a time."""
    users = [f"u{number % 8}" for number in range(800)]
    paths = write_users(tmp_path / "in", "jsonl", [users])
    change_plans(monkeypatch, pile_bytes=100, value_bytes=10**6, shard_writers=2, gather_workers=2)
    both, begin = Barrier(2, timeout=DEADLINE), LineSink.__init__

    def begin_together(sink: LineSink, *given: Any, **options: Any) -> None:
        both.wait()
        begin(sink, *given, **options)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LineSink, "__init__", begin_together)
    monkeypatch.setattr(LineSink, "write", fail)

    def run() -> None:
        with pytest.raises(OSError, match="Input/output error"):
            recshuf.shuffle(paths, tmp_path / "out", seed=7, shards=2, group_by="user", memory="64MB")

    assert join(fork(run), DEADLINE) == 0


def test_tasks_go_on_with_the_memory_of_the_new_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    divide_small(monkeypatch, block_bytes=30_000, region_bytes=2000)
    change_plans(monkeypatch, pile_bytes=1000, value_bytes=lambda plan: plan.value_bytes // 1000)
    users = [f"u{number // 2}" if number % 2 else "all" for number in range(1600)]
    paths = write_users(tmp_path / "in", "jsonl", [users])
    options: dict[str, Any] = {"group_by": "user", "engine": "threads", "piles": 8}
    with pytest.raises(MemoryLimitError, match=r"; continue with resume=True and give memory='") as raised:
        shuffle(paths, tmp_path / "out", memory="64MB", **options)
    needed = str(raised.value).split("'")[1]
    report = shuffle(paths, tmp_path / "out", memory=needed, resume=True, **options)
    assert report.features["group_by"]["groups"] == 801
    shuffle(paths, tmp_path / "whole", **options | {"engine": "local", "memory": "2GB"})
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    plan = SavedPlan(
        paths, f"{tmp_path}/plan/", memory="64MB", seed=5, shards=3, **options | {"engine": "tasks"}
    )
    plan.do(*plan.list("count"), *plan.list("scatter"))
    with pytest.raises(
        MemoryLimitError, match=f"; make the plan again and give --memory {needed}, or group by"
    ):
        plan.do(*plan.list("gather"))


def test_piles_leave_memory_for_a_group_and_are_kept_for_a_later_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = write_users(tmp_path / "in", "jsonl", [["all"] * 600 + [f"u{number}" for number in range(300)]])
    options: dict[str, Any] = {"seed": 7, "shards": 2, "group_by": "user", "memory": "64MB"}
    recshuf.shuffle(paths, tmp_path / "whole", **options)
    for size, fits in ((60_000, True), (30_000, False)):
        with monkeypatch.context() as patch:
            change_plans(patch, value_bytes=size, pile_bytes=1000)
            patch.setattr("recshuf.run.scatter_pass.find_least", lambda fits, limit: limit)
            if fits:
                report = recshuf.shuffle(paths, tmp_path / "out", **options)
                assert report.spilled_bytes > 0
                assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
                continue
            with pytest.raises(MemoryLimitError, match="continue with resume=True"):
                recshuf.shuffle(paths, tmp_path / "again", **options)
            assert list((tmp_path / ".again.recshuf").rglob("*.piles"))
            with pytest.raises(MemoryLimitError, match=r"run again and give memory='64MB', or group"):
                recshuf.shuffle("-", tmp_path / "b.jsonl", stdin=io.BytesIO(paths[0].read_bytes()), format="jsonl",
                                seed=7, group_by="user", memory="64MB")  # fmt: skip
    heard = Listener()
    recshuf.shuffle(paths, tmp_path / "again", resume=True, progress=heard, **options)
    assert read_files(tmp_path / "again") == read_files(tmp_path / "whole")


def test_streams_and_what_bad_lines_leave_are_grouped(tmp_path: Path, call: Run):
    users = choose_users(80)
    (path,) = write_users(tmp_path / "in", "jsonl", [users])
    groups = expect_groups(to_texts([users]), 7)
    ids = chain_all(groups)
    words = ("--format", "jsonl", "--group-by", "user", "--seed", "7")
    result = call("-", *words, stdin=path.read_bytes())
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ids
    table = pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])
    batches = recshuf.stream(table, seed=7, group_by="user")
    assert pa.Table.from_batches(batches)["id"].to_pylist() == ids
    path.write_bytes(b"{bad\n" + path.read_bytes())
    options = {"provenance": True, "on_bad_record": f"quarantine:{tmp_path}/bad", "seed": 7}
    report = recshuf.shuffle(path, tmp_path / "out.parquet", group_by="user", **options)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["source_row"].to_pylist() == [number + 1 for number in table["id"].to_pylist()]
    assert report.quarantined == 1
    found = [[row["id"] for row in rows] for _, rows in groupby(table.to_pylist(), lambda row: row["user"])]
    assert sorted(ids) == sorted(chain_all(found))
    assert report.features["group_by"]["groups"] == len(groups)


def test_the_command_tells_of_groups(tmp_path: Path, call: Run):
    paths = write_users(tmp_path / "in", "jsonl", INPUTS)
    words = (tmp_path / "in", "-o", tmp_path / "out/", "--group-by", "user", "--seed", "7")
    planned = call(*words, "--plan")
    assert b"\ngroups        by user, inside in input order\n" in planned.stdout + planned.stderr
    done = call(*words, "--shards", "2").stderr.decode()
    groups = expect_groups(to_texts(INPUTS), 7)
    missing = sum(users.count(None) for users in INPUTS)
    assert f", {len(groups)} groups, {missing} of them a record without a value, seed 7" in done
    said = "out: its records are in groups by user; these are in random order, but the test looks at"
    for basis in (("--against", *paths, "--id", "id"), ("--column", "id")):
        assert said in call("check", tmp_path / "out", *basis).stderr.decode()


def test_a_column_without_any_value_is_told(tmp_path: Path):
    paths = write_users(tmp_path / "in", "parquet", [[None] * 20])
    with pytest.warns(RecshufWarning, match="^group_by: no record has a value of 'user'$"):
        report = recshuf.shuffle(paths, tmp_path / "out", group_by="user", seed=1)
    assert (report.features["group_by"]["groups"], report.features["group_by"]["without_value"]) == (20, 20)
