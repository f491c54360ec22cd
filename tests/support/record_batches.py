"""Schemas of every kind, and batches of records of them."""

import numpy as np
import pyarrow as pa

from recshuf.records.batch import empty_rows

FLAT = {
    "lines": pa.schema([pa.field("a", pa.large_binary(), nullable=False)]),
    "fixed": pa.schema([pa.field("a", pa.binary(3), nullable=False)]),
    "no-width": pa.schema([pa.field("a", pa.binary(0), nullable=False)]),
    "both": pa.schema(
        [
            pa.field("a", pa.binary(5), nullable=False),
            pa.field("b", pa.large_binary(), nullable=False),
            pa.field("c", pa.large_binary(), nullable=False, metadata={"key": "value"}),
            pa.field("d", pa.binary(1), nullable=False),
        ],
        {"schema": "metadata"},
    ),
}
OTHER = {
    "numbers": pa.schema({"a": pa.int64(), "b": pa.bool_(), "c": pa.float16()}),
    "strings": pa.schema({"a": pa.string(), "b": pa.large_string()}),
    "nested": pa.schema(
        {"a": pa.list_(pa.struct({"x": pa.int8(), "y": pa.string()})), "b": pa.map_(pa.string(), pa.int32())}
    ),
    "dictionary": pa.schema({"a": pa.dictionary(pa.int8(), pa.string()), "b": pa.int32()}),
    "nested-dictionary": pa.schema(
        {
            "a": pa.list_(pa.dictionary(pa.int32(), pa.string())),
            "b": pa.struct({"x": pa.dictionary(pa.int16(), pa.large_string())}),
        }
    ),
    "times": pa.schema({"a": pa.timestamp("us", "UTC"), "b": pa.decimal128(20, 3), "c": pa.date32()}),
    "nothing": pa.schema({"a": pa.null()}),
    "no-columns": pa.schema([], {"schema": "metadata"}),
}


def values_of(kind: pa.DataType, count: int) -> list[object]:
    """Return values of any type that OTHER uses, with nulls and repetitions."""
    if pa.types.is_dictionary(kind):
        return values_of(kind.value_type, count)
    made: list[object] = [None] * count
    for k in range(count):
        if k % 4 == 3 or pa.types.is_null(kind):
            continue
        if pa.types.is_struct(kind):
            made[k] = {child.name: values_of(child.type, k % 3 + 1)[-1] for child in kind}
        elif pa.types.is_map(kind):
            made[k] = [("k", k), ("l", None)][: k % 3]
        elif pa.types.is_list(kind):
            made[k] = values_of(kind.value_type, k % 6)
        elif pa.types.is_boolean(kind):
            made[k] = k % 3 == 0
        elif pa.types.is_float16(kind):
            made[k] = np.float16(k / 4)
        elif pa.types.is_temporal(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            made[k] = k % 100
        else:
            made[k] = "ä" * (k % 5)
    return made


def make_batch(schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not len(schema):
        return empty_rows(schema, count)
    arrays = []
    for field in schema:
        if field.type in (pa.large_binary(), pa.binary(0), pa.binary(1), pa.binary(3), pa.binary(5)):
            width = None if pa.types.is_large_binary(field.type) else field.type.byte_width
            values = [bytes([k % 256]) * (k % 9 if width is None else width) for k in range(count)]
            arrays.append(pa.array(values, field.type))
            continue
        values = values_of(field.type, count)
        if pa.types.is_temporal(field.type):
            storage = pa.int32() if field.type == pa.date32() else pa.int64()
            arrays.append(pa.array(values, storage).cast(field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(values, field.type.value_type).dictionary_encode().cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
