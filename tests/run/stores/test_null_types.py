"""A column of numbers has one type in all batches of a store: that of arrays, or of Arrow if any record lacks a value."""

from __future__ import annotations

import json
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.support.effort import mostly_slow

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 400
KINDS = ("parquet", "jsonl", "csv", "schema", "writer")
HOLES = (None, 0, COUNT - 1)
SIZED = pa.list_(pa.int16(), 2)


def make_table(hole: int | None) -> pa.Table:
    """Return records of which one, or none, lacks values."""
    numbers: list[Any] = list(range(COUNT))
    pairs: list[Any] = [[number % 9, 1] for number in numbers]
    inner = [*pairs]
    if hole is not None:
        numbers[hole], pairs[hole], inner[hole] = None, None, [None, 1]
    whole = np.arange(COUNT)
    columns = {"whole": whole, "n": numbers, "pair": pa.array(pairs, SIZED), "inner": pa.array(inner, SIZED)}
    return pa.table(columns | {"text": [None if one is None else str(one) for one in numbers]})


def find_types(store: Any, **options: Any) -> dict[str, set[type]]:
    """Return the types of each column in all batches of two epochs."""
    found: dict[str, set[type]] = {}
    for epoch in (0, 1):
        for batch in recshuf.PileLoader(store, 16, epoch=epoch, drop_last=False, **options):
            for name, column in batch.items():
                kinds = (kind for kind in (np.ndarray, pa.Array, list) if isinstance(column, kind))
                found.setdefault(name, set()).add(next(kinds))
    return found


def expect(hole: int | None, names: list[str]) -> dict[str, set[type]]:
    lacking = pa.Array if hole is not None else np.ndarray
    kinds = {
        "whole": np.ndarray,
        "n": lacking,
        "pair": lacking,
        "inner": lacking,
        "text": list,
        "extra": pa.Array,
    }
    return {name: {kinds[name]} for name in names}


@pytest.mark.parametrize(
    ("kind", "hole"),
    mostly_slow(product(KINDS, HOLES), *zip(KINDS, cycle(HOLES), strict=False), ("writer", 0)),
)
def test_a_column_has_one_type(tmp_path: Path, kind: str, hole: int | None) -> None:
    table, store, names = make_table(hole), tmp_path / "store", ["whole", "n", "pair", "inner", "text"]
    options: dict[str, Any] = {}
    if kind == "writer":
        with recshuf.PileWriter(store, "a", piles=5, seed=3) as writer:
            for part in table.to_batches(max_chunksize=70):
                writer.write(part)
    else:
        path = tmp_path / f"a.{'jsonl' if kind == 'schema' else kind}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=50)
        elif kind == "csv":
            names = ["whole", "n"]
            rows = [f"{one['whole']},{'' if one['n'] is None else one['n']}\n" for one in table.to_pylist()]
            path.write_text("".join(["whole,n\n", *rows]))
        else:
            # What is null is missing in one half of the files.
            rows = table.drop_columns(["pair", "inner"] if kind == "jsonl" else []).to_pylist()
            lines = [
                {name: value for name, value in row.items() if value is not None or row["whole"] % 2}
                for row in rows
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            names = list(rows[0])
            if kind == "schema":
                options["schema"] = table.schema
        recshuf.scatter(path, store, seed=3, piles=5, **options)
    assert find_types(store) == expect(hole, names)
    mixed = recshuf.MixLoader({store: 1}, 16)
    assert {name: type(column) is np.ndarray for batch in mixed for name, column in batch.items()} == {
        name: kinds == {np.ndarray} for name, kinds in expect(hole, names).items()
    }


def test_slices_and_compactions_keep_what_is_known(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with recshuf.PileWriter(store, "a", piles=3, seed=3) as writer:
        writer.write(make_table(None))
    names = ["whole", "n", "pair", "inner", "text"]
    with recshuf.PileStore(store).update() as update:
        update.append(make_table(7), time=5)
    assert find_types(store) == expect(7, names)
    recshuf.compact(store, sets=1)
    assert find_types(store) == expect(7, names)
    with recshuf.PileStore(store).update() as update:
        update.append(make_table(None), time=9)
        update.expire(before=9)
    assert find_types(store) == expect(None, names)
