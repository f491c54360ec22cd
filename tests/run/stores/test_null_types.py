"""A column of numbers has one type in all batches of a store: that of arrays, or of Arrow if any record lacks a value."""

from __future__ import annotations

import json
import shutil
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.support.effort import mostly_slow
from tests.support.stores.small_stores import append, expire, write

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 400
KINDS = ("parquet", "jsonl", "csv", "schema", "writer")
HOLES = (None, 0, COUNT - 1)
NAMES = ("whole", "n", "pair", "inner", "text")
HELD = {"csv": NAMES[:2], "jsonl": ("whole", "n", "text")}
"""Columns of kinds that cannot hold all of them."""


def make_table(hole: int | None) -> pa.Table:
    """Return records of which one, or none, lacks values."""
    numbers: list[Any] = list(range(COUNT))
    pairs: list[Any] = [[number % 9, 1] for number in numbers]
    inner = [*pairs]
    if hole is not None:
        numbers[hole], pairs[hole], inner[hole] = None, None, [None, 1]
    sized = pa.list_(pa.int16(), 2)
    columns = {"whole": np.arange(COUNT), "n": numbers, "pair": pa.array(pairs, sized)}
    texts = [None if one is None else str(one) for one in numbers]
    return pa.table(columns | {"inner": pa.array(inner, sized), "text": texts})


def check_types(store: Path, hole: int | None, names: tuple[str, ...] = NAMES, *others: Path) -> None:
    """Check the type of each column in all batches of two epochs, and of a mix in which others come first."""
    lacking = np.ndarray if hole is None else pa.Array
    expected = {name: {np.ndarray if name == "whole" else lacking} for name in names if name != "text"}
    if "text" in names:
        expected["text"] = {list}
    loaders = [recshuf.PileLoader(store, 16, epoch=epoch, drop_last=False) for epoch in (0, 1)]
    for loader in (*loaders, recshuf.MixLoader(dict.fromkeys([*others, store], 1), 16, columns=[*names])):
        found: dict[str, set[type]] = {}
        for batch in loader:
            for name, column in batch.items():
                kinds = (kind for kind in (np.ndarray, pa.Array, list) if isinstance(column, kind))
                found.setdefault(name, set()).add(next(kinds))
        assert found == expected


@pytest.mark.parametrize(
    ("kind", "hole"),
    mostly_slow(product(KINDS, HOLES), *zip(KINDS, cycle(HOLES), strict=False), ("writer", 0)),
)
def test_a_column_has_one_type(tmp_path: Path, kind: str, hole: int | None) -> None:
    names, store = HELD.get(kind, NAMES), tmp_path / "store"
    table = make_table(hole).select(names)
    path = tmp_path / f"a.{'jsonl' if kind == 'schema' else kind}"
    if kind == "writer":
        write(store, "a", *table.to_batches(max_chunksize=70), piles=5)
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=50)
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:  # what is null is missing in one half of the records
        rows = (
            {name: value for name, value in row.items() if value is not None or row["whole"] % 2}
            for row in table.to_pylist()
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind != "writer":
        options = {"schema": table.schema} if kind == "schema" else {}
        recshuf.scatter(path, store, seed=3, piles=5, **options)
    check_types(store, hole, names)


@pytest.mark.parametrize("hole", HOLES[:2])
def test_a_field_has_one_type_where_its_struct_may_be_missing(tmp_path: Path, hole: int | None) -> None:
    numbers = np.arange(COUNT)
    pairs = pa.StructArray.from_arrays([pa.array(numbers)], ["x"], mask=pa.array(numbers == hole))
    write(tmp_path / "store", "a", pa.table({"pair": pairs}), piles=5)
    loader = recshuf.PileLoader(tmp_path / "store", 16, columns=["pair.x"], drop_last=False)
    kind = np.ndarray if hole is None else pa.Array
    assert {isinstance(batch["pair.x"], kind) for batch in loader} == {True}


def test_slices_and_compactions_keep_what_is_known(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, "a", make_table(None), piles=3)
    check_types(store, None)
    whole = shutil.copytree(store, tmp_path / "whole")
    append(store, make_table(7), time=5)
    check_types(store, 7, NAMES, whole)
    recshuf.compact(store, sets=1)
    check_types(store, 7)
    append(store, make_table(None), time=9)
    expire(store, before=9)
    check_types(store, None)
