"""Planes: arrays of every type are cut and come back, in their order or in another one."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.piles.codec import RecordCodec, choose_codec
from recshuf.piles.planes import Order, PlaneCutter, PlaneReader
from recshuf.records.batch import Records
from tests.support.effort import examples


class Label(pa.ExtensionType):
    """An extension type without a registered name."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int16(), 2), "tests.label")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


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
    return pa.array(values, kind)


def cut(arrays: list[pa.Array], edges: list[list[int]]) -> tuple[PlaneReader, np.ndarray]:
    """Cut arrays at edges, and return a reader of all slices, and their edges."""
    slices, flags, counts = [], [], []
    for array, places in zip(arrays, edges, strict=True):
        cutter = PlaneCutter()
        cutter.add(array, np.array(places))
        for part, (start, stop) in enumerate(pairwise(places)):
            slices.append(np.frombuffer(b"".join(plane[part] for plane in cutter.planes), np.uint8))
            flags.append(np.frombuffer(bytes(cutter.flags), np.bool_))
            counts.append(stop - start)
    return PlaneReader(slices, np.array(flags).T), np.cumsum([0, *counts])


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), chosen=kinds(), nulls=st.sampled_from([0, 0.3]), offset=st.integers(0, 3))
def test_slices_of_any_type_are_joined(data: st.DataObject, chosen: Any, nulls: float, offset: int) -> None:
    kind, make = chosen
    arrays, edges = [], []
    for seed in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(0, 12))
        arrays.append(make_array(kind, make, count + offset, seed, nulls * (seed != 1)).slice(offset))
        edges.append([0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=2))), count])
    reader, joined = cut(arrays, edges)
    found = reader.read_array(kind, joined)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == [value for array in arrays for value in array.to_pylist()]


@settings(max_examples=examples(100), deadline=None)
@given(chosen=kinds(), nulls=st.sampled_from([0, 0.3]), seed=st.integers(0, 9))
def test_records_come_in_the_order_asked_for(chosen: Any, nulls: float, seed: int) -> None:
    kind, make = chosen
    columns = [make_array(kind, make, 30, seed, nulls), pa.array(range(30), pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, names=["a", "b"])
    records = Records(np.arange(30, dtype=np.uint64), batch)
    codec = choose_codec(batch.schema)
    buffers, _ = codec.pack(records, [0, 11, 11, 30])
    packed = [np.frombuffer(b"".join(parts), np.uint8) for parts in buffers]
    slices = list(zip(packed, [11, 0, 19], strict=True))
    index = np.random.default_rng(seed).permutation(30)
    found = codec.unpack_ordered(slices, Order(index))
    assert not slices
    assert found.keys.tolist() == index.tolist()
    found.batch.validate(full=True)
    assert found.batch.equals(batch.take(pa.array(index)))


def test_extension_types_come_back_as_such() -> None:
    array = Label().wrap_array(pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)))
    for index in (None, np.array([2, 0, 1])):
        reader, edges = cut([array], [[0, 1, 3]])
        found = (
            reader.read_array(array.type, edges)
            if index is None
            else reader.scatter_array(array.type, edges, Order(index))
        )
        assert found is not None
        assert found.type == array.type
        assert found.to_pylist() == (array if index is None else array.take(pa.array(index))).to_pylist()


def test_types_that_slices_cannot_hold_are_refused() -> None:
    for kind in (
        pa.dense_union([pa.field("u", pa.int8())]),
        pa.list_(pa.sparse_union([])),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.struct({"a": pa.large_list_view(pa.int8())}),
    ):
        with pytest.raises(ConversionError, match=r"piles cannot hold values of type .*; cast the column"):
            RecordCodec(pa.schema({"a": kind}))


def test_values_of_type_null_beside_a_dictionary_are_packed() -> None:
    """At any slice."""
    nulls = pa.array([[None, None], None, [None], []] * 2, pa.list_(pa.null()))
    columns = {"d": pa.array(list("abcabcab")).dictionary_encode(), "n": nulls}
    batch = pa.record_batch(columns).slice(3)
    codec = choose_codec(batch.schema)
    (parts,), _ = codec.pack(Records(np.arange(5, dtype=np.uint64), batch), [0, 5])
    found = codec.unpack([(np.frombuffer(b"".join(parts), np.uint8), 5)]).batch
    found.validate(full=True)
    assert found.schema == batch.schema
    assert found.to_pylist() == batch.to_pylist()


def test_a_pile_of_more_text_than_an_array_holds_is_an_error() -> None:
    lengths = np.full(3, 2**30, np.uint32).view(np.uint8)
    reader = PlaneReader([lengths], np.zeros((1, 1), np.bool_))
    with pytest.raises(ConversionError, match="more values of type string than one array can"):
        reader.read_array(pa.string(), np.array([0, 3]))


# Sums of lengths, against the values of Python one by one

WORDS = pa.opaque(pa.list_(pa.int16()), "words", "tests")
"""An extension type whose storage has lengths."""


def measure(value: Any) -> int:
    if value is None:
        return 0
    return len(value.encode() if isinstance(value, str) else value)


def sum_slowly(column: pa.Array, bounds: list[int]) -> list[int]:
    values = column.to_pylist()
    return [sum(map(measure, values[start:stop])) for start, stop in pairwise(bounds)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ü", "a"]).dictionary_encode(),
        pa.array(["abc", "", None, "a text that is longer than what a view holds"], pa.string_view()),
        WORDS.wrap_array(pa.array([[1, 2], None, [], [3]], pa.list_(pa.int16()))),
        pa.array([["x", None], None, [], ["y"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    ],
    ids=["dictionary", "view", "extension", "nested dictionary"],
)
def test_sums_are_those_of_what_slices_hold(column: pa.Array) -> None:
    for first in (0, 1):
        batch = pa.record_batch({"a": column}).slice(first)
        bounds = [0, 2, 2, len(batch)]
        _, lengths = choose_codec(batch.schema).pack(
            Records(np.arange(len(batch), dtype=np.uint64), batch), bounds
        )
        assert lengths.tolist() == [sum_slowly(batch.column(0), bounds)]


def test_a_null_counts_as_what_its_slot_holds() -> None:
    validity = pa.py_buffer(b"\x05")
    offsets = pa.py_buffer(np.array([0, 2, 5, 6], np.int32))
    column = pa.Array.from_buffers(
        pa.list_(pa.int8()), 3, [validity, offsets], children=[pa.array(range(6), pa.int8())]
    )
    assert column.to_pylist() == [[0, 1], None, [5]]
    records = Records(np.arange(3, dtype=np.uint64), pa.record_batch({"a": column}))
    codec = choose_codec(records.batch.schema)
    slices, lengths = codec.pack(records, [0, 1, 3])
    assert lengths.tolist() == [[2, 4]]
    joined = [
        (np.frombuffer(b"".join(one), np.uint8), count) for one, count in zip(slices, [1, 2], strict=True)
    ]
    assert codec.sum_lengths(codec.unpack(joined).batch, np.array([0, 3])).tolist() == [[6]]
