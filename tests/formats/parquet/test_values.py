"""Values, types and metadata that Parquet can hold come through as they are."""

import datetime
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import WriteOptions
from tests.support.effort import mostly_slow
from tests.support.formats.decimal_tools import make_decimals
from tests.support.formats.parquet_tools import (
    READS_NULL_VECTORS,
    convert,
    label,
    load,
    open_source,
    shuffled,
    store,
    write_all,
)

EVERY_TYPE: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-1, None, 3], pa.int8()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "half": pa.array(np.array([1.5, math.nan, -0.0], np.float16)),
    "double": pa.array([math.nan, -math.inf, -0.0]),
    "string": pa.array(["", None, "\u2028\x00é"]),
    "large": pa.array(["a", None, "b"], pa.large_string()),
    "fixed": pa.array([b"abc", None, b"\xff\x00x"], pa.binary(3)),
    "decimal": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal128(5, 2)),
    "decimal256": pa.array([Decimal(10**50), None, Decimal(1)], pa.decimal256(60, 0)),
    "date": pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "time": pa.array([1, None, 2], pa.time64("ns")),
    "zoned": pa.array([1, None, -1], pa.timestamp("ns", "Europe/Berlin")),
    "naive": pa.array([1, None, -1], pa.timestamp("ms")),
    "duration": pa.array([1, None, -1], pa.duration("us")),
    "null": pa.nulls(3),
    "labels": pa.array(["x", None, "x"]).dictionary_encode(),
    "list of labels": pa.array([["x"], None, ["y", "x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "struct": pa.array([{"a": 1, "b": [None, "q"]}, None, {"a": None, "b": []}]),
    "tensor": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "large list": pa.array([[[1]], None, [[], None]], pa.large_list(pa.list_(pa.int64()))),
    "list of tensors": pa.array([[[1, 2]], None, []], pa.list_(pa.list_(pa.int16(), 2))),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
}


def test_every_type_metadata_and_field_id_survive(tmp_path: Path) -> None:
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": str(index + 7), "note": name})
        for index, (name, array) in enumerate(EVERY_TYPE.items())
    ]
    schema = pa.schema(fields, metadata={"key": "value", "pandas": json.dumps({"columns": []})})
    original = pa.Table.from_arrays(list(EVERY_TYPE.values()), schema=schema)
    with pq.ParquetWriter(tmp_path / "in.parquet", schema, use_compliant_nested_type=False) as writer:
        writer.write_table(original)
        writer.add_key_value_metadata({"added": "later"})  # which the stored schema of Arrow lacks
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert pq.read_metadata(written).metadata[b"added"] == b"later"
    before, after = load(tmp_path / "in.parquet"), load(written)
    assert after.schema.metadata == {b"added": b"later", **before.schema.metadata}
    assert after.schema.remove_metadata().equals(before.schema.remove_metadata())
    assert [field.metadata for field in after.schema] == [field.metadata for field in before.schema]
    assert after.schema.field("labels").type == EVERY_TYPE["labels"].type
    assert repr(after.to_pylist()) == repr(before.to_pylist())  # as NaN is no number
    made = convert(original, tmp_path / "made.parquet")
    assert repr(load(made).to_pylist()) == repr(original.to_pylist())
    assert pq.read_metadata(made).metadata[b"key"] == b"value"


def labels(indices: list[int | None], values: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values), ordered=True)


def test_the_order_of_ordered_categories_survives(tmp_path: Path) -> None:
    """In an order that fits those of all row groups and files, also where columns move."""
    sizes = [["small", "medium", "large", "unused"], ["medium", "large"], ["huge", "small"]]
    columns = [labels([2, None, 0, 1], sizes[0]), labels([1, 0], sizes[1]), labels([0, None, 1], sizes[2])]
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    tables = [pa.table({"n": range(len(column)), "size": column}) for column in columns]
    with pq.ParquetWriter(first, tables[0].schema) as writer:
        for table in tables[:2]:
            writer.write_table(table)
    store(second, tables[2])
    for columns_kept in (("n", "size"), ("size", "n")):
        written = load(
            write_all(
                open_source(first, second, columns=columns_kept), tmp_path / f"{columns_kept[0]}.parquet"
            )
        )
        assert written.schema.names == list(columns_kept)
        kind = written.schema.field("size").type
        assert kind.ordered
        assert kind == load(first).schema.field("size").type
        assert written["size"].chunk(0).dictionary.to_pylist() == ["huge", *sizes[0]]
        assert written["size"].to_pylist() == [value for column in columns for value in column.to_pylist()]


