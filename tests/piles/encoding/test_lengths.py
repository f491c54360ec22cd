"""Sums of lengths, against the values of Python one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.piles.codec import choose_codec, list_variable_columns
from recshuf.records.batch import Records
from tests.piles.encoding.test_planes import Label, kinds, make_array
from tests.support.effort import examples

WORDS = pa.opaque(pa.list_(pa.int16()), "words", "tests")
"""An extension type whose storage has lengths."""

HAVE_LENGTHS = [
    pa.string(),
    pa.large_binary(),
    pa.string_view(),
    pa.list_(pa.int8()),
    pa.large_list(pa.string()),
    pa.map_(pa.string(), pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
    WORDS,
]
HAVE_NONE = [
    pa.int32(),
    pa.bool_(),
    pa.null(),
    pa.binary(3),
    pa.list_(pa.string(), 2),
    pa.struct({"a": pa.string()}),
    pa.dictionary(pa.int8(), pa.int64()),
    Label(),
]


def has_length(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_map,
        )
    )


def measure(value: Any) -> int:
    if value is None:
        return 0
    return len(value.encode() if isinstance(value, str) else value)


def sum_slowly(column: pa.Array, bounds: list[int]) -> list[int]:
    values = column.to_pylist()
    return [sum(map(measure, values[start:stop])) for start, stop in pairwise(bounds)]


def test_the_columns_with_lengths_are_those_with_offsets_in_slices() -> None:
    kinds = [*HAVE_LENGTHS, *HAVE_NONE]
    schema = pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)])
    assert list_variable_columns(schema) == tuple(range(len(HAVE_LENGTHS)))


@settings(max_examples=examples(150), deadline=None)
@given(chosen=st.lists(kinds(), min_size=1, max_size=3), nulls=st.sampled_from([0, 0.3]), data=st.data())
def test_sums_are_those_of_the_values(chosen: Any, nulls: float, data: st.DataObject) -> None:
    count, first = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 3))
    columns = [make_array(kind, make, count + first, 3, nulls) for kind, make in chosen]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"c{k}" for k in range(len(columns))]).slice(first)
    bounds = sorted(data.draw(st.lists(st.integers(0, count), min_size=1, max_size=4)))
    _, lengths = choose_codec(batch.schema).pack(Records(np.arange(count, dtype=np.uint64), batch), bounds)
    expected = [sum_slowly(column, bounds) for column in batch.columns if has_length(column.type)]
    assert lengths.tolist() == expected


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
