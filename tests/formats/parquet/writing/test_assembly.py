"""Row groups that are encoded apart: the file is the one that a single writer makes."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.formats.parquet import sink as sink_module
from recshuf.formats.parquet.assembly import Assembly, encode_group
from recshuf.formats.parquet.plan import make_plan
from recshuf.formats.parquet.sink import ParquetTarget
from recshuf.formats.parquet.thrift import LIST, STRUCT, ThriftReader, encode_list, encode_number
from recshuf.interfaces import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from recshuf.formats.parquet.assembly import EncodedGroup

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("list", pa.list_(pa.float64())),
        pa.field("struct", pa.struct([pa.field("inner", pa.int32(), nullable=False), ("empty", pa.null())])),
        pa.field("category", pa.dictionary(pa.int8(), pa.string())),
    ],
    {"made by": "a test"},
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True},
    {"compression": "none", "write_statistics": False, "data_page_version": "2.0"},
    {"store_schema": False, "version": "1.0", "use_dictionary": ["text"]},
]
ROWS = 3000


def make_table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-(2**62), 2**62, rows) >> rng.integers(0, 63, rows)
    columns = {
        "number": [None if number % 5 == 0 else int(number) for number in numbers],
        "text": [str(number) * int(number % 4) for number in numbers],
        "list": [[number / 7] * int(number % 3) for number in numbers],
        "struct": [{"inner": int(number % 9), "empty": None} for number in numbers],
        "category": ["one" if number % 2 else "other" for number in numbers],
    }
    return pa.table(columns, schema=SCHEMA)


def write_at_once(tables: list[pa.Table], open_writer: Callable[[BinaryIO], pq.ParquetWriter]) -> bytes:
    stream = io.BytesIO()
    with open_writer(stream) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    return stream.getvalue()


def write_apart(tables: list[pa.Table], open_writer: Callable[[BinaryIO], pq.ParquetWriter]) -> bytes:
    stream = io.BytesIO()
    assembly = Assembly(stream)
    # The last is encoded first: nothing may depend on what comes before.
    groups = [encode_group(open_writer, table) for table in reversed(tables)]
    for group in reversed(groups):
        assembly.append(group)
    assembly.finish()
    assert assembly.record_count == sum(table.num_rows for table in tables)
    assert len(assembly) == len(tables)
    return stream.getvalue()


@given(
    rows=st.lists(st.sampled_from([0, 1, 2, 40, 900]), min_size=1, max_size=20),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_the_file_is_the_one_of_a_single_writer(rows: list[int], options: dict[str, Any], seed: int) -> None:
    tables = [make_table(count, seed + place) for place, count in enumerate(rows)]

    def open_writer(stream: BinaryIO) -> pq.ParquetWriter:
        return pq.ParquetWriter(stream, SCHEMA, **options)

    assert write_apart(tables, open_writer) == write_at_once(tables, open_writer)


def test_many_row_groups_are_numbered_as_by_a_single_writer() -> None:
    table = pa.table({"a": pa.array([1], pa.int8())})

    def open_writer(stream: BinaryIO) -> pq.ParquetWriter:
        return pq.ParquetWriter(stream, table.schema, compression="none", use_dictionary=False)

    tables = [table] * 300
    assert write_apart(tables, open_writer) == write_at_once(tables, open_writer)


def write_groups(path: Path, threads: int) -> bytes:
    """Write a shard of eight row groups."""
    plan = replace(make_plan(SCHEMA, None, WriteOptions()), row_group_rows=ROWS, dictionaries=["text"])
    with ParquetTarget(SCHEMA, plan).open(path, threads) as sink:
        for seed in range(8):
            for batch in make_table(ROWS, seed).to_batches(max_chunksize=700):
                sink.write(batch)
    assert sink.record_count == 8 * ROWS
    return path.read_bytes()


def test_row_groups_keep_their_order_whoever_encodes_them(tmp_path: Path) -> None:
    one = write_groups(tmp_path / "one.parquet", 1)
    assert write_groups(tmp_path / "many.parquet", 5) == one
    file = pq.ParquetFile(tmp_path / "many.parquet", page_checksum_verification=True)
    assert file.num_row_groups == 8
    made = pa.concat_tables(make_table(ROWS, seed) for seed in range(8))
    assert file.read().to_pylist() == made.to_pylist()


@pytest.mark.parametrize("failing", [0, 3, 7])
def test_an_error_of_any_thread_is_raised_and_ends_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    before = set(threading.enumerate())
    numbers = iter(range(1000))

    def encode(open_writer: Callable[[BinaryIO], pq.ParquetWriter], table: pa.Table) -> EncodedGroup:
        if next(numbers) == failing:
            raise pa.ArrowInvalid("no such thing")
        return encode_group(open_writer, table)

    monkeypatch.setattr(sink_module, "encode_group", encode)
    with pytest.raises(ConversionError, match="no such thing"):
        write_groups(tmp_path / "out.parquet", 4)
    assert set(threading.enumerate()) == before


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_numbers_and_lists_are_read_as_they_were_encoded(numbers: list[int]) -> None:
    data = encode_list(len(numbers), LIST) + b"".join(map(encode_number, numbers))
    reader = ThriftReader(data)
    assert reader.read_list() == (len(numbers), LIST)
    assert [reader.read_number() for _ in numbers] == numbers
    assert reader.place == len(data)
    assert ThriftReader(encode_list(len(numbers), STRUCT)).read_list() == (len(numbers), STRUCT)
