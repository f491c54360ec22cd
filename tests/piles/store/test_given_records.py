"""What a program gives to a writer comes back as it was, or is refused in one line and leaves nothing."""

import json
import math
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import UsageError
from tests.support.effort import examples
from tests.support.stores.small_stores import read_records, write

DAY, TIME, TIME_IN_ZONE = date(2026, 1, 1), datetime(2026, 1, 2, 3, 4), datetime(2026, 1, 1, tzinfo=UTC)
HOUR = time(1, tzinfo=timezone(timedelta(hours=5)))
STRUCT = pa.struct([("x", pa.int64())])


def give(data: Any, kind: pa.DataType | None = None) -> list[Any] | None:
    """Return column ``a`` of a store that data were written to, by row; None if they were refused."""
    found = give_columns(data, None if kind is None else pa.schema([("a", kind)]))
    return None if found is None else found["a"]


def give_columns(data: Any, schema: pa.Schema | None = None) -> dict[str, list[Any]] | None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with recshuf.PileWriter(store, "w", schema, piles=2) as writer:
            try:
                writer.write(data)
            except UsageError as error:
                assert "\n" not in str(error)
                assert writer.num_records == 0
                return None
        rows = read_records(store)
    names = rows["w", 0] if rows else ["a"]
    return {name: [rows["w", row][name] for row in range(len(rows))] for name in names}


