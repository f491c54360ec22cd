"""A writer adds a set that holds what it was given, whole or not at all, whoever else writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import OutputError, PileError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.stored import StoredPiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = {"id": list(range(10)), "text": [f"row {row}" for row in range(10)]}
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def read_all(store: Path) -> dict[tuple[str, int], Any]:
    """Return every record by source and row."""
    piles = StoredPiles(store)
    loader = recshuf.PileLoader(piles, 1, columns=["_id", "id", "text"], output="arrow")
    found = {}
    for batch in loader:
        (record,) = batch.to_pylist()
        key = record.pop("_id")
        found[piles.sources[key["source"]], key["row"]] = record
    piles.close()
    return found


def list_files(store: Path) -> set[str]:
    return {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}


FORMS = {
    "table": pa.table(ROWS),
    "batch": pa.record_batch(ROWS),
    "batches": pa.table(ROWS).to_batches(max_chunksize=3),
    "dict": ROWS,
    "arrays": {"id": np.arange(10), "text": pa.array(ROWS["text"])},
    "dicts": [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)],
    "pandas": pd.DataFrame(ROWS).astype({"text": "string[pyarrow]"}),
    "polars": pl.DataFrame(ROWS),
    "other order": pa.table(ROWS).select(["text", "id"]),
    "dictionary": pa.table({"id": ROWS["id"], "text": pa.array(ROWS["text"]).dictionary_encode()}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_records_is_taken(tmp_path: Path, form: str) -> None:
    schema = SCHEMA if form == "other order" else None
    with recshuf.PileWriter(tmp_path / "store", "a", schema, piles=4) as writer:
        writer.write(FORMS[form])
        assert writer.num_records == 10
    expected = {("a", row): {"id": row, "text": f"row {row}"} for row in range(10)}
    assert read_all(tmp_path / "store") == expected


def test_arrays_of_several_axes_become_lists_of_a_fixed_size(tmp_path: Path) -> None:
    images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write({"image": images, "id": np.arange(5)})
    (batch,) = recshuf.PileLoader(tmp_path / "store", 5)
    assert np.array_equal(batch["image"], images[batch["id"]])


def test_the_order_depends_on_names_and_rows_only(tmp_path: Path) -> None:
    """Not on who is first, nor on how records are cut into batches."""
    tables = {name: pa.table({"id": np.arange(1000) + 1000 * k}) for k, name in enumerate("abc")}
    outputs = []
    for run, names in enumerate(("abc", "cba")):
        store = tmp_path / f"store{run}"
        for name in names:
            with recshuf.PileWriter(store, name, seed=3, piles=8, buffer_bytes=500 + 3000 * run) as writer:
                for part in tables[name].to_batches(max_chunksize=7 + 300 * run):
                    writer.write(part)
        recshuf.gather(store, tmp_path / f"{run}.parquet")
        outputs.append(pq.read_table(tmp_path / f"{run}.parquet")["id"].to_pylist())
    assert outputs[0] == outputs[1]
    assert sorted(outputs[0]) == list(range(3000))


def write_some(store: Path, name: str, count: int) -> None:
    with recshuf.PileWriter(store, name, piles=4) as writer:
        for row in range(count):
            writer.write({"id": [row], "text": [name]})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_many_processes_write_to_a_new_store_at_once(tmp_path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    store = tmp_path / "store"
    workers = [
        context.Process(target=write_some, args=(store, f"worker-{number}", 5 + number))
        for number in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = read_all(store)
    assert set(found) == {(f"worker-{number}", row) for number in range(6) for row in range(5 + number)}
    assert all(record == {"id": row, "text": name} for (name, row), record in found.items())
    assert not any(name.endswith(".lock") for name in list_files(store))


def test_an_exception_leaves_nothing_and_frees_the_name(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_some(store, "first", 3)
    before = list_files(store)
    with pytest.raises(ZeroDivisionError), recshuf.PileWriter(store, "second", buffer_bytes=1) as writer:  # noqa: PT012
        writer.write(ROWS)
        raise ZeroDivisionError
    assert list_files(store) == before
    write_some(store, "second", 2)
    assert len(read_all(store)) == 5


def die_while_writing(store: Path) -> None:
    writer = recshuf.PileWriter(store, "dead", piles=4, buffer_bytes=1)
    writer.write(ROWS)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_leaves_nothing_visible_and_its_name_can_be_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_some(store, "first", 3)
    child = multiprocessing.get_context("fork").Process(target=die_while_writing, args=(store,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert len(read_all(store)) == 3
    write_some(store, "dead", 4)
    assert len(read_all(store)) == 7
    assert sorted(path.name for path in (store / "sets").iterdir()) == [
        "dead-00000.piles",
        "first-00000.piles",
    ]


def test_what_a_dead_process_left_is_deleted_with_the_next_commit(tmp_path: Path) -> None:
    store = tmp_path / "store"
    child = multiprocessing.get_context("fork").Process(target=die_while_writing, args=(store,))
    child.start()
    child.join(60)
    assert "sets/dead-00000.piles" in list_files(store)
    write_some(store, "next", 1)
    assert {name for name in list_files(store) if name.startswith("sets/")} == {"sets/next-00000.piles"}


def test_a_name_in_use_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_some(store, "a", 1)
    with pytest.raises(UsageError, match="records of this name"):
        recshuf.PileWriter(store, "a")
    with recshuf.PileWriter(store, "b"), pytest.raises(OutputError, match="another process writes 'b'"):
        recshuf.PileWriter(store, "b")


def test_names_that_begin_alike_do_not_meet(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with recshuf.PileWriter(store, "a-1", piles=4, buffer_bytes=1) as writer:
        writer.write(ROWS)
        write_some(store, "a", 3)
    assert len(read_all(store)) == 13


def test_a_name_is_taken_as_long_as_a_reader_has_its_records(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_some(store, "a", 3)
    loader = recshuf.PileLoader(store, 1)
    with recshuf.PileStore(store).update() as update:
        update.expire(records=0)
    with pytest.raises(UsageError, match="records of this name"):
        recshuf.PileWriter(store, "a")
    assert [batch["text"] for batch in loader] == [["a"]] * 3
    del loader
    write_some(store, "a", 4)
    assert len(read_all(store)) == 4


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "-a", "a b", "ä", "x" * 101])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="give letters"):
        recshuf.PileWriter(tmp_path / "store", name)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"id": [1]}, "column 'text' is missing"),
        ({"id": [1], "text": ["a"], "more": [1]}, "column 'more' is not in the store"),
        ({"id": [1.5], "text": ["a"]}, "column 'id' is int64 in the store, .*1.5"),
        ([{"id": 2**70, "text": "a"}], "column 'id': .*too large"),
        (pa.table({"id": ["1"], "text": ["a"]}), "column 'id' is string, and int64 in the store"),
        ([{"id": 1, "text": "a", "more": 2}], "column 'more' is not in the store"),
        (7, "int is not taken"),
        ([1, 2], "list is not taken"),
        ([pa.table({"id": [1], "text": ["a"]}), pa.table({"id": [1]})], "no table: .*ifferent"),
    ],
)
def test_other_columns_are_refused_and_nothing_of_them_is_kept(
    tmp_path: Path, later: Any, message: str
) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write(ROWS)
        with pytest.raises(UsageError, match=message):
            writer.write(later)
    assert len(read_all(tmp_path / "store")) == 10
    with recshuf.PileWriter(tmp_path / "store", "b") as writer, pytest.raises(UsageError, match=message):
        writer.write(later)
    assert len(read_all(tmp_path / "store")) == 10


@pytest.mark.parametrize(
    "use",
    [
        lambda url: recshuf.PileWriter(url, "a"),
        lambda url: recshuf.PileLoader(url, 2),
        recshuf.PileStore,
        recshuf.check_loader,
        lambda url: recshuf.window(url, keep_records=1),
        lambda url: recshuf.gather(url, "x.jsonl"),
    ],
)
def test_a_store_in_an_object_store_is_refused_by_its_url(
    tmp_path: Path, use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^s3://bucket/store: is a URL; give a local path"):
        use("s3://bucket/store")
    assert not list(tmp_path.iterdir())


def test_records_go_where_the_store_was_when_the_writer_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with recshuf.PileWriter("store", "a") as writer:
        monkeypatch.chdir("elsewhere")
        writer.write(ROWS)
    assert recshuf.PileStore(tmp_path / "store").num_records == writer.num_records > 0
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    writer = recshuf.PileWriter(tmp_path / "store", "a")
    writer.write(ROWS)
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="is closed"):
        writer.write(ROWS)


def test_a_writer_without_records_adds_nothing(tmp_path: Path) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", SCHEMA, piles=4) as writer:
        writer.write(SCHEMA.empty_table())
    snapshot = StoreFolder(tmp_path / "store").find()
    assert snapshot is not None
    assert snapshot.sets == ()
    write_some(tmp_path / "store", "a", 1)
    assert len(read_all(tmp_path / "store")) == 1


@pytest.mark.parametrize("given", [{"seed": 4}, {"piles": 3}])
def test_another_seed_or_number_of_piles_than_the_store_has_is_refused(tmp_path: Path, given: dict) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", seed=3, piles=2) as writer:
        writer.write(ROWS)
    with pytest.raises(UsageError, match=f"{next(iter(given))}="):
        recshuf.PileWriter(tmp_path / "store", "b", **given)


def test_a_store_of_lines_takes_no_tables(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store")
    with pytest.raises(UsageError, match="records of text files"):
        recshuf.PileWriter(tmp_path / "store", "a")


def test_nested_and_null_values_come_back(tmp_path: Path) -> None:
    table = pa.table(
        {
            "list": pa.array([[1, None], None, []], pa.list_(pa.int8())),
            "struct": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int16())])),
            "text": ["x", None, ""],
        }
    )
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write(table)
    (batch,) = recshuf.PileLoader(tmp_path / "store", 3, columns=["_id", *table.schema.names], output="arrow")
    rows = [record["row"] for record in batch["_id"].to_pylist()]
    assert batch.select(table.schema.names).to_pylist() == table.take(rows).to_pylist()


@pytest.mark.parametrize("form", ["arrays", "images", "pandas"])
def test_memory_may_be_used_again_after_a_write(tmp_path: Path, form: str) -> None:
    """Records wait in the writer, so it must not look at the caller's arrays later."""
    ids, images = np.arange(1000), np.arange(3000).reshape(1000, 3)
    frame = pd.DataFrame({"id": ids}, copy=False)
    given = {"arrays": {"id": ids}, "images": {"id": np.arange(1000), "image": images}, "pandas": frame}[form]
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write(given)
        ids[:] = images[:] = -1
        if form == "pandas":
            frame.iloc[:, 0] = -1
    (batch,) = recshuf.PileLoader(tmp_path / "store", 1000)
    assert sorted(batch["id"].tolist()) == list(range(1000))
    if form == "images":
        assert sorted(batch["image"].reshape(-1).tolist()) == list(range(3000))


