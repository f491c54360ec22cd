"""Records and their codecs: what is packed comes back, whatever the columns and wherever the slices lie."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.piles.codec import FlatCodec, RecordCodec, choose_codec
from recshuf.records.arrays import take_rows
from recshuf.records.batch import Records, concat_records
from tests.support.effort import examples
from tests.support.record_batches import FLAT, OTHER, make_batch

POOL = {
    pa.large_binary(): st.binary(max_size=30),
    pa.binary(0): st.just(b""),
    pa.binary(1): st.binary(min_size=1, max_size=1),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.binary(5): st.binary(min_size=5, max_size=5),
}


@st.composite
def flat_batches(draw: st.DrawFn, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that may be a slice of a larger one."""
    count = draw(st.integers(0, 40))
    columns = [
        pa.array(draw(st.lists(POOL[field.type], min_size=count, max_size=count)), field.type)
        for field in schema
    ]
    start = draw(st.integers(0, count))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return batch.slice(start, draw(st.integers(0, count - start)))


def with_keys(batch: pa.RecordBatch, seed: int = 0) -> Records:
    return Records(np.random.default_rng(seed).integers(0, 2**64, batch.num_rows, np.uint64), batch)


def pack(codec: RecordCodec, records: Records, bounds: list[int]) -> list[tuple[np.ndarray, int]]:
    """Return every slice as one piece of memory, as if read from a file."""
    slices, _ = codec.pack(records, bounds)
    counts = [stop - start for start, stop in pairwise(bounds)]
    joined = [np.frombuffer(b"".join(buffers), np.uint8) for buffers in slices]
    return list(zip(joined, counts, strict=True))


def assert_same(found: Records, expected: Records) -> None:
    found.batch.validate(full=True)
    assert found.keys.tolist() == expected.keys.tolist()
    assert found.batch.schema.equals(expected.batch.schema, check_metadata=True)
    assert found.batch.to_pylist() == expected.batch.to_pylist()
    assert found.batch.num_rows == len(expected)


def check_round_trip(codec: RecordCodec, records: Records, bounds: list[int]) -> None:
    slices = pack(codec, records, bounds)
    for piece, (start, stop) in zip(slices, pairwise(bounds), strict=True):
        assert_same(codec.unpack([piece]), records.slice(start, stop))
    assert_same(codec.unpack(slices), records)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FLAT)), inner=st.lists(st.integers(0, 40), max_size=4))
def test_both_codecs_give_back_what_was_packed(data: st.DataObject, name: str, inner: list[int]):
    batch = data.draw(flat_batches(FLAT[name]))
    bounds = [0, *sorted(min(edge, batch.num_rows) for edge in inner), batch.num_rows]
    for codec in (FlatCodec(FLAT[name]), RecordCodec(FLAT[name])):
        check_round_trip(codec, with_keys(batch), bounds)


def test_every_other_schema_comes_back_and_its_size_is_an_estimate():
    for name in OTHER:
        codec = RecordCodec(OTHER[name])
        for start, count in ((0, 40), (0, 0), (7, 30), (39, 1)):
            records = with_keys(make_batch(OTHER[name], 40).slice(start, count))
            check_round_trip(codec, records, [0, count // 3, count // 3, count])
        records = with_keys(make_batch(OTHER[name], 40))
        ((piece, _),) = pack(codec, records, [0, 40])
        estimate = codec.measure(records.batch).sum() + codec.overhead_bytes
        assert 0.3 * len(piece) < estimate < 3 * len(piece)


def test_the_fast_codec_is_chosen_where_it_suits():
    assert all(isinstance(choose_codec(schema), FlatCodec) for schema in FLAT.values())
    assert not any(isinstance(choose_codec(schema), FlatCodec) for schema in OTHER.values())


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FLAT)))
def test_the_sizes_of_flat_records_are_exact(data: st.DataObject, name: str):
    codec = FlatCodec(FLAT[name])
    records = with_keys(data.draw(flat_batches(FLAT[name])))
    ((piece, _),) = pack(codec, records, [0, len(records)])
    assert codec.measure(records.batch).sum() + codec.overhead_bytes == len(piece)
    contents = [
        sum(len(value) for column in row.columns for value in column.to_pylist())
        for row in (records.batch.slice(i, 1) for i in range(len(records)))
    ]
    cut = data.draw(st.integers(0, len(records)))
    edges = np.array([0, cut, cut, len(records)])
    assert codec.count_bytes(records.batch, edges).tolist() == [sum(contents[:cut]), 0, sum(contents[cut:])]


def test_taking_slicing_and_joining():
    for schema in (*FLAT.values(), *OTHER.values()):
        records = with_keys(make_batch(schema, 20))
        index = np.random.default_rng(1).permutation(20)
        taken = records.take(index)
        rows = records.batch.to_pylist()
        assert taken.keys.tolist() == records.keys[index].tolist()
        assert taken.batch.to_pylist() == [rows[place] for place in index]
        assert_same(concat_records([records.slice(0, 7), records.slice(7, 7), records.slice(7, 20)]), records)
        assert_same(records.copy_prefix(5), records.slice(0, 5))
        assert take_rows(records.batch, index[:3]).num_rows == 3


def test_a_copied_prefix_lets_go_of_the_rest():
    lines = pa.array([b"x" * 1000] * 1000, pa.large_binary())
    records = with_keys(pa.RecordBatch.from_arrays([lines], schema=FLAT["lines"]))
    before = pa.total_allocated_bytes()
    prefix = records.copy_prefix(10)
    del records, lines
    assert pa.total_allocated_bytes() < before - 900_000
    assert prefix.byte_count < 12_000
