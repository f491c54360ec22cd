"""Piles that are too large for memory are split when they are gathered, and the output has the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.support.output_trees import list_tree

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 120_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same 20 MB of records in several formats."""
    folder = tmp_path_factory.mktemp("inputs")
    numbers = np.random.default_rng(1).integers(0, 10**9, (ROWS, 16))
    lines = [f'{{"id": {row}, "numbers": {values}}}\n' for row, values in enumerate(numbers.tolist())]
    (folder / "in.jsonl").write_text("".join(lines))
    table = pa.table(
        {"id": np.arange(ROWS), "numbers": pa.FixedSizeListArray.from_arrays(numbers.ravel(), 16)}
    )
    pq.write_table(table, folder / "in.parquet")
    with h5py.File(folder / "in.h5", "w") as file:
        file["numbers"] = numbers
    return folder


@pytest.mark.parametrize(
    ("name", "output", "memory", "options"),
    [
        ("in.jsonl", "out/", "64MB", {"shards": 3}),
        ("in.jsonl", "out.parquet", "256MB", {}),
        ("in.parquet", "out/", "112MB", {"shards": 2, "provenance": True}),
        ("in.h5", "out.h5", "64MB", {}),
    ],
)
def test_two_levels_of_piles_give_the_same_bytes(
    tmp_path: Path, inputs: Path, name: str, output: str, memory: str, options: dict[str, Any]
) -> None:
    plans = []
    for folder, resources in (
        ("one", {"memory": "2GB"}),
        ("two", {"memory": memory, "piles": 1}),
    ):
        (tmp_path / folder).mkdir()
        given = options | resources | {"seed": 5}
        plans.append(recshuf.plan(inputs / name, f"{tmp_path}/{folder}/{output}", **given))
        recshuf.shuffle(inputs / name, f"{tmp_path}/{folder}/{output}", **given)
    assert plans[0].count_parts() == 1 < plans[1].count_parts()
    one, two = (list_tree(tmp_path / folder) for folder in ("one", "two"))
    manifest = "out.recshuf.json"
    assert {path: one[path] for path in one if path != manifest} == {
        path: two[path] for path in two if path != manifest
    }
