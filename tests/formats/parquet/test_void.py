"""A column without values in one file takes the type that it has in the others, in any order of inputs and at any depth."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from tests.support.effort import some
from tests.support.formats.parquet_tools import load, shuffled, store

if TYPE_CHECKING:
    from pathlib import Path

LABEL = pa.dictionary(pa.int8(), pa.string())
VALUES: dict[str, pa.Array] = {
    "text": pa.array(["x", "y"], pa.large_string()),
    "label": pa.array(["x", "y"]).dictionary_encode().cast(LABEL),
    "time": pa.array([1, 2], pa.timestamp("us", "UTC")),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
    "list": pa.array([["x"], []]),
    "deep": pa.array([[{"a": [True]}], None]),
    "map": pa.array([[("k", "x")], []], pa.map_(pa.string(), pa.string())),
}
VOID: dict[str, list[pa.DataType]] = {
    "text": [pa.float64(), pa.list_(pa.int8()), pa.struct({"a": pa.bool_()}), LABEL],
    "label": [pa.float64(), pa.int8()],
    "time": [pa.float64(), pa.timestamp("us")],
    "struct": [pa.float64(), pa.struct({"a": pa.binary(), "b": pa.float64()})],
    "list": [pa.list_(pa.float64()), pa.float64(), pa.map_(pa.string(), pa.int8())],
    "deep": [pa.list_(pa.struct({"a": pa.list_(pa.string())})), pa.int64()],
    "map": [pa.map_(pa.string(), pa.float64()), pa.int64()],
}
"""Types that a file without values may give to a column, of which each clashes."""


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=["", "no statistics"])
def test_columns_without_values_take_the_types_of_the_others(tmp_path: Path, options: dict[str, Any]) -> None:
    full = store(tmp_path / "full.parquet", {"n": [1, 2], **VALUES}, **options)
    expected = load(shuffled(full)).schema.types
    for number in range(max(map(len, VOID.values()))):
        kinds = {form: voids[number % len(voids)] for form, voids in VOID.items()}
        nulls = {form: pa.nulls(3, kind) for form, kind in kinds.items()}
        void = store(tmp_path / "void.parquet", {"n": [3, 4, 5], **nulls}, **options)
        none = {form: column[:0] for form, column in nulls.items()}
        empty = store(tmp_path / "empty.parquet", {"n": pa.array([], pa.string()), **none})
        for paths in some(permutations((full, void, empty)), 1 if number == 0 and not options else 3):
            written = load(shuffled(*paths, verify=number == 0)).sort_by("n")
            assert written.schema.types == expected, kinds
            for form, column in VALUES.items():
                assert written[form].to_pylist() == [*column.to_pylist(), None, None, None], form


def test_parts_of_a_column_without_values_take_the_type_of_the_others(tmp_path: Path) -> None:
    full = store(tmp_path / "full.parquet", {"c": [{"a": [1], "b": {"x": "t"}, "d": True}]})
    part = store(
        tmp_path / "part.parquet", {"c": [{"a": [2], "b": None, "d": None}, {"a": [], "b": None, "d": None}]}
    )
    table = load(part)
    kind = pa.struct({"a": pa.list_(pa.int64()), "d": pa.float64(), "b": pa.struct({"x": pa.int8()})})
    store(part, pa.table({"c": table["c"].combine_chunks().cast(kind)}))
    for paths in ((full, part), (part, full)):
        written = load(shuffled(*paths))["c"]
        assert written.type.field("d").type == pa.bool_()
        found = sorted(written.to_pylist(), key=str)
        assert found == sorted(
            [*load(full)["c"].to_pylist(), {"a": [2], "b": None, "d": None}, {"a": [], "b": None, "d": None}],
            key=str,
        )


def test_a_column_without_values_has_no_say_in_what_values_mean(tmp_path: Path) -> None:
    """Of the columns of polars, whose metadata hold the values of an enumeration."""
    kind = pa.dictionary(pa.uint8(), pa.string(), ordered=True)
    key, told = b"_PL_ENUM_VALUES2", b"1;x1;y"

    def write(name: str, column: pa.Array, metadata: dict[bytes, bytes] | None) -> Path:
        field = pa.field("c", column.type, metadata=metadata)
        return store(tmp_path / name, pa.Table.from_arrays([column], schema=pa.schema([field])))

    full = write("full.parquet", pa.array(["x", "y"]).dictionary_encode().cast(kind), {key: told})
    for other in (
        write("nulls.parquet", pa.nulls(2, pa.string()), None),
        write("other.parquet", pa.nulls(2, kind), {key: b"1;z"}),
        write("empty.parquet", pa.nulls(0, pa.float64()), None),
    ):
        for paths in ((full, other), (other, full)):
            assert load(shuffled(*paths)).schema.field("c").metadata[key] == told, other
    clash = write("clash.parquet", pa.array(["z"]).dictionary_encode().cast(kind), {key: b"1;z"})
    with pytest.raises(InputError, match="_PL_ENUM_VALUES2"):
        shuffled(full, clash)


def test_values_still_clash(tmp_path: Path) -> None:
    """A value anywhere, or a list or struct around none, is no lack of values. Neither are types that no file has values of."""
    full = store(tmp_path / "full.parquet", {"c": ["x"]})
    for number, column in enumerate(
        (pa.array([None, 1.5]), pa.array([[], None]), pa.array([{"a": None}], pa.struct({"a": pa.int8()})))
    ):
        other = store(tmp_path / f"{number}.parquet", {"c": column}, row_group_size=1)
        for paths in ((full, other), (other, full)):
            with pytest.raises(InputError, match=r"field 'c': type .* does not fit type"):
                shuffled(*paths)
    empty = [
        store(tmp_path / f"e{n}.parquet", {"c": pa.nulls(2, kind)})
        for n, kind in enumerate((pa.int8(), pa.string()))
    ]
    with pytest.raises(InputError, match=r"field 'c': type string does not fit type int8"):
        shuffled(*empty)
