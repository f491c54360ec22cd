"""`PileWriter` takes samples with arrays of any number of axes: one shape becomes lists of a fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
FIXED = pa.list_(pa.list_(pa.float32(), 3), 2)
RAGGED = pa.list_(pa.list_(pa.float32()))


def write(store: Path, parts: list[list[dict[str, Any]]], schema: pa.Schema | None = None) -> pa.Table:
    """Return what a store holds after it was written in parts, by the number of the record."""
    with recshuf.PileWriter(store, "a", schema=schema, seed=1, piles=2) as writer:
        numbers = iter(range(100))
        for part in parts:
            writer.write([{"n": next(numbers)} | sample for sample in part])
    loader = recshuf.PileLoader(store, 100, output="arrow", drop_last=False)
    return pa.Table.from_batches(loader).sort_by("n")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([GRID, GRID + 1], FIXED),
        ([GRID, None], RAGGED),
        ([GRID, GRID[:1], GRID[:0]], RAGGED),
        ([GRID[0], GRID[0, :1]], pa.list_(pa.float32())),
        ([np.array(3, np.int16), np.int16(4), None], pa.int16()),
        ([np.bool_(True), np.bool_(False), None], pa.bool_()),
        ([GRID > 2, GRID > 3], pa.list_(pa.list_(pa.bool_(), 3), 2)),
        ([np.array([["a", "b\0"]])], pa.list_(pa.list_(pa.string(), 2), 1)),
        ([{"a": GRID}, {"a": GRID[:1]}], pa.struct({"a": RAGGED})),
        ([[GRID], (GRID, GRID)], pa.list_(RAGGED)),
    ],
)
def test_arrays_of_samples_are_kept(tmp_path: Path, values: list[Any], kind: pa.DataType) -> None:
    found = write(tmp_path / "store", [[{"x": value} for value in values]])
    assert found.schema.field("x").type == kind
    plain = [list_all(value) for value in values]
    assert found["x"].to_pylist() == plain


def list_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: list_all(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [list_all(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("kind", [FIXED, RAGGED, pa.list_(pa.list_(pa.float64(), 3), 2)])
def test_later_arrays_take_the_type_of_the_store(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema({"n": pa.int64(), "x": kind})
    found = write(tmp_path / "store", [[{"x": GRID}], [{"x": GRID.astype(np.float64)}, {"x": None}]], schema)
    assert found.schema == schema
    assert found["x"].to_pylist() == [GRID.tolist(), GRID.tolist(), None]


def test_arrays_that_do_not_fit_the_store_are_refused(tmp_path: Path) -> None:
    for number, other in enumerate((GRID[:1], GRID + 0.5, np.array([["a"]]))):
        whole = GRID.astype(np.int32) if number == 1 else GRID
        with pytest.raises(UsageError, match=r"column 'x': .*") as told:
            write(tmp_path / f"store{number}", [[{"x": whole}], [{"x": other}]])
        assert "\n" not in str(told.value)