def plain(value: Any) -> Any:
    """Return a value that equals only the same: truth is no number, a NaN is itself, a field without value may lack."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, float) and math.isnan(value):
        return "not a number"
    return ("truth", value) if isinstance(value, bool) else value


def check(values: list[Any], found: list[Any] | None) -> None:
    assert found is None or plain(found) == plain(values)


SCALARS = (
    st.booleans(),
    st.integers(-3, 300) | st.sampled_from([2**53 + 1, 2**63, -(2**63), 2**64]),
    st.floats(width=16) | st.sampled_from([0.1, 1e300, 2.0**53]),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from([DAY, TIME, TIME_IN_ZONE, HOUR, TIME.replace(microsecond=7)]),
)
ANY = st.recursive(
    st.none() | st.one_of(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def columns(draw: st.DrawFn) -> list[Any]:
    """Return values of one kind, or two, or of any."""
    one = st.sampled_from(SCALARS)
    values = draw(st.one_of(one.flatmap(lambda chosen: st.just(st.none() | chosen)), st.just(ANY)))
    wrap = draw(st.sampled_from([lambda value: value, lambda value: [value], lambda value: {"x": value}]))
    made = [wrap(value) for value in draw(st.lists(values, min_size=1, max_size=4))]
    return made + draw(st.lists(ANY, max_size=1))


KINDS = (
    None, pa.int64(), pa.uint64(), pa.int8(), pa.float64(), pa.string(), pa.binary(), pa.binary(2), pa.bool_(),
    pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.date32(), pa.list_(pa.int64()), pa.large_list(pa.string()),
    STRUCT, pa.list_(pa.struct([("x", pa.string())])), pa.null(),
)  # fmt: skip


@settings(max_examples=examples(240))
@given(columns(), st.sampled_from(KINDS), st.sampled_from(["dicts", "dict"]))
@example(["a", b"b"], None, "dict")
@example([[b"a", "b"]], None, "dicts")
@example([DAY, TIME], None, "dict")
@example([TIME_IN_ZONE, TIME], None, "dicts")
@example([{"b": DAY}, {"b": TIME}], None, "dict")
@example([HOUR], None, "dicts")
@example([{"x": 1}, {"x": 1, "y": 2}], STRUCT, "dicts")
@example([True], pa.int64(), "dict")
@example([5], pa.bool_(), "dict")
@example([1.5], pa.string(), "dicts")
@example([2**60 + 1], pa.float64(), "dict")
def test_values_of_python_are_exact_or_refused(
    values: list[Any], kind: pa.DataType | None, form: str
) -> None:
    check(values, give([{"a": value} for value in values] if form == "dicts" else {"a": values}, kind))


REFUSED: list[tuple[pa.DataType | None, Any]] = [
    (pa.int64(), [True]), (pa.bool_(), [5]), (pa.string(), [b"x"]), (pa.binary(), ["ü"]), (pa.int64(), ["12"]),
    (pa.int8(), [128]), (pa.uint64(), [-1]), (pa.int64(), [1.5]), (pa.int64(), [math.nan]), (pa.float32(), [1e300]),
    (pa.float16(), [2049]), (pa.timestamp("s"), [TIME.replace(microsecond=1)]), (pa.date32(), [datetime(2026, 1, 1, 5)]),
    (pa.timestamp("s", "UTC"), [TIME]), (pa.decimal128(5, 1), [Decimal("1.55")]), (pa.list_(pa.int64(), 2), [[1]]),
    (pa.struct([pa.field("x", pa.int64(), nullable=False)]), [{"x": None}]), (STRUCT, [{"y": 2}]), (None, ["a", b"b"]),
    (None, "abc"), (None, {"b": [1]}),
]  # fmt: skip


def test_values_that_would_change_are_refused() -> None:
    for kind, values in REFUSED:
        assert give({"a": values}, kind) is None
        if isinstance(values, list):
            assert give([{"a": value} for value in values], kind) is None
            assert give({"a": [values]}, kind and pa.list_(kind)) is None


@pytest.mark.parametrize("digits", [7, 8])
def test_decimals_with_more_digits_than_their_type_are_refused(digits: int) -> None:
    """Arrow makes them without a word."""
    kind = pa.decimal128(7, 1)
    roomy = pa.array([Decimal(10 ** (digits - 1)).scaleb(-1)], pa.decimal128(38, 1))
    made = pa.Array.from_buffers(kind, 1, roomy.buffers())
    for data in (pa.table({"a": made}), {"a": pa.array([{"x": 1}]).from_arrays([made], ["x"])}):
        assert (give(data) is None) == (digits == 8)


ARRAYS: list[tuple[Any, list[Any], pa.DataType | None]] = [
    (np.array([1, 0, 5]), [1, 0, 5], pa.bool_()),
    (np.array([1], np.int32), [1], pa.int64()),
    (np.array([2**40]), [2**40], pa.int32()),
    (np.array([0.1, 1e300]), [0.1, 1e300], pa.float32()),
    (np.array([2**63], np.uint64), [2**63], pa.int64()),
    (pa.array(["12"]), ["12"], pa.int64()),
    (pa.chunked_array([[1.5]]), [1.5], pa.int64()),
    (np.zeros((1, 3), np.float32), [[0.0] * 3], pa.list_(pa.float32(), 2)),
    (np.array(["a", "bc"]), ["a", "bc"], None),
    (np.array([b"ab\0cd", b"\0x"]), [b"ab\0cd", b"\0x"], None),
    (np.ma.array([1, -999, 3], mask=[0, 1, 0]), [1, None, 3], None),
    (np.ma.array([[1, -999], [3, 4]], mask=[[0, 1], [0, 0]]), [[1, None], [3, 4]], None),
    (np.array([["ab\0cd"], ["e"]]), [["ab\0cd"], ["e"]], None),
    (np.array([DAY, TIME], object), [DAY, TIME], None),
    (pd.Series([1, None], dtype="Int64"), [1, None], None),
    (pd.Series([None, 2**62 + 1], dtype="Int64").array, [None, 2**62 + 1], None),
    (pd.Series([None, 2**62 + 1], dtype="category").array, [None, 2**62 + 1], None),
    (pd.Series([None, True], dtype="boolean").array, [None, True], None),
    (pd.Series(["a", b"b"], dtype=object), ["a", b"b"], None),
    (pl.Series([None, 2**62 + 1]), [None, 2**62 + 1], None),
    (pl.Series(["v", None, "u"], dtype=pl.Categorical), ["v", None, "u"], pa.string()),
    (pl.Series([["v"], None], dtype=pl.List(pl.Enum(["u", "v"]))), [["v"], None], None),
]


def test_arrays_are_exact_or_refused() -> None:
    for array, values, kind in ARRAYS:
        check(values, give({"a": array}, kind))


VALUES = {
    "text": pa.array(["x", None, "yy"]),
    "view of text": pa.array(["x", None, "a text of many letters"], pa.string_view()),
    "large bytes": pa.array([b"x", None, b"\xff"], pa.large_binary()),
    "struct of views": pa.array([{"q": "x"}, {"q": "y"}, None], pa.struct([("q", pa.string_view())])),
    "list of lists": pa.array([[["a"], None], None, []]),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
    "nothing": pa.array([{"x": [None]}, None, {}], pa.struct([("x", pa.list_(pa.null()))])),
    "integers": pa.array([2**63, None, 0], pa.uint64()),
}
PLACES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "column": lambda array: array,
    "dictionary": lambda array: pa.DictionaryArray.from_arrays([2, 0, None, 1, 2], array),
    "list": lambda array: pa.ListArray.from_arrays([0, 2, 2, len(array)], array),
    "struct": lambda array: pa.StructArray.from_arrays([array], ["f"]),
}


def test_arrow_data_are_exact() -> None:
    """Also slices, several chunks, and types that differ in the width of offsets from those of the store."""
    for put in PLACES.values():
        arrays = {name: put(values) for name, values in VALUES.items()}
        table = pa.table(
            {n: pa.chunked_array([one, one.slice(1), one.slice(1, 1)]) for n, one in arrays.items()}
        )
        for data in (table, table.to_reader()):
            assert give_columns(data) == table.to_pydict()


TEXTS, BYTES = pa.list_(pa.string()), pa.list_(pa.binary())
OTHER_TYPES: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.string(), pa.large_string(), "ü"),
    (pa.large_binary(), pa.binary(), b"\xff"),
    (pa.list_(pa.large_string()), pa.large_list(pa.string()), ["ü"]),
    (pa.list_(pa.string(), 1), TEXTS, ["ü"]),
    (BYTES, TEXTS, ["ü"]),
    (pa.struct([("a", TEXTS)]), pa.struct([("a", pa.large_list(pa.string_view()))]), {"a": ["ü"]}),
    (pa.struct([("a", pa.string())]), pa.struct([("b", pa.string())]), {"b": "ü"}),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), [("k", 300)]),
]
"""Types of the store, other ones, and a value of these."""


def test_other_types_than_those_of_the_store_are_exact_or_refused() -> None:
    for stored, other, value in OTHER_TYPES:
        check([value, None], give(pa.table({"a": pa.array([value, None], other)}), stored))


def test_nulls_are_refused_where_a_field_takes_none_at_any_depth(tmp_path: Path) -> None:
    whole = pa.field("x", pa.int64(), nullable=False)
    for values, kind in (
        (pa.array([{"x": None}], STRUCT), pa.struct([whole])),
        (pa.array([[1, None]], pa.list_(pa.int64())), pa.list_(whole)),
        (pa.array([[1, None]], pa.list_(pa.int64(), 2)), pa.list_(whole, 2)),
        (pa.array([[{"x": None}]], pa.list_(STRUCT)), pa.list_(pa.struct([whole]))),
    ):
        assert give(pa.table({"a": values}), kind) is None
        assert give({"a": values}, kind) is None
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    dictionary = pa.DictionaryArray.from_arrays([0, 1], pa.array(["x", None]))
    with recshuf.PileWriter(tmp_path / "store", "w", schema, piles=2) as writer:
        for data in ({"a": ["x", None]}, [{"a": None}], pa.table({"a": dictionary})):
            with pytest.raises(UsageError, match=r"^column 'a' "):
                writer.write(data)
        for data in ({"a": ["y"]}, pa.table({"a": ["y"]}), pd.DataFrame({"a": ["y"]})):
            writer.write(data)
    assert list(read_records(tmp_path / "store").values()) == [{"a": "y"}] * 3


def test_what_is_no_table_is_refused() -> None:
    for data in [
        [{}, {}],
        pa.table({"a": [1]}).select([]),
        pa.table([[1], [2]], names=["a", "a"]),
        {"a": [1], None: [2]},
        [{"a": 1, 5: 2}],
        {"a": [1], "b": [1, 2]},
        7,
        [1, 2],
        pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}),
        {"a": pl.Series([object()], dtype=pl.Object)},
    ]:
        assert give(data) is None


# Samples with arrays of any number of axes: one shape becomes lists of a fixed size

GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
FIXED = pa.list_(pa.list_(pa.float32(), 3), 2)
RAGGED = pa.list_(pa.list_(pa.float32()))
SAMPLES: list[tuple[list[Any], pa.DataType]] = [
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
]


def check_samples(store: Path, *parts: list[Any], kind: pa.DataType, **options: Any) -> None:
    """Write samples in parts, and check their type and values."""
    write(store, "w", *([{"x": value} for value in part] for part in parts), **options)
    assert recshuf.PileStore(store).schema.field("x").type == kind
    values = [value for part in parts for value in part]
    found = read_records(store)
    assert [found["w", row]["x"] for row in range(len(values))] == json.loads(
        json.dumps(values, default=lambda array: array.tolist())
    )


def test_arrays_of_samples_are_kept(tmp_path: Path) -> None:
    for number, (values, kind) in enumerate(SAMPLES):
        check_samples(tmp_path / f"{number}", values, kind=kind)
    # Later arrays take the type of the store.
    for number, kind in enumerate((FIXED, RAGGED, pa.list_(pa.list_(pa.float64(), 3), 2))):
        parts, schema = ([GRID], [GRID.astype(np.float64), None]), pa.schema({"x": kind})
        check_samples(tmp_path / f"later {number}", *parts, kind=kind, schema=schema)


def test_arrays_that_do_not_fit_the_store_are_refused(tmp_path: Path) -> None:
    for number, other in enumerate((GRID[:1], GRID + 0.5, np.array([["a"]]))):
        first = GRID.astype(np.int32) if number == 1 else GRID
        with pytest.raises(UsageError, match=r"^column 'x': [^\n]*$"):
            write(tmp_path / f"{number}", "w", [{"x": first}], [{"x": other}])
