"""What a program gives to a writer is stored as it is, or refused with the column and the field."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
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


def rows(*values: Any) -> list[dict[str, Any]]:
    return [{"a": value} for value in values]


STRUCT = pa.struct([("x", pa.int64())])
FIRST = {
    "struct": (STRUCT, {"x": 1}, {"x": 1, "y": 2}, "a.y"),
    "list": (pa.list_(STRUCT), [{"x": 1}], [{"x": 2}, {"x": 1, "y": 2}], "a.y"),
    "fixed list": (pa.list_(STRUCT, 1), [{"x": 1}], [{"y": 2}], "a.y"),
    "nested": (
        pa.struct([("b", pa.large_list(STRUCT))]),
        {"b": [{"x": 1}]},
        {"b": [{"x": 1, "z": None}]},
        "a.b.z",
    ),
}


@pytest.mark.parametrize("case", FIRST)
@pytest.mark.parametrize("form", ["dicts", "dict"])
@pytest.mark.parametrize("given", ["schema", "first"])
def test_a_new_field_in_a_struct_is_refused_by_its_name(
    tmp_path: Path, case: str, form: str, given: str
) -> None:
    kind, first, later, field = FIRST[case]
    make = rows if form == "dicts" else lambda *values: {"a": list(values)}
    with recshuf.PileWriter(
        tmp_path / "s", "w", pa.schema([("a", kind)]) if given == "schema" else None
    ) as w:
        w.write(make(first))
        with pytest.raises(UsageError, match=f"^column 'a': field '{field}' is not in the store; "):
            w.write(make(first, later))
    assert recshuf.PileStore(tmp_path / "s").num_records == 1


def test_a_new_field_is_refused_in_an_update(tmp_path: Path) -> None:
    recshuf.PileWriter(tmp_path / "s", "start", pa.schema([("a", STRUCT)]), piles=2).close()
    with (
        pytest.raises(UsageError, match=r"field 'a\.y' is not in the store"),
        recshuf.PileStore(tmp_path / "s").update() as update,
    ):
        update.append(rows({"x": 1, "y": 2}))


TAKEN: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "unsigned integers": (pa.uint64(), [2**64 - 1, 0, None]),
    "unsigned integers in lists": (pa.large_list(pa.struct([("x", pa.uint64())])), [[{"x": 2**63}], None]),
    "small integers": (pa.int8(), [-128, 127, None]),
    "integers of 16 bits": (pa.uint16(), [0, 65_535]),
    "integers as floats": (pa.float64(), [1, 2**53]),
    "whole floats": (pa.int64(), [1.0, None]),
    "text": (pa.large_string(), ["ü", None]),
    "bytes": (pa.large_binary(), [b"\xff", None]),
    "bytes of one length": (pa.binary(2), [b"\xff\x00"]),
    "truth": (pa.bool_(), [True, False, None]),
    "infinite": (pa.float32(), [math.inf, -math.inf, 0.5]),
    "nothing": (pa.struct([("x", pa.list_(pa.int8()))]), [None, {"x": None}, {}]),
    "lists": (pa.large_list(pa.float32()), [[0.5, None], None, []]),
    "fixed lists": (pa.list_(pa.int16(), 2), [[1, 2], None]),
    "structs": (
        pa.struct([("y", pa.int8()), ("x", pa.string())]),
        [{"x": "a", "y": 1}, None, {"x": None}],
    ),
    "deep": (
        pa.list_(pa.struct([("x", pa.list_(pa.uint8()))])),
        [[{"x": [1]}, None, {"x": []}], [], None],
    ),
    "times": (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 31, 12, tzinfo=UTC)]),
    "seconds": (pa.timestamp("s"), [datetime(2026, 1, 31, 12, 5, 7)]),
    "dates": (pa.date32(), [date(2026, 1, 31)]),
    "decimals": (pa.decimal128(10, 4), [Decimal("1.5")]),
}


def fill(kind: pa.DataType, value: Any) -> Any:
    """Return the value with None for each field that it lacks."""
    if isinstance(value, list):
        return [fill(kind.value_type, one) for one in value]
    if isinstance(value, dict):
        return {field.name: fill(field.type, value.get(field.name)) for field in kind}
    return value


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("form", ["dicts", "dict"])
def test_values_of_python_come_back_as_they_were(tmp_path: Path, case: str, form: str) -> None:
    kind, values = TAKEN[case]
    data: Any = rows(*values) if form == "dicts" else {"a": list(values)}
    empty = pa.table({"a": pa.array([], kind)})
    assert write(tmp_path / "s", empty, data, kind=kind) == [fill(kind, value) for value in values]


REFUSED: dict[str, tuple[pa.DataType, Any]] = {
    "truth of an integer": (pa.bool_(), 5),
    "integer of truth": (pa.int64(), True),
    "text of a float": (pa.string(), 1.5),
    "text of bytes": (pa.string(), b"x"),
    "bytes of text": (pa.binary(), "ü"),
    "integer of text": (pa.int64(), "12"),
    "small integer": (pa.int8(), 128),
    "negative": (pa.uint64(), -1),
    "fraction": (pa.int64(), 1.5),
    "not a number": (pa.int64(), math.nan),
    "infinite": (pa.float32(), 1e300),
    "infinite half": (pa.float16(), 70000.0),
    "integer in float32": (pa.float32(), 16_777_217),
    "integer in float16": (pa.float16(), 2049),
    "large integer in float16": (pa.float16(), 70000),
    "integer in float64": (pa.float64(), 2**60 + 1),
    "microseconds": (pa.timestamp("s"), datetime(2026, 1, 1, 1, 1, 1, 1)),
    "no zone": (pa.timestamp("s", "UTC"), datetime(2026, 1, 1)),
    "a zone": (pa.timestamp("s"), datetime(2026, 1, 1, tzinfo=UTC)),
    "time of a date": (pa.date32(), datetime(2026, 1, 1, 5)),
    "decimal": (pa.decimal128(5, 1), Decimal("1.55")),
    "short list": (pa.list_(pa.int64(), 2), [1]),
    "null where none may be": (pa.struct([pa.field("x", pa.int64(), nullable=False)]), {"x": None}),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(
    "wrap", [lambda kind, value: (kind, value), lambda kind, value: (pa.list_(kind), [value])]
)
def test_values_that_would_change_are_refused(tmp_path: Path, case: str, wrap: Any) -> None:
    kind, value = wrap(*REFUSED[case])
    for number, data in enumerate((rows(value), {"a": [value]})):
        with pytest.raises(UsageError, match=r"^column 'a") as caught:
            write(tmp_path / f"s{number}", data, kind=kind)
        assert "; " in str(caught.value)
        assert "\n" not in str(caught.value)


def test_floats_of_python_are_rounded_in_a_column_of_short_floats(tmp_path: Path) -> None:
    assert write(tmp_path / "s", rows(0.1), {"a": [0.1]}, kind=pa.float32()) == [float(np.float32(0.1))] * 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float32(), np.array([0.1, 1e300])),
        (pa.float32(), np.array([0.5])),
        (pa.bool_(), np.array([1, 0, 5])),
        (pa.string(), np.array([1.5])),
        (pa.int64(), np.array([1], np.int32)),
        (pa.int64(), pa.array(["12"])),
        (pa.int64(), pa.chunked_array([[1.0]])),
        (pa.list_(pa.float32(), 2), np.zeros((1, 2))),
        (pa.list_(pa.float32(), 2), np.zeros((1, 3), np.float32)),
    ],
)
def test_arrays_have_types_of_their_own_as_tables_have(
    tmp_path: Path, kind: pa.DataType, values: Any
) -> None:
    with pytest.raises(UsageError, match=r"^column 'a' is .*, and .* in the store; cast it$"):
        write(tmp_path / "s", {"a": values}, kind=kind)


@pytest.mark.parametrize("values", [np.array(["a", "bc"]), np.array(["a", "bc"], object)])
def test_arrays_of_text_and_objects_hold_values_of_python(tmp_path: Path, values: Any) -> None:
    assert write(tmp_path / "s", {"a": values}, kind=pa.large_string()) == ["a", "bc"]


@pytest.mark.parametrize(
    ("first", "later", "field"),
    [
        (None, 1, "'a' is int64, and null in the store"),
        ([], [1], "'a' is int64, and null in the store"),
        ({"x": None}, {"x": "b"}, "'a.x' is string, and null in the store"),
    ],
)
def test_a_column_that_began_without_values_names_the_schema_as_remedy(
    tmp_path: Path, first: Any, later: Any, field: str
) -> None:
    with pytest.raises(UsageError, match=f"^column {field}, .*; begin .* schema=") as caught:
        write(tmp_path / "s", rows(first), rows(later))
    assert "\n" not in str(caught.value)


def test_a_table_is_refused_by_a_column_that_began_without_values(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^column 'a' is int64, and null in the store, .*; begin .* schema="
    ):
        write(tmp_path / "s", pa.table({"a": [None]}), pa.table({"a": [1]}))


@pytest.mark.parametrize("schema", ["none", {"a": "int64"}, 5, [("a", pa.int64())]])
def test_a_schema_of_another_kind_is_refused(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(UsageError, match=r"^schema=.*: give a pyarrow\.Schema"):
        recshuf.PileWriter(tmp_path / "s", "w", schema)
    assert not (tmp_path / "s").exists()


DAY, TIME, TIME_IN_ZONE = date(2026, 1, 1), datetime(2026, 1, 2, 3, 4), datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ([DAY, TIME], "a"),
        ([TIME_IN_ZONE, TIME], "a"),
        ([None, TIME, TIME_IN_ZONE], "a"),
        ([[DAY, TIME]], "a"),
        ([None, [DAY], (), [None, TIME]], "a"),
        ([[[DAY]], [[TIME]]], "a"),
        ([[TIME_IN_ZONE, TIME]], "a"),
        ([np.array([DAY, TIME], object)], "a"),
        (np.array([[DAY, TIME]], object), "a"),
        ([{"b": DAY}, {"b": TIME}], "a.b"),
        ([{"b": TIME}, None, {}, {"b": DAY}], "a.b"),
        ([{"b": 1, "c": [{"d": DAY}]}, {"c": [{"d": TIME}, None]}], "a.c.d"),
    ],
)
@pytest.mark.parametrize("form", ["dicts", "dict"])
def test_dates_and_times_are_not_mixed(tmp_path: Path, values: Any, path: str, form: str) -> None:
    data: Any = rows(*values) if form == "dicts" else {"a": values}
    with (
        recshuf.PileWriter(tmp_path / "s", "a", piles=2) as writer,
        pytest.raises(UsageError, match=f"^column '{path}' mixes"),
    ):
        writer.write(data)


def test_nested_dates_and_times_of_one_kind_are_taken(tmp_path: Path) -> None:
    value = {
        "days": [DAY, None, DAY],
        "times": (TIME, TIME),
        "array": np.array([TIME, TIME], "datetime64[s]"),
    }
    found = write(tmp_path / "s", rows(value, {"days": None}, None))
    times = [TIME, TIME]
    assert found == [
        {"days": [DAY, None, DAY], "times": times, "array": times},
        {"days": None, "times": None, "array": None},
        None,
    ]


EXACT = pd.Timestamp("2026-01-31 12:00:00.123456789", tz="UTC")
NANOSECONDS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "time": (pa.timestamp("ns", "UTC"), EXACT, EXACT),
    "duration": (pa.duration("ns"), pd.Timedelta(1, "ns"), pd.Timedelta(1, "ns")),
    "list": (pa.list_(pa.timestamp("ns", "UTC")), [None, EXACT], [None, EXACT]),
    "struct": (
        pa.struct([("x", pa.duration("ns"))]),
        {"x": pd.Timedelta(5, "ns")},
        {"x": pd.Timedelta(5, "ns")},
    ),
}


@pytest.mark.parametrize("case", NANOSECONDS)
@pytest.mark.parametrize("has_schema", [True, False])
def test_nanoseconds_are_kept(tmp_path: Path, case: str, has_schema: bool) -> None:
    kind, value, expected = NANOSECONDS[case]
    found = write(tmp_path / "s", rows(value), {"a": [value]}, kind=kind if has_schema else None)
    assert found == [expected, expected]


def test_nanoseconds_are_refused_where_the_store_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^column 'a' is .*, and its values would change"):
        write(tmp_path / "s", rows(EXACT), kind=pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.ma.array([1, -999, 3], mask=[0, 1, 0]), [1, None, 3]),
        (np.ma.array([[1, -999], [3, 4]], mask=[[0, 1], [0, 0]]), [[1, None], [3, 4]]),
        (np.ma.array(["x", "y"], mask=[1, 0]), [None, "y"]),
        (np.array([b"ab\0cd", b"\0x"]), [b"ab\0cd", b"\0x"]),
        (np.array([["ab\0cd"], ["e"]]), [["ab\0cd"], ["e"]]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pl.Series([None, 2**62 + 1]), [None, 2**62 + 1]),
    ],
)
def test_arrays_of_libraries_come_back_as_they_were(tmp_path: Path, values: Any, expected: list[Any]) -> None:
    assert write(tmp_path / "s", {"a": values}) == expected


def test_arrays_of_libraries_may_change_afterwards(tmp_path: Path) -> None:
    given = [np.ma.array([1, 2], mask=[0, 1]), pd.Series([1, None], dtype="Int64")]
    with recshuf.PileWriter(tmp_path / "s", "w", piles=1) as writer:
        for values in given:
            writer.write({"a": values})
            values[0] = 9
    (batch,) = recshuf.PileLoader(tmp_path / "s", 4, output="arrow")
    assert sorted(batch["a"].to_pylist(), key=str) == [1, 1, None, None]


@pytest.mark.parametrize(
    "data", [{"a": np.array([1])}, pa.table({"a": [1]}), {"a": [1]}, pd.DataFrame({"a": [1]})]
)
def test_data_without_nulls_fits_a_column_that_takes_none(tmp_path: Path, data: Any) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with recshuf.PileWriter(tmp_path / "s", "w", schema) as writer:
        writer.write(data)
        with pytest.raises(UsageError, match=r"^column 'a' has a null where the store takes none"):
            writer.write(pa.table({"a": pa.array([None], pa.int64())}))
    assert recshuf.PileStore(tmp_path / "s").num_records == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_and_bytes_may_be_large_or_not(tmp_path: Path, kind: pa.DataType) -> None:
    other, value = (pa.large_string(), "ü") if "string" in str(kind) else (pa.large_binary(), b"\xff")
    given = [pl.DataFrame({"a": [value]}), pa.table({"a": pa.array([value, None], other)})]
    assert write(tmp_path / "s", *given, kind=kind) == [value, value, None]
    with pytest.raises(UsageError, match="cast it"):
        write(tmp_path / "t", *given, kind=pa.binary(1))


@pytest.mark.parametrize("data", [[{}, {}], pa.table({"a": [1]}).select([])])
def test_records_without_columns_are_refused(tmp_path: Path, data: Any) -> None:
    with recshuf.PileWriter(tmp_path / "s", "w") as writer:
        with pytest.raises(UsageError, match="the records have no columns"):
            writer.write(data)
        writer.write({"a": [1]})
    assert recshuf.PileStore(tmp_path / "s").num_records == 1


@pytest.mark.parametrize("value", ["abc", b"abc", {"b": [1]}])
def test_a_column_that_is_one_value_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^column 'a' is one value of type .*; give a list"):
        write(tmp_path / "s", {"a": value})


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([[1], [2], [3]], names=["a", "b", "a"])
    for given, schema in ((table, None), (table.to_batches()[0], table.schema), ({"a": [1]}, table.schema)):
        with (
            pytest.raises(
                UsageError, match=r"^column 'a': comes 2 times; give each column a name of its own$"
            ),
            recshuf.PileWriter(tmp_path / "s", "w", schema=schema) as writer,
        ):
            writer.write(given)


def test_a_table_is_a_column_of_structs(tmp_path: Path) -> None:
    assert write(tmp_path / "s", {"a": pa.table({"b": [1, None]})}) == [{"b": 1}, {"b": None}]


def test_errors_of_other_libraries_name_the_column(tmp_path: Path) -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("needs a gradient")

    with pytest.raises(UsageError, match=r"^column 'a': needs a gradient; "):
        write(tmp_path / "s", {"a": Broken()})
