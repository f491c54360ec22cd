"""The window: appends and evictions in one step, an exact order over what is left, and compaction."""

import json
import math
import os
import re
from collections.abc import Callable
from datetime import date, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from recshuf.run.stores.pile_store import parse_time
from tests.conftest import Run
from tests.support.processes.deaths import fork, join
from tests.support.small_runs import read_files
from tests.support.stores.small_stores import append, expire


def write_day(folder: Path, day: int, count: int = 100) -> Path:
    path = folder / f"day{day}.jsonl"
    rows = (json.dumps({"day": day, "id": 1000 * day + row}) for row in range(count))
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def read_ids(store: Path) -> list[int]:
    """Return the ids that gather writes, sorted."""
    output = store.parent / "gathered.parquet"
    recshuf.gather(store, output, overwrite=True)
    return sorted(pq.read_table(output)["id"].to_pylist())


def ids_of(*days: int) -> list[int]:
    return [1000 * day + row for day in days for row in range(100)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    recshuf.scatter(write_day(tmp_path, 0), tmp_path / "store", seed=5, piles=8)
    return tmp_path / "store"


def test_an_append_that_failed_can_be_tried_again_in_the_same_update(store: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"day": 1, "id": 1}\n{"day": 1\n')
    with recshuf.PileStore(store).update() as update:
        with pytest.raises(InputError, match="line 2"):
            update.append(tmp_path / "bad.jsonl", name="one", time=1)
        update.append(write_day(tmp_path, 1), name="one", time=1)
    assert read_ids(store) == ids_of(0, 1)
    assert [one.name for one in (store / "sets").iterdir() if "one" in one.name] == ["one-00000.piles"]


def test_the_oldest_slices_leave(store: Path, tmp_path: Path) -> None:
    """All of one time leave together; what has none is older than all others, and what just fits stays."""
    for day, time in ((3, 3), (1, 1), (2, 2), (4, 1)):
        recshuf.window(store, write_day(tmp_path, day), time=time)
    limits: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"before": 0, "records": 1000}, (1, 2, 3, 4)),
        ({"records": 350}, (2, 3)),
        ({"bytes": "1GB"}, (2, 3)),
        ({"bytes": 1e9}, (2, 3)),
        ({"before": "1970-01-01T00:00:03Z"}, (3,)),
        ({"records": 100}, (3,)),
        ({"bytes": "1KiB"}, ()),
    ]
    for limit, days in limits:
        expire(store, **limit)
        found = recshuf.PileStore(store)
        expire(store, records=found.num_records, bytes=found.num_bytes)
        assert recshuf.PileStore(store).num_records == 100 * len(days)
        assert not days or read_ids(store) == ids_of(*days)


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


def test_records_of_a_program_and_files_can_be_mixed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(50)}), tmp_path / "a.parquet")
    recshuf.scatter(tmp_path / "a.parquet", tmp_path / "store", seed=1, piles=4)
    with recshuf.PileStore(tmp_path / "store").update() as update:
        update.append(iter([{"id": [50, 51]}, pa.table({"id": [52]})]), time=1)
        pq.write_table(pa.table({"id": np.arange(53, 60)}), tmp_path / "b.parquet")
        update.append(tmp_path / "b.parquet", time=2)
    assert read_ids(tmp_path / "store") == list(range(60))


def test_appends_of_several_processes_at_once_take_names_that_are_free(store: Path, tmp_path: Path) -> None:
    with recshuf.PileStore(store).update() as update:
        update.append(write_day(tmp_path, 1), time=1)
        append(store, write_day(tmp_path, 2), time=2)  # while the first one writes
        update.append(write_day(tmp_path, 3), time=3)  # after the other has ended
    assert read_ids(store) == ids_of(0, 1, 2, 3)
    assert [name.rpartition("-")[0] for name in sorted(os.listdir(store / "sets"))] == [
        "append-000002-000",
        "append-000002-001",
        "append-000002-002",
        "scatter",
    ]


def test_the_command_reads_inputs_in_the_format_of_the_store(tmp_path: Path, call: Run) -> None:
    path = write_day(tmp_path, 1)
    recshuf.scatter(path, tmp_path / "lines", format="text")
    done = call("window", tmp_path / "lines", "--append", path)
    assert (done.returncode, b"200 records, snapshot 2" in done.stderr) == (0, True)
    recshuf.PileWriter(tmp_path / "tables", "start").close()
    refused = call("window", tmp_path / "tables", "--append", path)
    assert refused.returncode == 2
    assert b"tables: holds no records of jsonl files; begin a new store for them" in refused.stderr


# What is refused changes nothing


