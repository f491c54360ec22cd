"""Slices: records with columns of any type are cut and come back, in their order or in another one."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recshuf.errors import ConversionError
from recshuf.piles.planes import Order, PlaneReader
from recshuf.piles.slices import RecordCodec
from recshuf.records.batch import Records
from tests.support.effort import some
from tests.support.typed_arrays import draw_array


class Label(pa.ExtensionType):
    """An extension type without a registered name."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int16(), 2), "tests.label")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


LABEL = Label()
WORDS = pa.opaque(pa.list_(pa.int16()), "words", "tests")
"""An extension type whose storage has lengths."""
VARIABLE = (
    (pa.string(), lambda k: "ü" * (k % 5)),
    (pa.dictionary(pa.int16(), pa.string()), lambda k: "ü" * (k % 5)),
    (pa.large_binary(), lambda k: b"x" * (k % 7)),
    (pa.list_(pa.int8()), lambda k: [k % 9] * (k % 4)),
    (pa.map_(pa.int8(), pa.int8()), lambda k: [(n, n) for n in range(k % 3)]),
)
"""Types with lengths, and what makes a value of a number."""


def measure(value: Any) -> int:
    if value is None:
        return 0
    return len(value.encode() if isinstance(value, str) else value)


def cut(chance: np.random.Generator, count: int) -> list[int]:
    """Return where two or three parts begin and the last one ends; some may be empty."""
    return [0, *sorted(chance.integers(count + 1, size=chance.integers(3)).tolist()), count]


def draw_batch(chance: np.random.Generator) -> pa.RecordBatch:
    """Return a column of any type, or of an extension type, and one whose values have lengths."""
    first = draw_array(chance, 29)
    count = len(first)
    if chance.random() < 0.2:
        storage = pa.FixedSizeListArray.from_arrays(pa.array(range(2 * count), pa.int16()), 2)
        first = LABEL.wrap_array(storage)
    elif chance.random() < 0.2:
        first = WORDS.wrap_array(pa.array([[k] * (k % 4) for k in range(count)], WORDS.storage_type))
    kind, make = VARIABLE[chance.integers(len(VARIABLE))]
    values = [make(k) if chance.random() < 0.9 else None for k in chance.integers(500, size=count).tolist()]
    return pa.record_batch([first, pa.array(values, kind)], ["a", "b"])


def test_records_of_any_type_come_back_in_any_order() -> None:
    """Of each range of each batch there is a slice, whose lengths are summed; a batch without nulls has no flags."""
    for seed in some(range(3000), 10):
        chance = np.random.default_rng(seed)
        batch = draw_batch(chance)
        count, keys = batch.num_rows, np.arange(batch.num_rows, dtype=np.uint64)
        rows, codec, slices = batch.to_pylist(), RecordCodec(batch.schema), []
        for start, stop in pairwise(cut(chance, count)):
            part, bounds = batch.slice(start, stop - start), cut(chance, stop - start)
            buffers, lengths = codec.pack(Records(keys[start:stop], part), bounds)
            packed = [np.frombuffer(b"".join(parts), np.uint8) for parts in buffers]
            slices += zip(packed, np.diff(bounds).tolist(), strict=True)
            sizes = [measure(row["b"]) for row in rows[start:stop]]
            assert lengths.tolist() == codec.sum_lengths(part, np.array(bounds)).tolist()
            assert lengths[-1].tolist() == [sum(sizes[first:last]) for first, last in pairwise(bounds)]
        index = chance.permutation(count)
        for found, order in (
            (codec.unpack(list(slices)), list(range(count))),
            (codec.unpack_ordered(slices, Order(index)), index.tolist()),
        ):
            found.batch.validate(full=True)
            assert found.batch.schema == codec.schema
            assert found.keys.tolist() == order
            assert found.batch.to_pylist() == [rows[row] for row in order], seed
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