def test_contrary_orders_of_categories_are_said(tmp_path: Path) -> None:
    first = store(tmp_path / "1.parquet", {"s": labels([0, 1], ["low", "high"])})
    for order, expected, is_contrary in (
        (["low", "mid", "more", "high", "top"], ["low", "mid", "more", "high", "top"], False),
        (["high", "mid", "low"], ["low", "high", "mid"], True),
    ):
        second = store(tmp_path / "2.parquet", {"s": labels([0, 1, 2], order)})
        source = open_source(first, second)
        assert load(shuffled(first, second))["s"].chunk(0).dictionary.to_pylist() == expected
        assert [("2.parquet: field 's'" in note) for note in source.notes] == [True] * is_contrary


def vector(**options: Any) -> pa.Field:
    return pa.field("v", pa.list_(pa.int16(), 2), **options)


@pytest.mark.skipif(
    not READS_NULL_VECTORS, reason="older versions of pyarrow read no null lists of a fixed size"
)
@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([vector(nullable=False)]),
        pa.struct([pa.field("v", pa.struct([vector(nullable=False)]), nullable=False)]),
    ],
)
def test_null_structs_with_required_lists_of_a_fixed_size_read_back(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """Nulls of a caller, and of a file that lacks the structs."""
    value = {"v": {"v": [1, 2]}} if pa.types.is_struct(kind.field(0).type) else {"v": [1, 2]}
    rows = [value, None, value]
    given = pa.table({"row": [0, 1, 2], "s": pa.array(rows, kind)})
    recshuf.shuffle(given, tmp_path / "given.parquet", verify=True)
    full = store(tmp_path / "full.parquet", given.filter([True, False, True]))
    lacking = store(tmp_path / "lacking.parquet", {"row": [1]})
    for output in (tmp_path / "given.parquet", shuffled(full, lacking)):
        assert load(output).sort_by("row")["s"].to_pylist() == rows
    with recshuf.PileWriter(tmp_path / "store", "given", given.schema, 1) as writer:
        writer.write(given)
    recshuf.window(tmp_path / "store", append=full)  # has the type of the store
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.parquet", verify=True)
    assert load(tmp_path / "gathered.parquet")["s"].null_count == 1


# Decimals with more digits than Parquet has room for, which became other numbers

WRONG = make_decimals([100, 9_999_900], pa.decimal128(5, 2))
SURPLUS = {
    "plain": WRONG,
    "list": pa.ListArray.from_arrays([0, 0, 2], WRONG),
    "struct": pa.StructArray.from_arrays([WRONG], ["d"]),
    "ordered": pa.DictionaryArray.from_arrays(pa.array([0, 1]), WRONG, ordered=True),
}


def test_surplus_digits_are_refused(tmp_path: Path) -> None:
    for form, column in SURPLUS.items():
        with pytest.raises(
            ConversionError, match=r"'odd': .*99999\.00 has more digits than decimal128.*; cast"
        ):
            convert(pa.table({"fine": ["x", "y"], "odd": column}), tmp_path / f"{form}.parquet")


def test_types_that_parquet_lacks_are_named_before_a_file_is_made() -> None:
    for kind in (
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.decimal128(5, -2),
    ):
        schema = pa.schema([("fine", pa.int8()), ("odd", kind)])
        with pytest.raises(ConversionError, match="'odd'"):
            FORMAT.open_target(schema, None, WriteOptions())


def test_values_in_coarser_units_than_parquet_has_are_kept_or_refused(tmp_path: Path) -> None:
    """Arrow would bring them to the next unit unchecked."""
    times = pa.table(
        {
            "stamp": pa.array([-7, None, 2**40], pa.timestamp("s")),
            "zoned": pa.array([-7, None, 2**40], pa.timestamp("s", "Europe/Berlin")),
            "time": pa.array([0, None, 86_399], pa.time32("s")),
            "day": pa.array([0, None, 86_400_000], pa.date64()),
        }
    )
    found = load(convert(times, tmp_path / "out.parquet"))
    held = [pa.timestamp("ms"), pa.timestamp("ms", "Europe/Berlin"), pa.time32("ms"), pa.date32()]
    assert found.equals(times.cast(pa.schema(zip(times.column_names, held, strict=True))))
    with pytest.raises(ConversionError, match="'stamp'"):
        convert(pa.table({"stamp": pa.array([2**60], pa.timestamp("s"))}), tmp_path / "late.parquet")


# Indices of dictionaries stay where they have room for the values of all inputs, and else get wider

ROWS = 60
INDICES = {pa.int8(): 128, pa.uint8(): 256, pa.int16(): 1 << 15, pa.uint16(): 1 << 16}
"""Narrow index types, and the number of values that each has room for."""


def encode(kind: pa.DataType, numbers: range) -> pa.Array:
    values = pa.array([f"value {number}" for number in numbers]).cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(numbers)), kind.index_type), values, ordered=kind.ordered
    )


