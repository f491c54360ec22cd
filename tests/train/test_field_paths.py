"""Fields of structs as columns of batches, by their paths."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from tests.support.stores.small_stores import write

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 60
RECORDS = [
    {"n": n, "meta": {"w": n / 2, "in": {"t": f"t{n}"}, "gap": None if n % 3 else n, "tags": [n]}}
    for n in range(COUNT)
]


def make_store(folder: Path, suffix: str, records: list[Any] = RECORDS) -> Path:
    path = folder / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    else:
        with h5py.File(path, "w") as file:
            file["n"] = np.arange(COUNT)
            file["meta/w"] = np.arange(COUNT) / 2
            file["meta/in/t"] = [one["meta"]["in"]["t"] for one in records]
    recshuf.scatter(path, folder / "store", seed=3, piles=4)
    return folder / "store"


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "h5"])
def test_a_field_is_a_column_by_its_path(suffix: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, suffix)
    names = ["meta.in.t", "n", "meta/w", "_id"]
    loader, tables = (
        recshuf.PileLoader(store, 7, columns=names, drop_last=False, output=output)
        for output in ("numpy", "arrow")
    )
    assert loader.schema.names == names
    count = 0
    for batch, table in zip(loader, tables, strict=True):
        assert table.schema.equals(loader.schema, check_metadata=False)
        assert list(batch) == names
        rows = batch["n"].tolist()
        assert batch["meta.in.t"] == table["meta.in.t"].to_pylist() == [f"t{n}" for n in rows]
        assert isinstance(batch["meta/w"], np.ndarray)
        assert batch["meta/w"].flags.writeable
        assert batch["meta/w"].tolist() == [n / 2 for n in rows]
        assert batch["_id"][:, 1].tolist() == rows
        count += len(rows)
    assert count == COUNT


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("lacks", ["field", "struct"])
def test_a_field_with_nulls_has_one_form_in_all_batches(
    suffix: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.train.batch_reader.BUNDLE_BYTES", 0)  # some groups have no nulls
    records = [dict(one) for one in RECORDS]
    if lacks == "struct":
        records[7]["meta"] = None
    store = make_store(tmp_path, suffix, records)
    columns = ["n", "meta.gap", "meta.w"]
    for batch in recshuf.PileLoader(store, 3, columns=columns):
        assert isinstance(batch["meta.gap"], pa.Array)
        assert batch["meta.gap"].to_pylist() == [
            None if n % 3 or records[n]["meta"] is None else n for n in batch["n"].tolist()
        ]
        assert isinstance(batch["meta.w"], pa.Array if lacks == "struct" else np.ndarray)
    if find_spec("torch"):
        for batch in recshuf.PileLoader(store, 3, columns=columns, output="torch"):
            assert [isinstance(one, pa.Array) for one in batch.values()] == [False, True, lacks == "struct"]


def test_a_column_with_the_whole_name_wins(tmp_path: Path) -> None:
    write(tmp_path / "store", "one", [{"a.b": n, "a": {"b": -n}, "a/b": 100 + n} for n in range(20)], piles=2)
    loader = recshuf.PileLoader(tmp_path / "store", 20, columns=["a.b", "a/b", "a"])
    (batch,) = loader
    assert batch["a/b"].tolist() == [100 + n for n in batch["a.b"].tolist()]
    assert batch["a"].to_pylist() == [{"b": -n} for n in batch["a.b"].tolist()]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("meta.tags.element", "'meta.tags.element': there is no field 'element' in list<"),
        ("meta.x", r"there is no field 'x' in struct<.*; name a field of a struct, or 'meta'"),
        ("n.x", "'n.x': there is no field 'x' in int64; name a field of a struct, or 'n'"),
        ("mta.w", "no column 'mta.w' in the store; it has 'n', 'meta'"),
        ("meta.", "there is no field '' in struct<"),
        (".", "no column '.' in the store"),
    ],
)
def test_a_path_of_no_field_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, "parquet")
    with pytest.raises(UsageError, match=problem):
        recshuf.PileLoader(store, 7, columns=["n", name])
    with pytest.raises(UsageError, match=r"'meta\.w' is named twice"):
        recshuf.PileLoader(store, 7, columns=["meta.w", "meta.w"])
