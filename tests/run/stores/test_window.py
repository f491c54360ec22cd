"""The window: appends and evictions in one step, an exact order over what is left, and compaction."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


def write_day(folder: Path, day: int, count: int = 100) -> Path:
    path = folder / f"day{day}.jsonl"
    rows = (json.dumps({"day": day, "id": 1000 * day + row}) for row in range(count))
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def read_ids(store: Path, tmp_path: Path, **options: Any) -> list[int]:
    """Return the ids in the order that gather writes."""
    recshuf.gather(store, tmp_path / "gathered.parquet", overwrite=True, **options)
    ids: list[int] = pq.read_table(tmp_path / "gathered.parquet")["id"].to_pylist()
    return ids


def ids_of(*days: int, count: int = 100) -> list[int]:
    return [1000 * day + row for day in days for row in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    recshuf.scatter(write_day(tmp_path, 0), tmp_path / "store", seed=5, piles=8)
    return tmp_path / "store"


def test_what_is_appended_comes_and_what_is_old_goes(store: Path, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        with recshuf.PileStore(store).update() as update:
            update.append(write_day(tmp_path, day), time=day)
            update.expire(before=day - 1)
    found = recshuf.PileStore(store)
    assert sorted(read_ids(store, tmp_path)) == ids_of(2, 3)
    assert found.num_records == 200
    assert found.snapshot == 4
    assert {name.rpartition("/")[2] for name in found.sources} >= {"day2.jsonl", "day3.jsonl"}
    assert len(list((store / "sets").iterdir())) == 2


@pytest.mark.parametrize(
    ("limit", "days"),
    [
        ({"records": 250}, [2, 3]),
        ({"records": 100}, [3]),
        ({"records": 99}, []),
        ({"before": "1970-01-01T00:00:02Z"}, [2, 3]),
        ({"before": 0, "records": 1000}, [1, 2, 3]),
    ],
)
def test_the_oldest_slices_leave(store: Path, tmp_path: Path, limit: dict, days: list[int]) -> None:
    """A slice leaves as a whole; one without a time is older than all others."""
    for day in (3, 1, 2):
        recshuf.window(store, write_day(tmp_path, day), time=day)
    with recshuf.PileStore(store).update() as update:
        update.expire(**limit)
    assert recshuf.PileStore(store).num_records == 100 * len(days)
    if days:
        assert sorted(read_ids(store, tmp_path)) == ids_of(*days)


@pytest.mark.parametrize("epoch", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_order_is_random_after_many_appends_and_evictions(tmp_path: Path, epoch: int) -> None:
    """The battery finds no trace of the time at which records came."""
    path, window, end = tmp_path / "store", 10_000, 0
    with recshuf.PileWriter(path, "first", seed=5, piles=16) as writer:
        writer.write({"id": np.arange(0)})
    for number in range(40):
        count = 300 + 70 * (number % 7)
        with recshuf.PileStore(path).update() as update:
            update.append({"id": np.arange(end, end + count)}, time=number)
            update.expire(records=window)
        end += count
    out = tmp_path / "out.parquet"
    recshuf.gather(path, out, epoch=epoch)
    ids = pq.read_table(out)["id"].to_numpy()
    assert len(ids) > 0.9 * window
    assert np.array_equal(np.sort(ids), np.arange(end - len(ids), end))
    report = recshuf.check(out, column="id")
    assert report.is_uniform, report


def test_sets_of_one_time_leave_together(store: Path, tmp_path: Path) -> None:
    for day in range(4):
        recshuf.window(store, write_day(tmp_path, day), time=day // 2)
    with recshuf.PileStore(store).update() as update:
        update.expire(records=350)
    assert recshuf.PileStore(store).num_records == 200


def test_limits_that_would_remove_what_is_appended_change_nothing(store: Path, tmp_path: Path) -> None:
    for limit in [{"keep_records": 99}, {"keep_bytes": 1}, {"expire_before": 2}]:
        before = sorted(path.name for path in store.rglob("*"))
        with pytest.raises(UsageError, match="would remove what is appended"):
            recshuf.window(store, write_day(tmp_path, 1), time=1, **limit)
        assert sorted(path.name for path in store.rglob("*")) == before


def test_an_exception_changes_nothing(store: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in store.rglob("*"))
    with pytest.raises(ZeroDivisionError), recshuf.PileStore(store).update() as update:  # noqa: PT012
        update.append(write_day(tmp_path, 1), time=1)
        update.expire(records=0)
        raise ZeroDivisionError
    assert sorted(path.name for path in store.rglob("*")) == before
    assert read_ids(store, tmp_path) == read_ids(store, tmp_path)


def test_an_open_loader_keeps_what_it_has(store: Path, tmp_path: Path) -> None:
    loader = recshuf.PileLoader(store, 10)
    first = [batch["id"].tolist() for batch in loader]
    recshuf.window(store, write_day(tmp_path, 1), time=1, keep_records=100)
    assert [batch["id"].tolist() for batch in loader] == first
    assert {int(one) // 1000 for batch in recshuf.PileLoader(store, 10) for one in batch["id"]} == {1}
    del loader
    recshuf.window(store, write_day(tmp_path, 2), time=2)
    assert len(list((store / "sets").iterdir())) == 2


def test_records_of_a_program_and_files_can_be_mixed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(50)}), tmp_path / "a.parquet")
    recshuf.scatter(tmp_path / "a.parquet", tmp_path / "store", seed=1, piles=4)
    with recshuf.PileStore(tmp_path / "store").update() as update:
        update.append(iter([{"id": [50, 51]}, pa.table({"id": [52]})]), time=1)
        pq.write_table(pa.table({"id": np.arange(53, 60)}), tmp_path / "b.parquet")
        update.append(tmp_path / "b.parquet", time=2)
    assert sorted(read_ids(tmp_path / "store", tmp_path)) == list(range(60))


def test_other_columns_are_refused(store: Path, tmp_path: Path) -> None:
    remedy = "change it, set such lines aside with .*, or begin a new store for other columns$"
    for line, problem in [
        ('{"day":"x","id":1}', "field 'day': holds a value of type string where number is due"),
        ('{"day":1,"id":1,"more":2}', "'more': is not in the schema"),
        ('{"day":1,"id":{"a;b":1}}', "field 'id'"),
    ]:
        (tmp_path / "bad.jsonl").write_text(line + "\n")
        for schema in (None, {"day": "int64", "id": "int64", "more": "int64"}):
            with pytest.raises(InputError, match=f"line 1.*{problem}.*; {remedy}"):
                recshuf.window(store, tmp_path / "bad.jsonl", schema=schema)
        assert recshuf.PileStore(store).num_records == 100


def test_other_formats_seeds_and_times_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="seed"):
        recshuf.window(store, write_day(tmp_path, 1), seed=6)
    with pytest.raises(UsageError, match="piles"):
        recshuf.window(store, write_day(tmp_path, 1), piles=6)
    with pytest.raises(UsageError, match="no time"):
        recshuf.window(store, write_day(tmp_path, 1), time="yesterday")
    with pytest.raises(UsageError, match="no such pile store"):
        recshuf.window(tmp_path / "missing", write_day(tmp_path, 1))
    assert recshuf.PileStore(store).num_records == 100


def test_a_name_that_is_taken_or_no_file_name_is_refused(store: Path, tmp_path: Path) -> None:
    for name, message in [
        ("scatter", "records of this name"),
        ("../a", "give letters"),
        ("a*", "give letters"),
    ]:
        before = read_ids(store, tmp_path)
        for data in (write_day(tmp_path, 1, 300), {"day": [1], "id": [1]}):
            with pytest.raises(UsageError), recshuf.PileStore(store).update() as update:
                update.append(data, name=name)
        with pytest.raises(UsageError, match=message), recshuf.PileStore(store).update() as update:
            update.append(write_day(tmp_path, 1, 300), name=name)
        assert read_ids(store, tmp_path) == before


def test_appends_of_several_processes_at_once_take_names_that_are_free(store: Path, tmp_path: Path) -> None:
    with recshuf.PileStore(store).update() as update:
        update.append(write_day(tmp_path, 1), time=1)
        with recshuf.PileStore(store).update() as other:  # while the first one writes
            other.append(write_day(tmp_path, 2), time=2)
        update.append(write_day(tmp_path, 3), time=3)  # after the other has ended
    assert sorted(read_ids(store, tmp_path)) == ids_of(0, 1, 2, 3)
    assert [name.rpartition("-")[0] for name in sorted(os.listdir(store / "sets"))] == [
        "append-000002-000",
        "append-000002-001",
        "append-000002-002",
        "scatter",
    ]


def test_an_update_that_has_ended_takes_nothing(store: Path, tmp_path: Path) -> None:
    with recshuf.PileStore(store).update() as ended:
        ended.append(write_day(tmp_path, 1), time=1)
    with pytest.raises(ZeroDivisionError), recshuf.PileStore(store).update() as failed:
        raise ZeroDivisionError
    files = sorted((store / "sets").iterdir())
    for update in (ended, failed):
        for use in (
            lambda update: update.append(write_day(tmp_path, 2)),
            lambda update: update.expire(records=1),
            lambda update: update.commit(),
        ):
            with pytest.raises(UsageError, match=r"store: the update has ended; begin another with .*update"):
                use(update)
    assert recshuf.PileStore(store).num_records == 200
    assert sorted((store / "sets").iterdir()) == files


@pytest.mark.parametrize(("size", "kept"), [("1KiB", 0), (1e9, 200), ("1GB", 200)])
def test_bytes_to_keep_may_have_a_unit(store: Path, tmp_path: Path, size: Any, kept: int) -> None:
    recshuf.window(store, write_day(tmp_path, 1), time=1)
    with recshuf.PileStore(store).update() as update:
        update.expire(bytes=size)
    assert recshuf.PileStore(store).num_records == kept


def test_the_command_does_what_the_function_does(store: Path, tmp_path: Path, call: Run) -> None:
    path = write_day(tmp_path, 1)
    done = call("window", store, "--append", path, "--time", "2026-01-31", "--keep-records", "150")
    assert done.returncode == 0
    assert b"100 records, snapshot 2" in done.stderr
    assert b"2026-01-31" in call("store", "info", store).stdout
    assert call("window", store).returncode == 2
    recshuf.window(store, write_day(tmp_path, 2))
    assert b"200 records, snapshot 4" in call("store", "compact", store, "--sets", "1").stdout


def test_the_command_reads_inputs_in_the_format_of_the_store(tmp_path: Path, call: Run) -> None:
    path = write_day(tmp_path, 1)
    recshuf.scatter(path, tmp_path / "lines", format="text")
    assert call("window", tmp_path / "lines", "--append", path).returncode == 0
    assert recshuf.PileStore(tmp_path / "lines").num_records == 200
    recshuf.PileWriter(tmp_path / "tables", "start").close()
    refused = call("window", tmp_path / "tables", "--append", path)
    assert refused.returncode == 2
    assert b"tables: holds no records of jsonl files; begin a new store for them" in refused.stderr


def test_times_that_no_calendar_has_are_refused_before_records_are_read(store: Path) -> None:
    for time in ["nan", 1e20, float("nan")]:

        def read() -> Any:
            raise AssertionError("records are read")
            yield

        with pytest.raises(UsageError, match="is no time"), recshuf.PileStore(store).update() as update:
            update.append(read(), time=time)


def test_limits_that_are_no_counts_are_refused(store: Path) -> None:
    for limit in [{"records": -1}, {"bytes": -1}, {"records": "5"}, {"bytes": math.inf}]:
        with (
            pytest.raises(UsageError, match="give an integer from 0"),
            recshuf.PileStore(store).update() as update,
        ):
            update.expire(**limit)
        assert recshuf.PileStore(store).num_records == 100


def test_arguments_that_do_nothing_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="keep_record"):
        recshuf.window(store, keep_record=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="nothing to do"):
        recshuf.window(store)
    rows = {"day": [1], "id": [2]}
    with pytest.raises(TypeError, match="tme"), recshuf.PileStore(store).update() as update:
        update.append(rows, tme=5)
    with (
        pytest.raises(UsageError, match="header: is for inputs that are given as paths"),
        recshuf.PileStore(store).update() as update,
    ):
        update.append(rows, header=1)
    assert recshuf.PileStore(store).num_records == 100
