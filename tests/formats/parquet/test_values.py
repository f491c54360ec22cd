"""Values, types and metadata that Parquet can hold come through as they are."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.formats.parquet_tools import holds_the_same, load, open_source, store, write_all

if TYPE_CHECKING:
    from pathlib import Path

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
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
}


def test_every_type_metadata_and_field_id_survive(tmp_path: Path) -> None:
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": str(index + 7), "note": name})
        for index, (name, array) in enumerate(EVERY_TYPE.items())
    ]
    schema = pa.schema(fields, metadata={"key": "value", "pandas": json.dumps({"columns": []})})
    original = pa.Table.from_arrays(list(EVERY_TYPE.values()), schema=schema)
    pq.write_table(original, tmp_path / "in.parquet", use_compliant_nested_type=False)
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    before, after = load(tmp_path / "in.parquet"), load(written)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.schema.field("labels").type == EVERY_TYPE["labels"].type
    assert holds_the_same(before, after)


def test_metadata_that_the_stored_arrow_schema_lacks_survives(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"added": "later"})
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert pq.read_metadata(written).metadata[b"added"] == b"later"


def test_columns_of_one_name_and_invalid_utf8_pass_through(tmp_path: Path) -> None:
    bad = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    pq.write_table(pa.Table.from_arrays([bad, pa.array([1, 2])], ["a", "a"]), tmp_path / "in.parquet")
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    after = load(written)
    assert after.schema.names == ["a", "a"]
    assert after.column(0).cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"]
    assert after.column(1).to_pylist() == [1, 2]


def test_an_extension_type_nobody_registered_survives(tmp_path: Path) -> None:
    metadata = {"ARROW:extension:name": "some.type", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([pa.field("e", pa.int64(), metadata=metadata)])
    pq.write_table(pa.table([pa.array([1])], schema=schema), tmp_path / "in.parquet")
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert load(written).schema.field("e").metadata[b"ARROW:extension:name"] == b"some.type"


def test_the_order_of_ordered_categories_survives(tmp_path: Path) -> None:
    sizes = pa.array(["small", "medium", "large", "unused"])
    columns = pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 1], pa.int8()), sizes, ordered=True)
    store(tmp_path / "in.parquet", {"size": columns})
    written = load(write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet"))
    assert written.schema == load(tmp_path / "in.parquet").schema
    assert written.schema.field("size").type.ordered
    assert written["size"].chunk(0).dictionary.to_pylist() == sizes.to_pylist()
    assert written["size"].to_pylist() == columns.to_pylist()
