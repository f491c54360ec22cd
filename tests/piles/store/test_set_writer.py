"""A writer adds a set that holds what it was given, whole or not at all, whoever else writes."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import OutputError, PileError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.pile_set import GrowingPileSet
from recshuf.run.stores import writer as set_writer
from tests.support.processes.deaths import fork, join
from tests.support.small_runs import read_files
from tests.support.stores.small_stores import expire, list_sets, read_ids, read_records, write

ROWS = {"id": list(range(10)), "text": [f"row {row}" for row in range(10)]}
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
EXPECTED = {("a", row): {"id": row, "text": f"row {row}"} for row in range(10)}

FORMS: dict[str, Any] = {
    "table": pa.table(ROWS),
    "batch": pa.record_batch(ROWS),
    "stream": lambda: pa.table(ROWS).to_reader(max_chunksize=3),
    "dict": ROWS,
    "arrays": {"id": np.arange(10), "text": pa.array(ROWS["text"])},
    "dicts": [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)],
    "pandas": pd.DataFrame(ROWS).astype({"text": "string[pyarrow]"}),
    "polars": pl.DataFrame(ROWS),
    "other order": pa.table(ROWS).select(["text", "id"]),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_writer_whose_disk_was_full_for_a_moment_says_that_it_is_lost(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of it is not known, so that writing it again, or more, would not mend it."""

    def fail(*_: object) -> None:
        raise OutputError("full")

    write(store, "a", ROWS)
    for acts in (["write", "close"], ["close"], ["seal", "close"]):
        writer = recshuf.PileWriter(store, "b", buffer_bytes=100)
        writer.write(ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(GrowingPileSet, "write", fail)
            with pytest.raises(OutputError, match="full"):
                writer.write(ROWS)
        for act in acts:
            with pytest.raises(
                OutputError, match=r"^b: what was written before has failed, .*; make a new one"
            ):
                getattr(writer, act)(*[ROWS] * (act == "write"))
        assert list_sets(store) == {"a-00000.piles"}
    write(store, "b", ROWS)
    assert sorted(read_ids(store)) == sorted([*range(10)] * 2)


def test_a_file_of_others_keeps_no_writer_from_a_store_but_from_a_new_one(store: Path) -> None:
    write(store, "a", ROWS)
    (store / "README").touch()
    write(store, "b", ROWS)
    assert recshuf.PileStore(store).num_records == 20
    (store.parent / "new").mkdir()
    (store.parent / "new" / "README").touch()
    with pytest.raises(OutputError, match="new: is not a pile store, and not empty; choose another folder"):
        write(store.parent / "new", "a", ROWS)


def test_sets_of_a_store_are_for_whom_the_mask_of_the_user_lets_read_them(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    before = os.umask(0o027)
    try:
        write(store, "a", ROWS)
        recshuf.scatter(tmp_path / "in.txt", tmp_path / "scattered")
    finally:
        os.umask(before)
    for folder in (store, tmp_path / "scattered"):
        assert {path.stat().st_mode & 0o777 for path in (folder / "sets").iterdir()} == {0o640}


def test_records_go_to_no_store_that_was_made_in_place_of_another(store: Path) -> None:
    write(store, "a", ROWS)
    with ExitStack() as writers:
        writer = writers.enter_context(recshuf.PileWriter(store, "b"))
        writer.write(ROWS)
        shutil.rmtree(store)
        write(store, "c", {"id": [1], "text": ["of the other"]})
        with pytest.raises(OutputError, match="store: another store was made here meanwhile; run again"):
            writer.close()
    assert recshuf.PileStore(store).num_records == 1


def test_a_sealed_set_is_put_in_place_and_no_other_file_is_written_to(store: Path, tmp_path: Path) -> None:
    with recshuf.PileWriter(store, "a", piles=4) as writer, ExitStack() as others:
        writer.write(ROWS)
        sealed = writer.seal()
        # The next files of the program get the descriptor of the set.
        paths = [tmp_path / str(number) for number in range(9)]
        for path in paths:
            others.enter_context(path.open("w+b"))
        assert writer.seal() == sealed
        writer.close()
    assert [path.stat().st_size for path in paths] == [0] * len(paths)
    assert read_records(store) == EXPECTED


def test_every_form_of_records_is_taken(store: Path) -> None:
    for form, data in FORMS.items():
        place, schema = store / form, SCHEMA if form == "other order" else None
        with recshuf.PileWriter(place, "a", schema, piles=4) as writer:
            writer.write([])
            writer.write(data() if callable(data) else data)
            assert writer.num_records == 10
        assert read_records(place) == EXPECTED, form
        assert recshuf.PileStore(place).schema.names == ["id", "text"]


def test_the_order_depends_on_names_and_rows_only(tmp_path: Path) -> None:
    """Not on who is first, nor on how records are cut into batches."""
    tables = {name: pa.table({"id": np.arange(1000) + 1000 * k}) for k, name in enumerate("abc")}
    orders = []
    for run, names in enumerate(("abc", "cba")):
        for name in names:
            parts = tables[name].to_batches(max_chunksize=7 + 300 * run)
            write(tmp_path / f"{run}", name, *parts, seed=3, piles=8, buffer_bytes=500 + 3000 * run)
        orders.append(read_ids(tmp_path / f"{run}"))
        assert [row["id"] for _, row in sorted(read_records(tmp_path / f"{run}").items())] == list(
            range(3000)
        )
    assert orders[0] == orders[1] != sorted(orders[0])


def test_many_small_writes_take_the_memory_of_their_records(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow gives each array of a batch 64 bytes or more."""
    monkeypatch.setattr(set_writer, "MOST_SMALL", 32)
    before = pa.total_allocated_bytes()
    with recshuf.PileWriter(store, "a", seed=5, piles=4) as writer:
        for row in range(500):
            writer.write({"id": [row], "text": [f"t{row}"]})
        held = pa.total_allocated_bytes() - before
        assert writer.num_records == 500
    assert held < 500 * 64
    assert read_records(store) == {("a", row): {"id": row, "text": f"t{row}"} for row in range(500)}


def write_some(store: Path, name: str, count: int) -> None:
    write(store, name, *({"id": [row], "text": [name]} for row in range(count)), seed=None)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_many_processes_write_to_a_new_store_at_once(store: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    counts = {f"worker-{number}": 5 + number for number in range(6)}
    workers = [context.Process(target=write_some, args=(store, *one)) for one in counts.items()]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert read_records(store) == {
        (name, row): {"id": row, "text": name} for name, count in counts.items() for row in range(count)
    }
    assert list_sets(store) == {f"{name}-00000.piles" for name in counts}


def test_an_exception_leaves_nothing_and_frees_the_name(store: Path) -> None:
    write_some(store, "first", 3)
    before = read_files(store)
    with pytest.raises(ZeroDivisionError), recshuf.PileWriter(store, "second", buffer_bytes=1) as writer:  # noqa: PT012
        writer.write(ROWS)
        raise ZeroDivisionError
    writer = recshuf.PileWriter(store, "second", buffer_bytes=1)
    writer.write(ROWS)
    del writer
    assert read_files(store) == before
    write_some(store, "second", 2)
    assert len(read_records(store)) == 5


def die_while_writing(store: Path) -> None:
    writer = recshuf.PileWriter(store, "dead", piles=4, buffer_bytes=1)
    writer.write(ROWS)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("follower", ["dead", "next"])
def test_a_process_that_dies_leaves_nothing_visible_and_its_name_can_be_taken(
    store: Path, follower: str
) -> None:
    write_some(store, "first", 3)
    assert join(fork(lambda: die_while_writing(store))) == -signal.SIGKILL
    assert "dead-00000.piles" in list_sets(store)
    assert len(read_records(store)) == 3
    write_some(store, follower, 4)
    assert len(read_records(store)) == 7
    assert list_sets(store) == {f"{follower}-00000.piles", "first-00000.piles"}


def test_a_name_is_taken_as_long_as_a_reader_has_its_records(store: Path) -> None:
    write_some(store, "a", 3)
    loader = recshuf.PileLoader(store, 1)
    expire(store, records=0)
    with pytest.raises(UsageError, match="records of this name"):
        recshuf.PileWriter(store, "a")
    assert [batch["text"] for batch in loader] == [["a"]] * 3
    del loader
    write_some(store, "a", 4)
    assert len(read_records(store)) == 4


def test_other_columns_are_refused_and_nothing_of_them_is_kept(store: Path) -> None:
    cases: list[tuple[Any, str]] = [
        ({"id": [1]}, "column 'text' is missing"),
        ({"id": [1], "text": ["a"], "more": [1]}, "column 'more' is not in the store"),
        ([{"id": 1, "text": "a", "more": 2}], "column 'more' is not in the store"),
        (pa.table({"id": ["1"], "text": ["a"]}), "column 'id' is string, and int64 in the store"),
    ]
    writer = recshuf.PileWriter(store, "a", piles=2)
    writer.write(ROWS)
    for later, message in cases:
        with pytest.raises(UsageError, match=message):
            writer.write(later)
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="is closed"):
        writer.write(ROWS)
    for later, message in cases:
        with recshuf.PileWriter(store, "b") as other, pytest.raises(UsageError, match=message):
            other.write(later)
    assert read_records(store) == EXPECTED


def test_a_store_is_refused_where_none_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uses: list[Callable[[Any], object]] = [
        lambda place: recshuf.PileWriter(place, "a"),
        recshuf.PileStore,
        lambda place: recshuf.PileLoader(place, 2),
        recshuf.check_loader,
        lambda place: recshuf.window(place, keep_records=1),
        lambda place: recshuf.gather(place, "x.jsonl"),
    ]
    for use in uses:
        with pytest.raises(
            UsageError, match=r"^https://host/store: a pile store cannot lie there; give s3://"
        ):
            use("https://host/store")
    for use, place in product(uses[:2], (None, 3, b"store")):
        with pytest.raises(UsageError, match=r"is no path; give text or a pathlib\.Path"):
            use(place)
    assert not list(tmp_path.iterdir())


def test_records_go_where_the_store_was_when_the_writer_was_made(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.parent / "elsewhere").mkdir()
    monkeypatch.chdir(store.parent)
    with recshuf.PileWriter("store", "a") as writer:
        monkeypatch.chdir("elsewhere")
        writer.write(ROWS)
    assert read_records(store) == EXPECTED
    assert os.listdir() == []


def test_a_writer_without_records_adds_nothing_but_columns(store: Path) -> None:
    write(store, "a", SCHEMA.empty_table(), schema=SCHEMA)
    assert recshuf.PileStore(store).schema == SCHEMA
    assert list(recshuf.PileLoader(store, 2, drop_last=False)) == []
    with recshuf.PileWriter(store, "a") as writer, pytest.raises(UsageError, match="column"):
        writer.write({"x": [1]})
    write(store, "a", ROWS)
    assert read_records(store) == EXPECTED


def test_maps_whose_keys_are_sorted_stay_so(store: Path) -> None:
    kind = pa.map_(pa.string(), pa.int64(), keys_sorted=True)
    write(store, "w", pa.table({"map": pa.array([[("a", 1)]], kind)}))
    loader = recshuf.PileLoader(store, 1, output="arrow")
    assert loader.schema.field("map").type.keys_sorted
    assert [batch["map"].to_pylist() for batch in loader] == [[[("a", 1)]]]


def test_another_store_than_the_writer_wants_is_refused(tmp_path: Path, store: Path) -> None:
    write(store, "a", ROWS, seed=3, piles=2)
    write(store, "same", ROWS, seed=3, piles=2)
    other = pa.schema([("id", pa.int32()), ("text", pa.string())])
    for given, message in (
        ({"seed": 4}, "seed=4"),
        ({"piles": 3}, "piles=3"),
        ({"schema": other}, "column 'id'"),
    ):
        with pytest.raises(UsageError, match=message):
            recshuf.PileWriter(store, "b", **given)
    (tmp_path / "in.txt").write_text("a\nb\n")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "lines")
    with pytest.raises(UsageError, match="records of text files"):
        recshuf.PileWriter(tmp_path / "lines", "a")


def test_short_records_are_written_when_they_fill_the_buffer_with_their_keys(store: Path) -> None:
    with recshuf.PileWriter(store, "a", piles=2, buffer_bytes=30_000) as writer:
        writer.write({"n": np.zeros(3000, np.int8)})
        assert any(path.stat().st_blocks for path in (store / "sets").iterdir())
    assert recshuf.PileStore(store).num_records == 3000


def use_writer(writer: recshuf.PileWriter) -> None:
    for use in (lambda: writer.write(ROWS), writer.close):
        with pytest.raises(UsageError, match=r"^a: this writer belongs to another process; .* its own name"):
            use()
    writer.abort()
    writer.__del__()


@pytest.mark.parametrize("buffer_bytes", [1, 1000])
def test_a_forked_child_leaves_the_writer_of_its_parent_alone(store: Path, buffer_bytes: int) -> None:
    with recshuf.PileWriter(store, "a", piles=4, buffer_bytes=buffer_bytes) as writer:
        writer.write(ROWS)
        assert join(fork(lambda: use_writer(writer))) == 0
    assert read_records(store) == EXPECTED


def test_wrong_arguments_are_refused_before_records_are_taken(store: Path) -> None:
    for arguments, message in [
        ({"piles": 0}, "piles=0: give an integer from 1 to 65,536"),
        ({"piles": 65_537}, "piles=65537: give an integer"),
        ({"piles": "8"}, "piles='8': give an integer"),
        ({"seed": -1}, "seed=-1: give an integer"),
        ({"seed": 2**128}, "seed=.*: give an integer"),
        ({"buffer_bytes": "1MB"}, "buffer_bytes='1MB': give an integer"),
        ({"schema": {"a": "int64"}}, r"schema=.*: give a pyarrow\.Schema"),
        ({"schema": pa.schema([("a", pa.int8())] * 2)}, "column 'a': comes 2 times"),
        ({"name": 5}, "name=5: give letters"),
        *(
            ({"name": name}, "give letters")
            for name in ("", "../a", "a/b", ".a", "-a", "a b", "ä", "x" * 101)
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            recshuf.PileWriter(store, **{"name": "a"} | arguments)
        assert not list(store.rglob("*.lock"))
        assert not list(store.rglob("*.piles"))


@pytest.mark.parametrize(
    "change", [{"seed": 6}, {"pile_count": 4}, {"schema": pa.schema([*SCHEMA, ("provenance", pa.uint32())])}]
)
def test_sets_that_do_not_fit_their_snapshot_are_refused(store: Path, change: dict[str, Any]) -> None:
    write(store, "a", ROWS, seed=5, piles=2)
    StoreFolder(store).commit(lambda newest: replace(newest, **change))
    with pytest.raises(PileError, match=r"a-00000.piles: has another seed, other columns or another number"):
        recshuf.PileLoader(store, 2)
