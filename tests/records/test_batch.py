"""Records and their codecs: what is packed comes back, whatever the columns and wherever the slices lie."""

import numpy as np
import pyarrow as pa

from recshuf.piles.slices import RecordCodec
from recshuf.records.batch import Records, concat_records
from tests.support.record_batches import FLAT, OTHER, make_batch


def with_keys(batch: pa.RecordBatch, seed: int = 0) -> Records:
    return Records(np.random.default_rng(seed).integers(0, 2**64, batch.num_rows, np.uint64), batch)


def assert_same(found: Records, expected: Records) -> None:
    found.batch.validate(full=True)
    assert found.keys.tolist() == expected.keys.tolist()
    assert found.batch.schema.equals(expected.batch.schema, check_metadata=True)
    assert found.batch.to_pylist() == expected.batch.to_pylist()
    assert found.batch.num_rows == len(expected)


def test_records_of_any_schema_come_back_from_its_codecs_in_their_measured_size() -> None:
    for name, schema in (FLAT | OTHER).items():
        codec = RecordCodec(schema)
        for start, count in ((0, 40), (0, 0), (7, 30), (39, 1)):
            records = with_keys(make_batch(schema, 40).slice(start, count))
            ((buffers,), _) = codec.pack(records, [0, count])
            piece = np.frombuffer(b"".join(buffers), np.uint8)
            assert_same(codec.unpack([(piece, count)]), records)
            size = codec.measure(records.batch).sum() + codec.overhead_bytes
            if name in FLAT:
                assert size == len(piece)
                sizes = [sum(map(len, row.values())) for row in records.batch.to_pylist()]
                found = codec.count_bytes(records.batch, np.array([0, count // 3, count // 3, count]))
                assert found.tolist() == [sum(sizes[: count // 3]), 0, sum(sizes[count // 3 :])]
            elif count == 40:
                assert 0.3 * len(piece) < size < 3 * len(piece)  # an estimate


def test_taking_slicing_and_joining() -> None:
    for schema in (*FLAT.values(), *OTHER.values()):
        records = with_keys(make_batch(schema, 20))
        index = np.random.default_rng(1).permutation(20)
        taken = records.take(index)
        rows = records.batch.to_pylist()
        assert taken.keys.tolist() == records.keys[index].tolist()
        assert taken.batch.to_pylist() == [rows[place] for place in index]
        assert_same(concat_records([records.slice(0, 7), records.slice(7, 7), records.slice(7, 20)]), records)
        assert_same(records.copy_prefix(5), records.slice(0, 5))


def test_a_copied_prefix_lets_go_of_the_rest():
    lines = pa.array([b"x" * 1000] * 1000, pa.large_binary())
    records = with_keys(pa.RecordBatch.from_arrays([lines], schema=FLAT["lines"]))
    before = pa.total_allocated_bytes()
    prefix = records.copy_prefix(10)
    del records, lines
    assert pa.total_allocated_bytes() < before - 900_000
    assert prefix.byte_count == prefix.bytes_before(np.array([10])) == 10 * (1000 + 8 + 8)
