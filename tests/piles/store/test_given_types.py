"""Data with types of Arrow and of data frames are stored with the values in place of dictionaries and views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(store: Path, *data: Any, kind: pa.DataType | None = None) -> list[Any]:
    """Write one after the other, and return the values of column ``a`` in the order in which they were written."""
    schema = None if kind is None else pa.schema([("a", kind)])
    with recshuf.PileWriter(store, "w", schema, piles=2) as writer:
        for one in data:
            writer.write(one)
    loader = recshuf.PileLoader(store, 1, columns=["_id", "a"], output="arrow")
    rows = [batch.to_pylist()[0] for batch in loader]
    return [row["a"] for row in sorted(rows, key=lambda row: row["_id"]["row"])]


VALUES = {
    "text": pa.array(["x", None, "yy"]),
    "view of text": pa.array(["x", None, "a text of many letters"], pa.string_view()),
    "view of bytes": pa.array([b"x", None, b"bytes, more than twelve"], pa.binary_view()),
    "struct": pa.array([{"q": 1}, None, {"q": None}]),
    "struct of views": pa.array([{"q": "x"}, {"q": "y"}, None], pa.struct([("q", pa.string_view())])),
    "list": pa.array([[1, 2], None, []]),
    "list of views": pa.array([["x"], None, ["y", None]], pa.list_(pa.string_view())),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string_view(), pa.int8())),
    "dictionary": pa.array(["x", None, "y"]).dictionary_encode(),
}
PLACES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "column": lambda array: array,
    "list": lambda array: pa.ListArray.from_arrays([0, 2, 2, len(array)], array),
    "struct": lambda array: pa.StructArray.from_arrays([array], ["f"]),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("values", VALUES)
def test_dictionaries_of_any_values_are_taken(tmp_path: Path, values: str, place: str) -> None:
    dictionary = pa.DictionaryArray.from_arrays([2, 0, None, 1, 2], VALUES[values])
    array = PLACES[place](dictionary)
    table = pa.table({"a": array})
    assert write(tmp_path / "s", table, table.slice(1)) == [*array.to_pylist(), *array.to_pylist()[1:]]


@pytest.mark.parametrize(
    "kind",
    [pl.Categorical, pl.Enum(["u", "v"]), pl.List(pl.Categorical), pl.Struct({"f": pl.Enum(["u", "v"])})],
    ids=str,
)
@pytest.mark.parametrize("form", ["frame", "series"])
def test_categories_of_polars_are_taken(tmp_path: Path, kind: Any, form: str) -> None:
    wraps: dict[Any, Callable[[str], Any]] = {
        pl.List: lambda one: [one, "u"],
        pl.Struct: lambda one: {"f": one},
    }
    wrap = wraps.get(kind.base_type(), lambda one: one)
    values = [wrap("v"), None, wrap("u"), wrap("v")]
    series = pl.Series("a", values, dtype=kind)
    data: Any = series.to_frame() if form == "frame" else {"a": series}
    expected = series.to_list()
    assert write(tmp_path / "s", data) == expected


def test_a_column_of_text_takes_categories(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": pl.Series(["u", "v"], dtype=pl.Categorical)})
    assert write(tmp_path / "s", frame, {"a": ["w"]}, kind=pa.string()) == ["u", "v", "w"]


NOTHING = {
    "struct": (pa.struct([("x", pa.null())]), [{"x": None}, None]),
    "list": (pa.list_(pa.null()), [[None, None], None, []]),
    "large list": (pa.large_list(pa.null()), [[None, None], None, []]),
    "fixed list": (pa.list_(pa.null(), 2), [[None, None], None]),
    "map": (pa.map_(pa.string(), pa.null()), [[("k", None), ("l", None)], None, []]),
    "deep": (pa.list_(pa.struct([("x", pa.list_(pa.null()))])), [[{"x": [None]}, None], None, []]),
}


@pytest.mark.parametrize("case", NOTHING)
def test_slices_of_nested_columns_without_values_are_taken(tmp_path: Path, case: str) -> None:
    kind, values = NOTHING[case]
    table = pa.table({"a": pa.array(values * 4, kind)})
    assert write(tmp_path / "s", table, table.slice(5), table.slice(2, 3)) == [
        *table["a"].to_pylist(),
        *table["a"].to_pylist()[5:],
        *table["a"].to_pylist()[2:5],
    ]


def test_a_null_of_a_dictionary_is_one(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    array = pa.DictionaryArray.from_arrays([0, 1], pa.array(["x", None]))
    with (
        recshuf.PileWriter(tmp_path / "s", "w", schema) as writer,
        pytest.raises(UsageError, match=r"^column 'a' has a null where the store takes none; fill it in$"),
    ):
        writer.write(pa.table({"a": array}))


def test_more_text_than_a_column_holds_at_once_is_refused_by_its_name(tmp_path: Path) -> None:
    offsets, text = np.array([0, 1, 2**31 + 1]), np.zeros(2**31 + 1, np.uint8)
    array = pa.Array.from_buffers(pa.large_string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    table = pa.table({"a": array})
    with recshuf.PileWriter(tmp_path / "s", "w", pa.schema([("a", pa.string())])) as writer:
        with pytest.raises(UsageError, match=r"^column 'a' cannot become string: .*; write fewer") as caught:
            writer.write(table)
        writer.write(table.slice(0, 1))
    assert "\n" not in str(caught.value)
