"""Sizes of rows, compared with Arrow's own count of slices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from recshuf.records.arrays import count_bytes, count_bytes_before
from tests.support.record_batches import FLAT, OTHER, make_batch

ROUNDING = 64
"""Bytes by which bitmaps of whole bytes and the last offset of each column may differ."""

COUNTED = {name: schema for name, schema in OTHER.items() if "dictionary" not in name}
MORE = {
    "large lists": pa.array([[[1, 2], None], [], [[3]], None] * 100, pa.large_list(pa.list_(pa.int16()))),
    "fixed lists": pa.array([["a", "bcd"], None, ["ef", ""]] * 100, pa.list_(pa.string(), 2)),
    "structs": pa.array([{"a": 1, "b": "xyz"}, None, {"a": None, "b": "x" * 50}] * 100),
    "maps": pa.array([[("k", "v" * 9)], [], [("l", None)] * 3] * 100, pa.map_(pa.string(), pa.string())),
    "extensions": pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(["{}", None, "[1]"] * 100)),
}


def assert_counted(batch: pa.RecordBatch) -> None:
    places = np.array([0, batch.num_rows // 3, batch.num_rows // 2, batch.num_rows])
    found = count_bytes_before(batch, places)
    assert found[0] == 0
    for place, size in zip(places.tolist(), found.tolist(), strict=True):
        assert size == pytest.approx(batch.slice(0, place).nbytes, abs=ROUNDING)
        rest = found[-1] - size
        assert rest == pytest.approx(batch.slice(place).nbytes, abs=ROUNDING)
    assert count_bytes(batch) == found[-1]


def make_flat(schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        [
            bytes(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else b"x" * (k % 9)
            for k in range(300)
        ]
        for kind in schema.types
    ]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)


BATCHES = (
    {name: make_flat(schema) for name, schema in FLAT.items()}
    | {name: make_batch(schema, 300) for name, schema in COUNTED.items()}
    | {name: pa.record_batch({"a": array[:300]}) for name, array in MORE.items()}
)


def test_sizes_are_those_of_slices():
    for batch, (start, count) in product(BATCHES.values(), ((0, 300), (7, 100), (299, 1), (0, 0))):
        assert_counted(batch.slice(start, count))


def test_a_size_that_cannot_be_told_by_offsets_is_shared_among_the_rows():
    batch = pa.record_batch({"a": pa.array(["x" * 20, "y" * 30] * 50, pa.string_view())})
    assert count_bytes_before(batch, np.array([50, 100])).tolist() == pytest.approx(
        [batch.nbytes / 2, batch.nbytes], abs=8
    )
