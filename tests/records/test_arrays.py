"""Rows taken in another order are those of the lists that a batch holds; sizes of rows are those of Arrow's own slices."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from recshuf.records.arrays import count_bytes, count_bytes_before, take_rows
from tests.support.effort import some
from tests.support.record_batches import FLAT, OTHER, make_batch
from tests.support.typed_arrays import draw_array


def test_rows_are_those_of_the_lists() -> None:
    for seed in some(range(10_000), 10):
        chance = np.random.default_rng(seed)
        array = draw_array(chance, 14)
        batch = pa.record_batch({"a": array, "row": pa.array(range(len(array)), pa.int64())})
        rows = batch.to_pylist()
        index = chance.integers(0, max(1, len(rows)), 20 if rows else 0)
        taken = take_rows(batch, index)
        taken.validate(full=True)
        assert taken.schema.equals(batch.schema)
        assert taken.to_pylist() == [rows[place] for place in index.tolist()], seed


# Sizes, compared with Arrow's own count of slices


ROUNDING = 64
"""Bytes by which bitmaps of whole bytes and the last offset of each column may differ."""

COUNTED = [schema for name, schema in OTHER.items() if "dictionary" not in name]
MORE = [
    pa.array([[[1, 2], None], [], [[3]], None] * 100, pa.large_list(pa.list_(pa.int16()))),
    pa.array([["a" * row, "bcd"] if row % 3 else None for row in range(300)], pa.list_(pa.string(), 2)),
    pa.array([{"a": 1, "b": "xyz"}, None, {"a": None, "b": "x" * 50}] * 100),
    pa.array([[("k", "v" * 9)], [], [("l", None)] * 3] * 100, pa.map_(pa.string(), pa.string())),
    pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(["{}", None, "[1]"] * 100)),
]


def assert_counted(batch: pa.RecordBatch) -> None:
    places = np.array([0, batch.num_rows // 3, batch.num_rows // 2, batch.num_rows])
    found = count_bytes_before(batch, places)
    assert found[0] == 0
    for place, size in zip(places.tolist(), found.tolist(), strict=True):
        assert size == pytest.approx(batch.slice(0, place).nbytes, abs=ROUNDING)
        rest = found[-1] - size
        assert rest == pytest.approx(batch.slice(place).nbytes, abs=ROUNDING)
    assert count_bytes(batch) == found[-1]


BATCHES = [make_batch(schema, 300) for schema in (*FLAT.values(), *COUNTED)]
BATCHES += [pa.record_batch({"a": array[:300]}) for array in MORE]


def test_sizes_are_those_of_slices():
    for batch, (start, count) in product(BATCHES, ((0, 300), (7, 100), (299, 1), (0, 0))):
        assert_counted(batch.slice(start, count))


@pytest.mark.parametrize("width", [1, 2], ids=["value", "list"])
def test_values_that_rows_share_count_in_each(width: int):
    texts = ["x", "yyy" * 9, None, "zz" * 50] * 30
    dense = pa.array(texts, pa.large_string())
    for shared in (dense.dictionary_encode(), dense.cast(pa.string_view())):
        values, same = shared, dense
        if width > 1:
            values, same = (pa.FixedSizeListArray.from_arrays(one, width) for one in (values, same))
        batches = [pa.record_batch({"a": one}).slice(3) for one in (values, same)]
        found, wanted = (count_bytes_before(one, np.arange(one.num_rows + 1)) for one in batches)
        assert found == pytest.approx(wanted, abs=8 * len(texts) // 2)


def test_a_size_that_cannot_be_told_by_offsets_is_shared_among_the_rows():
    batch = pa.record_batch({"a": pa.array([list(range(20)), list(range(30))] * 50, pa.list_view(pa.int8()))})
    assert count_bytes_before(batch, np.array([50, 100])).tolist() == pytest.approx(
        [batch.nbytes / 2, batch.nbytes], abs=8
    )