def as_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def as_map(values: pa.Array) -> pa.Array:
    keys = pa.array(["k"] * len(values))
    return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values)


FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda values: values,
    "struct": lambda values: pa.StructArray.from_arrays([values, values.indices], ["a", "b"]),
    "list": as_list,
    "map": as_map,
    "deep": lambda values: as_list(pa.StructArray.from_arrays([values.indices, as_map(values)], ["n", "m"])),
    "fixed": lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
}


def write(path: Path, *columns: pa.Array, **options: Any) -> Path:
    """Write a row group of each column."""
    tables = [pa.table({"n": range(len(column)), "c": column}) for column in columns]
    with pq.ParquetWriter(path, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table)
    return path


def find_labels(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return [kind]
    return [found for place in range(kind.num_fields) for found in find_labels(kind.field(place).type)]


def list_texts(column: pa.ChunkedArray) -> list[str]:
    return sorted(map(repr, column.to_pylist()))


@pytest.mark.parametrize(
    ("form", "is_one_file"), [(form, number % 2 > 0) for number, form in enumerate(FORMS)]
)
def test_an_index_without_room_for_the_values_of_all_inputs_is_widened(
    tmp_path: Path, form: str, is_one_file: bool
) -> None:
    columns = [FORMS[form](encode(label(pa.int8()), range(at, at + ROWS))) for at in (0, ROWS, 2 * ROWS)]
    paths = (
        [write(tmp_path / "in.parquet", *columns)]
        if is_one_file
        else [write(tmp_path / f"{n}.parquet", column) for n, column in enumerate(columns)]
    )
    written = load(shuffled(*paths))
    assert find_labels(written.schema.field("c").type) == [label(pa.int32())]
    assert list_texts(written["c"]) == list_texts(pa.chunked_array(columns))


@pytest.mark.parametrize(
    ("index", "ordered"),
    mostly_slow(
        zip(INDICES, (False, True, False, True), strict=True),
        *((pa.int8(), False), (pa.uint8(), True), (pa.int16(), False)),
    ),
)
def test_an_index_with_room_for_all_values_stays(tmp_path: Path, index: pa.DataType, ordered: bool) -> None:
    """The dictionaries of two files overlap; their union has just room, and then one value too many."""
    kind, room = label(index, ordered=ordered), INDICES[index]
    first = write(tmp_path / "1.parquet", encode(kind, range(room)))
    for most, expected in ((room, kind), (room + 1, label(pa.int32(), ordered=ordered))):
        paths = [first, write(tmp_path / "2.parquet", encode(kind, range(most - 100, most)))]
        written = load(shuffled(*paths))
        assert written.schema.field("c").type == expected
        assert len(set(written["c"].to_pylist())) == most


def test_values_are_counted_in_chunks_that_gave_up_their_dictionaries(tmp_path: Path) -> None:
    parts = [encode(label(pa.int8()), range(at, at + ROWS)) for at in (0, ROWS, 2 * ROWS)]
    paths = [
        write(tmp_path / f"{n}.parquet", pa.chunked_array([*parts[:1] * 300, part]))
        for n, part in enumerate(parts[1:])
    ]
    for given, index in ((paths[:1] * 2, pa.int8()), (paths, pa.int32())):
        assert load(shuffled(*given)).schema.field("c").type == label(index)


def test_a_store_is_gathered_with_room_for_all_also_when_it_has_grown(tmp_path: Path) -> None:
    columns = [encode(label(pa.int8()), range(at, at + ROWS)) for at in (0, ROWS, 2 * ROWS)]
    paths = [write(tmp_path / f"{n}.parquet", column) for n, column in enumerate(columns)]
    recshuf.scatter(paths, tmp_path / "whole")
    recshuf.scatter(paths[0], tmp_path / "grown")
    recshuf.gather(tmp_path / "grown", tmp_path / "first.parquet")
    assert load(tmp_path / "first.parquet").schema == load(paths[0]).schema
    for path in paths[1:]:
        with recshuf.PileStore(tmp_path / "grown").update() as update:
            update.append(path)
    for name in ("whole", "grown"):
        recshuf.gather(tmp_path / name, tmp_path / f"{name}.parquet")
        written = load(tmp_path / f"{name}.parquet")
        assert written.schema.field("c").type == label(pa.int32()), name
        assert list_texts(written["c"]) == list_texts(pa.chunked_array(columns))
