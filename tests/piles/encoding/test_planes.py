"""Slices: records with columns of any type are cut and come back, in their order or in another one."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.piles.planes import Order, PlaneReader
from recshuf.piles.slices import RecordCodec
from recshuf.records.arrays import has_offsets
from recshuf.records.batch import Records
from tests.support.effort import examples


class Label(pa.ExtensionType):
    """An extension type without a registered name."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int16(), 2), "tests.label")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


WORDS = pa.opaque(pa.list_(pa.int16()), "words", "tests")
"""An extension type whose storage has lengths."""
LEAVES = {
    "byte": (pa.int8(), lambda k: k % 100),
    "long": (pa.int64(), lambda k: k << 40),
    "float": (pa.float32(), lambda k: k / 2),
    "decimal": (pa.decimal256(40, 0), lambda k: k),
    "time": (pa.timestamp("us", "UTC"), lambda k: k),
    "interval": (pa.month_day_nano_interval(), lambda k: (k, 1, 2)),
    "flag": (pa.bool_(), lambda k: k % 3 == 0),
    "fixed": (pa.binary(3), lambda k: b"%03d" % (k % 1000)),
    "no width": (pa.binary(0), lambda _: b""),
    "text": (pa.string(), lambda k: "ü" * (k % 5)),
    "view": (pa.string_view(), lambda k: "ü" * (k % 19)),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), lambda k: "ü" * (k % 5)),
    "bytes": (pa.large_binary(), lambda k: b"x" * (k % 7)),
    "nothing": (pa.null(), lambda _: None),
}


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, Any]:
    """Return a type, and a function that makes a value of it from a number."""
    shape = draw(st.sampled_from(["leaf"] * 3 + ["list", "large", "fixed", "struct", "map"]))
    if shape == "leaf" or not depth:
        return LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
    kind, make = draw(kinds(depth - 1))
    if shape == "struct":
        other, make_other = draw(kinds(depth - 1))
        return pa.struct({"a": kind, "b": other}), lambda k: {"a": make(k), "b": make_other(k)}
    if shape == "map":
        return pa.map_(pa.int8(), kind), lambda k: [(i, make(k + i)) for i in range(k % 3)]
    if shape == "fixed":
        return pa.list_(kind, 2), lambda k: [make(k), make(k + 1)]
    return (pa.list_ if shape == "list" else pa.large_list)(kind), lambda k: [
        make(k + i) for i in range(k % 4)
    ]


def make_array(kind: pa.DataType, make: Any, count: int, seed: int, nulls: float) -> pa.Array:
    chance = random.Random(seed)
    values = [None if chance.random() < nulls else make(chance.randrange(500)) for _ in range(count)]
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def measure(value: Any) -> int:
    if value is None:
        return 0
    return len(value.encode() if isinstance(value, str) else value)


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values that slices hold."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if kind == pa.string_view():
        return pa.large_string()
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


EXTENSIONS = [(Label(), lambda k: [k, k + 1]), (WORDS, lambda k: list(range(k % 4)))]
VARIABLE = st.sampled_from([LEAVES["text"], LEAVES["dictionary"], LEAVES["bytes"], EXTENSIONS[1]])
COLUMNS = st.tuples(kinds() | st.sampled_from(EXTENSIONS), VARIABLE)


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), chosen=COLUMNS, nulls=st.sampled_from([0, 0.3]), offset=st.integers(0, 3))
def test_records_of_any_type_come_back_in_any_order(
    data: st.DataObject, chosen: Any, nulls: float, offset: int
) -> None:
    """Of each range of each batch there is a slice, whose lengths are summed; a batch without nulls has no flags."""
    codec = RecordCodec(pa.schema(list(zip("ab", (kind for kind, _ in chosen), strict=True))))
    variable = [name for name, (kind, _) in zip("ab", chosen, strict=True) if has_offsets(storage_of(kind))]
    slices, rows = [], list[dict[str, Any]]()
    for seed in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(0, 12))
        columns = [make_array(*one, count + offset, seed, nulls * (seed != 1)) for one in chosen]
        batch = pa.record_batch(columns, schema=codec.schema).slice(offset)
        values, keys = batch.to_pylist(), np.arange(len(rows), len(rows) + count, dtype=np.uint64)
        bounds = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=2))), count]
        buffers, lengths = codec.pack(Records(keys, batch), bounds)
        packed = [np.frombuffer(b"".join(parts), np.uint8) for parts in buffers]
        slices += zip(packed, np.diff(bounds).tolist(), strict=True)
        sums = [
            [sum(measure(row[name]) for row in values[start:stop]) for start, stop in pairwise(bounds)]
            for name in variable
        ]
        assert lengths.tolist() == codec.sum_lengths(batch, np.array(bounds)).tolist() == sums
        rows += values
    index = np.array(data.draw(st.permutations(range(len(rows)))), np.intp)
    for found, order in (
        (codec.unpack(list(slices)), list(range(len(rows)))),
        (codec.unpack_ordered(slices, Order(index)), index.tolist()),
    ):
        found.batch.validate(full=True)
        assert found.batch.schema == codec.schema
        assert found.keys.tolist() == order
        assert found.batch.to_pylist() == [rows[row] for row in order]
    assert not slices


def test_types_that_slices_cannot_hold_are_refused() -> None:
    for kind in (
        pa.dense_union([pa.field("u", pa.int8())]),
        pa.list_(pa.sparse_union([])),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.struct({"a": pa.large_list_view(pa.int8())}),
    ):
        with pytest.raises(ConversionError, match=r"piles cannot hold values of type .*; cast the column"):
            RecordCodec(pa.schema({"a": kind}))


def test_a_pile_of_more_text_than_an_array_holds_is_an_error() -> None:
    lengths = np.full(3, 2**30, np.uint32).view(np.uint8)
    reader = PlaneReader([lengths], np.zeros((1, 1), np.bool_))
    with pytest.raises(ConversionError, match="more values of type string than one array can"):
        reader.read_array(pa.string(), np.array([0, 3]))


def test_a_null_counts_as_what_its_slot_holds() -> None:
    validity = pa.py_buffer(b"\x05")
    offsets = pa.py_buffer(np.array([0, 2, 5, 6], np.int32))
    column = pa.Array.from_buffers(
        pa.list_(pa.int8()), 3, [validity, offsets], children=[pa.array(range(6), pa.int8())]
    )
    assert column.to_pylist() == [[0, 1], None, [5]]
    records = Records(np.arange(3, dtype=np.uint64), pa.record_batch({"a": column}))
    codec = RecordCodec(records.batch.schema)
    slices, lengths = codec.pack(records, [0, 1, 3])
    assert lengths.tolist() == [[2, 4]]
    joined = [
        (np.frombuffer(b"".join(one), np.uint8), count) for one, count in zip(slices, [1, 2], strict=True)
    ]
    assert codec.sum_lengths(codec.unpack(joined).batch, np.array([0, 3])).tolist() == [[6]]
