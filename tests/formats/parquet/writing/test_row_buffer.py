from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.formats.parquet.sink import RowBuffer

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def batch_of(start: int, stop: int) -> pa.RecordBatch:
    numbers = list(range(start, stop))
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int64()), pa.array(map(str, numbers), pa.string())], schema=SCHEMA
    )


def feed(buffer: RowBuffer, lengths: list[int]) -> list[pa.Table]:
    tables, start = [], 0
    for length in lengths:
        tables += buffer.add(batch_of(start, start + length))
        start += length
    return tables


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 25))
def test_tables_have_exactly_the_rows_asked_for_and_nothing_is_lost(lengths: list[int], rows: int) -> None:
    buffer = RowBuffer(SCHEMA, rows)
    tables = feed(buffer, lengths)
    assert len(buffer) == sum(lengths) % rows
    rest = buffer.rest()
    assert [table.num_rows for table in tables] == [rows] * (sum(lengths) // rows)
    assert rest.num_rows == sum(lengths) % rows
    assert len(buffer) == 0
    joined = pa.concat_tables([*tables, rest])
    assert joined.equals(pa.Table.from_batches([batch_of(0, sum(lengths))]))


def test_very_many_small_batches_are_merged_without_loss() -> None:
    buffer = RowBuffer(SCHEMA, 10_000)
    assert not feed(buffer, [1] * 3_000)
    rest = buffer.rest()
    assert rest["n"].to_pylist() == list(range(3_000))
    assert rest["n"].num_chunks < 1_100


def test_a_table_taken_back_is_handed_out_again_as_part_of_a_larger_one() -> None:
    buffer = RowBuffer(SCHEMA, 4)
    seen = []
    for table in buffer.add(batch_of(0, 25)):
        if table.num_rows == 4:
            buffer.take_back(table, 10)
        else:
            seen.append(table["n"].to_pylist())
    assert seen == [list(range(10)), list(range(10, 20))]
    assert buffer.rest()["n"].to_pylist() == list(range(20, 25))


def test_a_table_taken_back_as_large_as_asked_for_comes_out_at_once() -> None:
    buffer = RowBuffer(SCHEMA, 4)
    seen = []
    for table in buffer.add(batch_of(0, 4)):
        if not seen:
            seen.append("back")
            buffer.take_back(table, 4)
        else:
            seen.append(table.num_rows)
    assert seen == ["back", 4]


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        RowBuffer(SCHEMA, 0)
    buffer = RowBuffer(SCHEMA, 4)
    with pytest.raises(ValueError, match="wait for 2"):
        buffer.take_back(pa.Table.from_batches([batch_of(0, 3)]), 2)
    assert buffer.rest().schema == SCHEMA
