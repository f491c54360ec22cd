"""Rows taken in another order are those of the lists that a batch holds; sizes of rows are those of Arrow's own slices."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from recshuf.records.arrays import count_bytes, count_bytes_before, take_rows
from tests.support.record_batches import FLAT, OTHER, make_batch

NUMBERS = [pa.int32(), pa.uint16(), pa.float64(), pa.timestamp("us"), pa.bool_(), pa.decimal128(20, 3)]
LISTS = [
    *(pa.list_(kind) for kind in NUMBERS),
    pa.large_list(pa.int32()),
    pa.list_(pa.field("item", pa.int8(), nullable=False)),
    pa.list_(pa.list_(pa.int16())),
    pa.list_(pa.string()),
    pa.map_(pa.int8(), pa.int32()),
    # Lists of fixed length in one another: pyarrow's own `take` gives wrong values for a slice of them.
    pa.list_(pa.int8(), 3),
    pa.list_(pa.list_(pa.list_(pa.binary(2), 1), 3), 2),
    pa.struct({"a": pa.list_(pa.list_(pa.int8(), 3), 2)}),
    pa.list_(pa.list_(pa.list_(pa.int8(), 3), 2)),
    pa.map_(pa.list_(pa.list_(pa.int8(), 1), 2), pa.int8()),
    pa.map_(pa.int8(), pa.list_(pa.list_(pa.int8(), 1), 2)),
]


def make_lists(kind: pa.DataType, holes: str, layout: str, chance: np.random.Generator) -> pa.RecordBatch:
    """Return a batch of lists and row numbers: a whole one, or a slice, or with lists whose values are one."""
    count = int(chance.integers(30))
    rows = [make_value(kind, chance, holes == "lists", holes == "values") for _ in range(count)]
    lists = pa.array(rows, kind)
    if layout == "values" and pa.types.is_list(kind) and not lists.null_count:
        values = pa.concat_arrays([lists.values[::-1], lists.values]).slice(len(lists.values))
        lists = pa.ListArray.from_arrays(lists.offsets, values, type=kind)
    batch = pa.RecordBatch.from_arrays([lists, pa.array(range(count), pa.int64())], ["lists", "rows"])
    first = int(chance.integers(count + 1)) if layout == "slice" else 0
    return batch.slice(first, int(chance.integers(count - first + 1)))


def make_value(kind: pa.DataType, chance: np.random.Generator, null_lists: bool, null_values: bool) -> object:
    """Return a random value of a type, or None."""
    if pa.types.is_map(kind):
        kinds = kind.key_type, kind.item_type
        return [
            tuple(make_value(one, chance, False, False) for one in kinds) for _ in range(chance.integers(4))
        ]
    if pa.types.is_struct(kind):
        return {one.name: make_value(one.type, chance, null_lists, null_values) for one in kind}
    if pa.types.is_fixed_size_list(kind):
        return [make_value(kind.value_type, chance, False, null_values) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if null_lists and chance.random() < 0.3:
            return None
        return [make_value(kind.value_type, chance, False, null_values) for _ in range(chance.integers(5))]
    if null_values and chance.random() < 0.3:
        return None
    number = int(chance.integers(100))
    if pa.types.is_fixed_size_binary(kind):
        return number.to_bytes(kind.byte_width, "big")
    return (
        f"{number}" if pa.types.is_string(kind) else bool(number % 2) if pa.types.is_boolean(kind) else number
    )


def test_rows_are_those_of_the_lists():
    chance = np.random.default_rng(1)
    for kind, holes, layout in product(LISTS, ("none", "lists", "values"), ("whole", "slice", "values")):
        for _ in range(4):
            batch = make_lists(kind, holes, layout, chance)
            index = chance.integers(0, max(1, batch.num_rows), 40 if batch.num_rows else 0)
            taken = take_rows(batch, index)
            taken.validate(full=True)
            assert taken.schema.equals(batch.schema)
            rows = batch.to_pylist()
            assert taken.to_pylist() == [rows[place] for place in index.tolist()]


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
