"""Files whose schemas differ become one table without loss, or the clash is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from recshuf.formats.parquet.union import FieldClash, unify_types
from tests.support.formats.parquet_tools import load, open_source, read_all, store, write_all

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
        ),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.decimal128(5, 2), pa.decimal256(50, 2), pa.decimal256(50, 2)),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
        (
            pa.struct({"a": pa.int8(), "b": pa.null()}),
            pa.struct({"b": pa.string(), "c": pa.bool_()}),
            pa.struct({"a": pa.int8(), "b": pa.string(), "c": pa.bool_()}),
        ),
    ],
    ids=str,
)
def test_types_are_unified_without_loss(left: pa.DataType, right: pa.DataType, expected: pa.DataType) -> None:
    assert unify_types(left, right) == expected
    assert set(map(str, (unify_types(right, left),))) == {str(unify_types(right, left))}
    assert unify_types(expected, left) == unify_types(expected, right) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.int64(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.bool_(), pa.int8()),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    ],
    ids=str,
)
def test_types_that_would_lose_values_clash(left: pa.DataType, right: pa.DataType) -> None:
    for one, other in ((left, right), (right, left)):
        with pytest.raises(FieldClash):
            unify_types(one, other)


WIDER = [
    (pa.int64(), pa.float64(), pa.float64()),
    (pa.int64(), pa.float32(), pa.float64()),
    (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
    (pa.int64(), pa.decimal128(5, 2), pa.decimal128(21, 2)),
    (pa.decimal128(5, 2), pa.decimal128(5, 3), pa.decimal128(6, 3)),
    (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
    (pa.int8(), pa.decimal256(5, 2), pa.decimal256(5, 2)),
    (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
    (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.float64()}), pa.struct({"a": pa.float64()})),
    (
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), pa.float64()),
        pa.map_(pa.string(), pa.float64()),
    ),
]


@pytest.mark.parametrize(("left", "right", "expected"), WIDER, ids=str)
def test_numbers_are_widened_where_that_is_asked_for(
    left: pa.DataType, right: pa.DataType, expected: pa.DataType
) -> None:
    for one, other in ((left, right), (right, left)):
        assert unify_types(one, other, widens=True) == expected
        with pytest.raises(FieldClash):
            unify_types(one, other)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.string(), pa.int64()),
        (pa.bool_(), pa.int64()),
        (pa.decimal128(5, 2), pa.float64()),
        (pa.decimal256(76, 0), pa.decimal128(10, 5)),
        (pa.timestamp("us"), pa.int64()),
    ],
    ids=str,
)
def test_other_types_are_not_widened(left: pa.DataType, right: pa.DataType) -> None:
    for one, other in ((left, right), (right, left)):
        with pytest.raises(FieldClash):
            unify_types(one, other, widens=True)


def test_widened_values_are_equal_or_refused(tmp_path: Path) -> None:
    big = 2**53
    whole = store(
        tmp_path / "a.parquet",
        {"n": pa.array([1, None, big, -big]), "u": pa.array([2**64 - 1] * 4, pa.uint64())},
    )
    broken = store(tmp_path / "b.parquet", {"n": pa.array([0.5, float("nan")]), "u": pa.array([-(2**63), 7])})
    with pytest.raises(
        InputError, match=r"b\.parquet: field 'n': type double .* give widen=True to make both double"
    ):
        recshuf.shuffle([whole, broken], tmp_path / "out.parquet")
    recshuf.shuffle([whole, broken], tmp_path / "out.parquet", widen=True, verify=True)
    found = load(tmp_path / "out.parquet")
    assert found.schema.types == [pa.float64(), pa.decimal128(20, 0)]
    assert sorted(map(str, found["n"].to_pylist())) == sorted(
        ["1.0", "None", f"{big}.0", f"-{big}.0", "0.5", "nan"]
    )
    assert sorted(found["u"].to_pylist()) == [-(2**63), 7, *[2**64 - 1] * 4]
    assert recshuf.verify([whole, broken], tmp_path / "out.parquet", widen=True).is_equal
    store(tmp_path / "a.parquet", {"n": pa.array([big + 1]), "u": pa.array([0], pa.uint64())})
    with pytest.raises(InputError, match=rf"a\.parquet: row group 0, row 0: .*{big + 1}"):
        recshuf.shuffle([whole, broken], tmp_path / "late.parquet", widen=True)
    assert not (tmp_path / "late.parquet").exists()


def test_files_with_other_columns_orders_and_types_become_one_table(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"n": pa.array([1], pa.int8()), "t": ["x"]})
    second = store(
        tmp_path / "b.parquet", {"extra": [True], "t": pa.array(["y"]).dictionary_encode(), "n": [2]}
    )
    third = store(tmp_path / "c.parquet", {"t": pa.nulls(1)})
    table = read_all(open_source(first, second, third))
    assert table.schema.names == ["n", "t", "extra"]
    assert table.to_pylist() == [
        {"n": 1, "t": "x", "extra": None},
        {"n": 2, "t": "y", "extra": True},
        {"n": None, "t": None, "extra": None},
    ]


def test_a_required_column_that_is_missing_elsewhere_becomes_nullable(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    pq.write_table(pa.table({"a": [1], "b": [1]}, schema=schema), tmp_path / "a.parquet")
    store(tmp_path / "b.parquet", {"b": [2]})
    source = open_source(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert source.schema.field("a").nullable
    written = load(write_all(source, tmp_path / "out.parquet"))
    assert written["a"].to_pylist() == [1, None]


def test_a_clash_names_both_files_the_field_and_both_types(tmp_path: Path) -> None:
    store(tmp_path / "a.parquet", {"s": pa.array([{"x": 1}])})
    store(tmp_path / "b.parquet", {"s": pa.array([{"x": "one"}])})
    with pytest.raises(InputError, match=r"b\.parquet: field 's\.x': type string .* int64 in a\.parquet"):
        open_source(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_a_time_that_does_not_fit_the_finer_unit_is_an_error(tmp_path: Path) -> None:
    store(tmp_path / "a.parquet", {"t": pa.array([1], pa.timestamp("ns"))})
    store(tmp_path / "b.parquet", {"t": pa.array([2**62], pa.timestamp("ms"))})
    with pytest.raises(InputError, match=r"b\.parquet.*row 0"):
        read_all(open_source(tmp_path / "a.parquet", tmp_path / "b.parquet"))