def test_a_file_of_another_format_is_named_and_what_is_proposed_can_be_appended(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recshuf.shuffle(write_day(tmp_path, 0), "first.parquet")
    recshuf.shuffle("first.parquet", "other first.h5")
    kinds = {"parquet": ".parquet", "arrow": ".arrow", "hdf5": ".h5", "jsonl": ".jsonl", "json": ".json"}
    for kept, suffix in kinds.items():
        recshuf.shuffle("first.parquet", f"first{suffix}", to=kept, overwrite=True)
        recshuf.scatter(f"first{suffix}", f"store-{kept}")
        other, name = ("parquet", "first.parquet") if kept != "parquet" else ("hdf5", "other first.h5")
        refused = call("window", f"store-{kept}", "--append", name)
        said = re.fullmatch(
            rf"recshuf: error: {name}: is {other}, and store-{kept} holds {kept}; begin a new store for it, or append what "
            r"recshuf INPUT (.* -o (.*)) writes\n",
            refused.stderr.decode(),
        )
        assert said, refused.stderr
        assert call(name, *said[1].split()).returncode == 0
        assert call("window", f"store-{kept}", "--append", said[2]).returncode == 0
        assert read_ids(tmp_path / f"store-{kept}") == sorted(2 * ids_of(0))


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


def read_in_vain() -> Any:
    raise AssertionError("records are read")
    yield


ROW = {"day": [1], "id": [1]}


def append_in_vain(store: Path) -> None:
    with recshuf.PileStore(store).update() as update:
        update.expire(before=2)
        update.append(read_in_vain(), time=1)


REFUSED: list[tuple[str, Callable[[Path, Path], object]]] = [
    *(
        ("would remove what is appended", lambda store, day, limit=limit: recshuf.window(store, day, time=1, **limit))
        for limit in ({"keep_records": 99}, {"keep_bytes": 1}, {"expire_before": 2})
    ),
    ("would remove what is appended; widen them", lambda store, _: append_in_vain(store)),
    *(
        (match, lambda store, day, given=given: recshuf.window(store, day, **given))
        for match, given in (("seed", {"seed": 6}), ("piles", {"piles": 6}), ("no time", {"time": "yesterday"}))
    ),
    ("no such pile store", lambda store, day: recshuf.window(store / "missing", day)),
    *(
        (match, lambda store, day, name=name: append(store, day, name=name))
        for match, name in (("records of this name", "scatter"), ("give letters", "../a"), ("give letters", "a*"))
    ),
    ("records of jsonl files, not of tables", lambda store, _: append(store, ROW)),
    *(
        ("is no time", lambda store, _, time=time: append(store, read_in_vain(), time=time))
        for time in ("nan", 1e20, float("nan"))
    ),
    *(
        ("give an integer from 0", lambda store, _, limit=limit: expire(store, **limit))
        for limit in ({"records": -1}, {"bytes": -1}, {"records": "5"}, {"bytes": math.inf})
    ),
    ("nothing to do", lambda store, _: recshuf.window(store)),
    *(
        (f"^{name}: is for what is appended; give append, too", lambda store, _, given={name: value}: recshuf.window(store, keep_records=5, **given))
        for name, value in (("seed", 5), ("piles", 3), ("format", "jsonl"), ("header", 0), ("columns", ["id"]))
    ),
    ("header: is for inputs that are given as paths", lambda store, _: append(store, ROW, header=1)),
]  # fmt: skip


def test_what_cannot_be_is_refused_and_changes_nothing(store: Path, tmp_path: Path) -> None:
    day, before = write_day(tmp_path, 1), read_files(store)
    for match, ask in REFUSED:
        with pytest.raises(UsageError, match=match):
            ask(store, day)
        assert read_files(store) == before, match
    with pytest.raises(TypeError, match="keep_record"):
        recshuf.window(store, keep_record=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tme"):
        append(store, ROW, tme=5)
    with pytest.raises(ZeroDivisionError), recshuf.PileStore(store).update() as update:  # noqa: PT012
        update.append(day, time=1)
        update.expire(records=0)
        raise ZeroDivisionError
    assert read_files(store) == before


def test_what_an_update_has_committed_is_not_committed_again(store: Path, tmp_path: Path) -> None:
    changed = recshuf.PileStore(store)
    with changed.update() as update:
        update.append(write_day(tmp_path, 1), time=1)
        update.expire(before=1)
        assert update.commit().number == 2
        assert update.commit().number == 2
        update.append(write_day(tmp_path, 2), time=0)
    assert (changed.snapshot, read_ids(store)) == (3, ids_of(1, 2))


def test_an_update_that_has_ended_takes_nothing(store: Path, tmp_path: Path) -> None:
    with recshuf.PileStore(store).update() as ended:
        ended.append(write_day(tmp_path, 1), time=1)
    with pytest.raises(ZeroDivisionError), recshuf.PileStore(store).update() as failed:
        raise ZeroDivisionError
    before = read_files(store)
    for update in (ended, failed):
        for use in (partial(update.append, ROW), partial(update.expire, records=1), update.commit):
            with pytest.raises(UsageError, match=r"store: the update has ended; begin another with .*update"):
                use()
    assert read_files(store) == before


def test_an_update_is_for_the_process_that_began_it(store: Path) -> None:
    with recshuf.PileStore(store).update() as update:

        def use_all() -> None:
            for use in (partial(update.append, ROW), partial(update.expire, records=1), update.commit):
                with pytest.raises(UsageError, match="belongs to another process; begin one in each"):
                    use()

        assert join(fork(use_all)) == 0


def test_times_are_seconds_dates_and_text_in_utc() -> None:
    for given in (
        np.int64(60),
        np.float32(60),
        Fraction(60),
        "60",
        "1970-01-01T00:01",
        "1970-01-01T01:01+01:00",
    ):
        assert parse_time(given) == 60
    assert parse_time(date(1970, 1, 2)) == 86_400
    assert parse_time("20260131.0") == parse_time(20260131) == 20260131
    days = {"20260131": "2026-01-31", "19700101": "1970-01-01", "2026": "2026-01-01", "1970": "1970-01-01"}
    for given, day in days.items():
        with pytest.raises(
            UsageError, match=f"may be a date or seconds since 1970; write {day}, or {given}.0$"
        ):
            parse_time(given)
    outside = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", datetime.max, pd.NaT, 10**400)
    for given in (*outside, -(10**400)):
        with pytest.raises(UsageError, match=r"is no time; give .* in the years 1 to 9999 of UTC$"):
            parse_time(given)
