"""`recshuf.stream`: the shuffled records as a reader of batches, and what it holds until its end."""

import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import recshuf
from recshuf.errors import DamagedSetError, InputError, UnknownOptionError, UsageError
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import Listener, spill

TABLE = pa.table({"id": range(2000), "word": [f"w{number}" for number in range(2000)]})


def list_spilled(folder: Path) -> list[Path]:
    """Return the files without a name that this process has open in a folder, as names that open them."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [link for link in links if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/")]


def count_threads() -> int:
    return sum(thread.name.startswith("recshuf") for thread in threading.enumerate())


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., pa.RecordBatchReader]:
    """Return what streams a table whose records all go to disk, in many batches."""
    spill(monkeypatch, pile_count=16, pile_bytes=4000)
    (tmp_path / "tmp").mkdir()
    return partial(recshuf.stream, TABLE, seed=3, temp_dir=tmp_path / "tmp")


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_the_order_is_that_of_the_files_that_shuffle_writes(tmp_path: Path, name: str):
    paths = make_inputs(tmp_path / "in", name, [300, 20, 0, 150])
    options: dict[str, Any] = {"seed": 5, "provenance": True, "head_count": 400}
    recshuf.shuffle(paths, tmp_path / "out.arrow", **options)
    written = pa.ipc.open_file(tmp_path / "out.arrow").read_all()
    reader = recshuf.stream(paths, **options)
    assert type(reader) is pa.RecordBatchReader
    streamed = reader.read_all()
    assert streamed.to_pylist() == written.to_pylist()
    assert len(streamed) == 400
    assert streamed.schema.names[-2:] == ["source_file", "source_row"]


def test_tables_keep_their_types_and_metadata():
    kinds = pa.array(["b", None, "a"] * 100).dictionary_encode()
    table = pa.table(
        {"kind": kinds, "view": pa.array(["x"] * 300, pa.string_view())}
    ).replace_schema_metadata({"own": "y"})
    streamed = recshuf.stream([table, table], seed=1).read_all()
    assert streamed.schema.equals(table.schema, check_metadata=True)
    assert sorted(map(str, streamed["kind"].to_pylist())) == sorted(map(str, table["kind"].to_pylist() * 2))


def test_types_that_arrow_makes_of_nothing_stay():
    """Arrow casts lists to no views of lists, and makes no tensors with a permutation from objects."""
    rows = range(60)
    views = [None if row % 7 == 0 else [row] * (row % 4) for row in rows]
    columns = {
        "view": pa.array(views, pa.list_view(pa.int32())),
        "large": pa.array(views, pa.large_list_view(pa.int8())),
        "inner": pa.array([{"x": [[row], []]} for row in rows], pa.struct({"x": pa.list_(pa.list_view(pa.int8()))})),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(240).reshape(60, 2, 2)),
    }  # fmt: skip
    table = pa.table({"id": rows, **columns})
    streamed = recshuf.stream(table, seed=1).read_all()
    streamed.validate(full=True)
    assert streamed.schema == table.schema
    assert streamed["id"].to_pylist() != [*rows]
    assert sorted(streamed.to_pylist(), key=lambda row: row["id"]) == table.to_pylist()


def test_records_are_loaded_when_they_are_asked_for(spilled):
    calls: list[int] = []
    listener = Listener(lambda: calls.append(1))
    reader = spilled(progress=listener)
    before = len(calls)
    assert listener.passes == ["scatter", "gather"]
    reader.read_next_batch()
    assert len(calls) == before + 1
    assert 0 < reader.read_all().num_rows < 2000
    assert len(calls) > before + 5


@pytest.mark.parametrize("read", [0, 1, 3, None])
def test_nothing_is_left_of_a_reader_that_is_dropped_in_a_cycle_or_at_its_end(
    spilled, tmp_path: Path, read: int | None
):
    held: list[Any] = [spilled()]
    assert list_spilled(tmp_path / "tmp")
    batches = [held[0].read_next_batch() for _ in range(read or 0)]
    if read is None:
        batches = held[0].read_all().to_batches()
    elif read == 3:
        held.append(held)
        del held
        gc.collect()
    else:
        del held
    assert not list_spilled(tmp_path / "tmp")
    assert not count_threads()
    assert not list((tmp_path / "tmp").iterdir())
    # What was read stays.
    assert sum(batch.num_rows for batch in batches) == len(
        {row["id"] for batch in batches for row in batch.to_pylist()}
    )


def test_records_of_one_value_become_a_table_part_by_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A table may take many times the memory of lines: here each has one of 20 fields."""
    spill(monkeypatch, pile_count=2, pile_bytes=2000)
    lines = [f'{{"value": {row % 100 == 0:d}, "f{row % 20}": {row}}}\n' for row in range(1000)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    whole = recshuf.stream(tmp_path / "in.jsonl", seed=1, group_by="value").read_all()
    assert len(whole) == 1000
    assert max(batch.num_rows for batch in whole.to_batches()) * len("".join(lines)) / 1000 < 2000
    assert [row for row in whole["f1"].to_pylist() if row] == [row for row in range(1000) if row % 20 == 1]


def test_an_error_of_the_second_pass_keeps_its_class_and_frees_all(spilled, tmp_path: Path):
    reader = spilled()
    (file,) = list_spilled(tmp_path / "tmp")
    os.truncate(file, 100)
    with pytest.raises(DamagedSetError, match="before the end of a region"):
        reader.read_all()
    assert not list_spilled(tmp_path / "tmp")
    assert not count_threads()


def test_an_error_of_the_inputs_is_raised_at_once_and_frees_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spill(monkeypatch)
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n' * 100 + "{\n")
    (tmp_path / "tmp").mkdir()
    with pytest.raises(InputError, match="line 101"):
        recshuf.stream(tmp_path / "in.jsonl", temp_dir=tmp_path / "tmp")
    assert not list_spilled(tmp_path / "tmp")


def test_options_of_files_are_refused():
    for name in ("shards", "resume", "verify", "to", "compression"):
        with pytest.raises(UnknownOptionError, match=f"unknown option '{name}'"):
            recshuf.stream(TABLE, **{name: 2})
    for inputs in (TABLE, "in.jsonl"):
        with pytest.raises(
            UsageError, match=r"^temp_dir s3://bucket/tmp/: is for shuffles only; give a local folder$"
        ):
            recshuf.stream(inputs, temp_dir="s3://bucket/tmp")
    with pytest.raises(UsageError, match="no inputs"):
        recshuf.stream([])


def test_others_read_it(tmp_path: Path):
    expected = recshuf.stream(TABLE, seed=1).read_all()
    pads.write_dataset(recshuf.stream(TABLE, seed=1), tmp_path / "out", format="parquet")
    assert pads.dataset(tmp_path / "out").to_table()["id"].equals(expected["id"])
    polars = pytest.importorskip("polars")
    assert polars.from_arrow(recshuf.stream(TABLE, seed=1))["id"].to_list() == expected["id"].to_pylist()
    duckdb = pytest.importorskip("duckdb")
    reader = recshuf.stream(TABLE, seed=1)  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select id from reader").fetchall() == [(one,) for one in expected["id"].to_pylist()]
    pytest.importorskip("pandas")
    assert recshuf.stream(TABLE, seed=1).read_pandas()["id"].tolist() == expected["id"].to_pylist()