def drop_writer(writer: recshuf.PileWriter) -> None:
    writer.__del__()


def test_a_forked_child_leaves_the_set_of_its_parent_alone(tmp_path: Path) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=4, buffer_bytes=1) as writer:
        writer.write(ROWS)
        child = multiprocessing.get_context("fork").Process(target=drop_writer, args=(writer,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    assert len(read_all(tmp_path / "store")) == 10


def use_writer(writer: recshuf.PileWriter, use: str) -> None:
    with pytest.raises(UsageError, match=r"^a: this writer belongs to another process; .* its own name"):
        getattr(writer, use)(*[ROWS] if use == "write" else [])
    writer.abort()


@pytest.mark.parametrize("use", ["write", "seal", "close"])
@pytest.mark.parametrize("buffer_bytes", [1, 1000])
def test_a_forked_child_cannot_use_the_writer_of_its_parent(
    tmp_path: Path, use: str, buffer_bytes: int
) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=4, buffer_bytes=buffer_bytes) as writer:
        writer.write(ROWS)
        child = multiprocessing.get_context("fork").Process(target=use_writer, args=(writer, use))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    assert len(read_all(tmp_path / "store")) == 10


@pytest.mark.parametrize("store", [None, 3, b"store"])
def test_a_store_that_is_no_path_is_refused(store: Any) -> None:
    for use in (lambda: recshuf.PileWriter(store, "a"), lambda: recshuf.PileStore(store)):
        with pytest.raises(UsageError, match=r"is no path; give text or a pathlib\.Path"):
            use()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"piles": -5}, "piles=-5: give an integer from 1 to 65,536"),
        ({"piles": 0}, "piles=0: give an integer"),
        ({"piles": 65_537}, "piles=65537: give an integer"),
        ({"piles": "8"}, "piles='8': give an integer"),
        ({"seed": -1}, "seed=-1: give an integer"),
        ({"seed": 2**128}, "seed=.*: give an integer"),
        ({"seed": "a"}, "seed='a': give an integer"),
        ({"buffer_bytes": "1MB"}, "buffer_bytes='1MB': give an integer"),
        ({"name": 5}, "name=5: give letters"),
    ],
)
def test_wrong_arguments_are_refused_before_a_store_is_made(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        recshuf.PileWriter(tmp_path / "store", **{"name": "a"} | arguments)
    assert not (tmp_path / "store").exists()


def test_a_column_called_provenance_is_one_of_the_records(tmp_path: Path) -> None:
    rows = {"provenance": ["here", "there"], "id": [0, 1]}
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write(rows)
        writer.write(pa.table(rows))
    loader = recshuf.PileLoader(tmp_path / "store", 4)
    (batch,) = loader
    assert sorted(zip(batch["provenance"], batch["id"].tolist(), strict=True)) == [
        ("here", 0), ("here", 0), ("there", 1), ("there", 1),
    ]  # fmt: skip
    recshuf.gather(tmp_path / "store", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["provenance"].to_pylist() == batch["provenance"]


def test_empty_lists_tell_nothing_about_columns(tmp_path: Path) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=2) as writer:
        writer.write([])
        writer.write(ROWS)
        writer.write([])
    assert len(read_all(tmp_path / "store")) == 10


def test_a_null_where_the_store_takes_none_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with recshuf.PileWriter(tmp_path / "store", "a", schema, piles=2) as writer:
        with pytest.raises(
            UsageError, match=r"^column 'id' has a null where the store takes none; fill it in$"
        ):
            writer.write({"id": [1, None]})
        writer.write({"id": [1]})
    assert recshuf.PileStore(tmp_path / "store").num_records == 1


def test_columns_without_records_are_those_of_the_store(tmp_path: Path) -> None:
    recshuf.PileWriter(tmp_path / "store", "start", SCHEMA).close()
    assert recshuf.PileStore(tmp_path / "store").schema == SCHEMA
    assert list(recshuf.PileLoader(tmp_path / "store", 2, drop_last=False)) == []
    with recshuf.PileWriter(tmp_path / "store", "start") as writer, pytest.raises(UsageError, match="column"):
        writer.write({"x": [1]})
    with recshuf.PileWriter(tmp_path / "store", "start") as writer:
        writer.write(ROWS)
    assert len(read_all(tmp_path / "store")) == 10


@pytest.mark.parametrize(
    "change", [{"seed": 6}, {"pile_count": 4}, {"schema": pa.schema([*SCHEMA, ("provenance", pa.uint32())])}]
)
def test_sets_that_do_not_fit_their_snapshot_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", seed=5, piles=2) as writer:
        writer.write(ROWS)
    StoreFolder(tmp_path / "store").commit(lambda newest: replace(newest, **change))
    with pytest.raises(PileError, match=r"a-00000.piles: has another seed, other columns or another number"):
        recshuf.PileLoader(tmp_path / "store", 2)
