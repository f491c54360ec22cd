"""What Parquet promises beyond the suite: types, unification, partitions, layout, hostile files."""

from __future__ import annotations

import datetime
import errno
import gc
import json
import math
import random
import resource
from contextlib import suppress
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.parquet import FORMAT
from recshuf.formats.parquet.metadata import file as file_module
from recshuf.formats.parquet.schema.types import conform, dense_type
from recshuf.formats.parquet.schema.union import FieldClash, unify_types
from recshuf.formats.parquet.writing import layout as layout_module
from recshuf.interfaces import InputFile, ReadOptions, Source, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCK = 1 << 20
LONGEST = 1 << 30


def open_source(*paths: Path, columns: tuple[str, ...] | None = None) -> Source:
    return FORMAT.open_source([InputFile(path.name, path) for path in paths], ReadOptions(columns=columns))


def read_all(source: Source, block_bytes: int = BLOCK, longest: int = LONGEST) -> pa.Table:
    batches = [
        batch
        for index in range(len(source.inputs))
        for fragment in source.fragments(index, block_bytes, longest)
        for batch in fragment.batches()
    ]
    return pa.Table.from_batches(batches, schema=source.schema)


def write_all(
    source: Source, path: Path, *, options: WriteOptions | None = None, table: pa.Table | None = None
) -> Path:
    target = FORMAT.open_target(source.schema, source.layout, options or WriteOptions())
    with target.open(path, 1) as sink:
        for batch in (read_all(source) if table is None else table).to_batches():
            sink.write(batch)
    return path


def convert(table: pa.Table, path: Path, cuts: list[int] | None = None) -> Path:
    with FORMAT.open_target(table.schema, None, WriteOptions()).open(path, 1) as sink:
        for batch in cut(table, cuts or []):
            sink.write(batch)
    return path


def cut(table: pa.Table, cuts: list[int]) -> list[pa.RecordBatch]:
    edges = sorted({0, table.num_rows, *(each % (table.num_rows + 1) for each in cuts)})
    return [
        batch for start, stop in pairwise(edges) for batch in table.slice(start, stop - start).to_batches()
    ]


def store(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def load(path: Path) -> pa.Table:
    file = pq.ParquetFile(path, page_checksum_verification=True)
    # Old versions of pyarrow cannot read some files without row groups, but for their schema.
    return file.read() if file.num_row_groups else file.schema_arrow.empty_table()


def holds_the_same(left: pa.Table, right: pa.Table) -> bool:
    """Compare values; those that do not equal themselves, NaN, as text."""
    return left.num_columns == right.num_columns and all(
        one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
        for one, other in zip(left.columns, right.columns, strict=True)
    )


def chunk_of(path: Path, column: int = 0, group: int = 0) -> pq.ColumnChunkMetaData:
    return pq.read_metadata(path).row_group(group).column(column)


def has_dictionary(path: Path, column: int = 0) -> bool:
    return chunk_of(path, column).has_dictionary_page


EVERY_TYPE: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-1, None, 3], pa.int8()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "half": pa.array(np.array([1.5, math.nan, -0.0], np.float16)),
    "double": pa.array([math.nan, -math.inf, -0.0]),
    "string": pa.array(["", None, "\u2028\x00é"]),
    "large": pa.array(["a", None, "b"], pa.large_string()),
    "fixed": pa.array([b"abc", None, b"\xff\x00x"], pa.binary(3)),
    "decimal": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal128(5, 2)),
    "decimal256": pa.array([Decimal(10**50), None, Decimal(1)], pa.decimal256(60, 0)),
    "date": pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "time": pa.array([1, None, 2], pa.time64("ns")),
    "zoned": pa.array([1, None, -1], pa.timestamp("ns", "Europe/Berlin")),
    "naive": pa.array([1, None, -1], pa.timestamp("ms")),
    "duration": pa.array([1, None, -1], pa.duration("us")),
    "null": pa.nulls(3),
    "labels": pa.array(["x", None, "x"]).dictionary_encode(),
    "list of labels": pa.array([["x"], None, ["y", "x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "struct": pa.array([{"a": 1, "b": [None, "q"]}, None, {"a": None, "b": []}]),
    "tensor": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "large list": pa.array([[[1]], None, [[], None]], pa.large_list(pa.list_(pa.int64()))),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
}


def test_every_type_metadata_and_field_id_survive(tmp_path: Path) -> None:
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": str(index + 7), "note": name})
        for index, (name, array) in enumerate(EVERY_TYPE.items())
    ]
    schema = pa.schema(fields, metadata={"key": "value", "pandas": json.dumps({"columns": []})})
    original = pa.Table.from_arrays(list(EVERY_TYPE.values()), schema=schema)
    pq.write_table(original, tmp_path / "in.parquet", use_compliant_nested_type=False)
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    before, after = load(tmp_path / "in.parquet"), load(written)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.schema.field("labels").type == EVERY_TYPE["labels"].type
    assert holds_the_same(before, after)


def test_metadata_that_the_stored_arrow_schema_lacks_survives(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"added": "later"})
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert pq.read_metadata(written).metadata[b"added"] == b"later"


def test_columns_of_one_name_and_invalid_utf8_pass_through(tmp_path: Path) -> None:
    bad = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    pq.write_table(pa.Table.from_arrays([bad, pa.array([1, 2])], ["a", "a"]), tmp_path / "in.parquet")
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    after = load(written)
    assert after.schema.names == ["a", "a"]
    assert after.column(0).cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"]
    assert after.column(1).to_pylist() == [1, 2]


def test_an_extension_type_nobody_registered_survives(tmp_path: Path) -> None:
    metadata = {"ARROW:extension:name": "some.type", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([pa.field("e", pa.int64(), metadata=metadata)])
    pq.write_table(pa.table([pa.array([1])], schema=schema), tmp_path / "in.parquet")
    written = write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert load(written).schema.field("e").metadata[b"ARROW:extension:name"] == b"some.type"


def test_an_empty_shard_has_a_row_group(tmp_path: Path) -> None:
    """Without one, pyarrow 18 cannot read columns of dictionary type."""
    path = store(tmp_path / "in.parquet", {"t": EVERY_TYPE["labels"].slice(0, 0)})
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert pq.read_metadata(written).num_row_groups == 1
    assert load(written).num_rows == 0


def test_the_order_of_ordered_categories_survives(tmp_path: Path) -> None:
    sizes = pa.array(["small", "medium", "large", "unused"])
    columns = pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 1], pa.int8()), sizes, ordered=True)
    store(tmp_path / "in.parquet", {"size": columns})
    written = load(write_all(open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet"))
    assert written.schema == load(tmp_path / "in.parquet").schema
    assert written.schema.field("size").type.ordered
    assert written["size"].chunk(0).dictionary.to_pylist() == sizes.to_pylist()
    assert written["size"].to_pylist() == columns.to_pylist()


def test_batches_of_expanding_dictionaries_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def watched(*args: Any) -> Iterator[pa.RecordBatch]:
        for batch in read_batches(*args):
            decoded.append(batch.nbytes)
            yield batch

    read_batches = file_module.OpenFile.batches
    words = pa.array(["x" * 50_000, "y" * 10])
    indices = pa.array([0, 1, 1, 0] * 500, pa.int32())
    store(tmp_path / "in.parquet", {"w": words.take(indices)}, compression="zstd")
    assert (tmp_path / "in.parquet").stat().st_size < 20_000
    source = open_source(tmp_path / "in.parquet")
    monkeypatch.setattr(file_module.OpenFile, "batches", watched)
    sizes = [b.nbytes for f in source.fragments(0, BLOCK, LONGEST) for b in f.batches()]
    assert max(sizes) <= BLOCK
    assert max(decoded) <= 2 * BLOCK
    assert source.inputs[0].native_bytes == pytest.approx(sum(sizes), rel=0.1)
    assert read_all(source)["w"].to_pylist() == words.take(indices).to_pylist()


def test_small_row_groups_are_read_together(tmp_path: Path) -> None:
    text = pa.array([f"{k:0100}" for k in range(60_000)])
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=100, use_dictionary=False)
    source = open_source(path)
    fragments = list(source.fragments(0, 1 << 18, LONGEST))
    sizes = [sum(batch.nbytes for batch in fragment.batches()) for fragment in fragments]
    assert all((1 << 17) < size <= (1 << 18) for size in sizes[:-1])
    assert len(list(source.fragments(0, 1 << 30, LONGEST))) >= 16, "enough for many threads"
    assert len(list(source.fragments(0, 1000, LONGEST))) == 600
    assert [fragment.record_count for fragment in fragments] == [
        sum(batch.num_rows for batch in fragment.batches()) for fragment in fragments
    ]
    assert read_all(source)["t"].to_pylist() == text.to_pylist()


def test_a_page_that_claims_too_many_values_does_not_shift_the_next_row_groups(tmp_path: Path) -> None:
    """A page's header has no checksum, and indices of a dictionary are padded: there is something to read as one more."""
    fields = [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int64(), nullable=False)]
    columns = [pa.array(np.arange(2000) % 5, pa.int32()), pa.array(np.arange(2000))]
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    path, options = tmp_path / "in.parquet", {"compression": "none", "use_dictionary": ["a"]}
    pq.write_table(table, path, row_group_size=10, write_page_checksum=True, **options)
    content = path.read_bytes()
    start = chunk_of(path).data_page_offset
    for place in range(start, start + 30):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with suppress(InputError):
                assert read_all(open_source(path)).equals(table)


PAGED = {
    "numbers with a dictionary": (pa.array(np.arange(60) % 5, pa.int32()), {"use_dictionary": True}),
    "truth values": (pa.array(np.arange(60) % 7 < 3), {"use_dictionary": False}),
    "lists": (pa.array([[i % 3] * (i % 4) for i in range(60)]), {"use_dictionary": True}),
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("kind", PAGED)
def test_a_flipped_bit_in_the_header_of_a_page_is_found(tmp_path: Path, kind: str, version: str) -> None:
    """A header has no checksum; what is read as one value more moves all behind it along."""
    column, options = PAGED[kind]
    table = pa.Table.from_arrays([column], schema=pa.schema([pa.field("a", column.type, nullable=False)]))
    path, ten = tmp_path / "in.parquet", {"max_rows_per_page": 10, "write_batch_size": 10}
    options |= {"compression": "none", "write_page_checksum": True, "data_page_version": version}
    pq.write_table(table, path, **ten, **options)
    content = path.read_bytes()
    start = chunk_of(path).data_page_offset
    refused = 0
    for place in range(start, start + 40):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert read_all(open_source(path))["a"].to_pylist() == column.to_pylist()
            except InputError:
                refused += 1
    assert refused > 40


def test_headers_of_pages_may_be_long(tmp_path: Path) -> None:
    """Statistics hold whole values, two in each header."""
    text = pa.array([f"{i:04} " + "x" * size for i, size in enumerate([1, 300, 2000, 4000, 1, 4000] * 20)])
    options = {"max_rows_per_page": 6, "write_batch_size": 3, "use_dictionary": False}
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=50, **options)
    assert read_all(open_source(path))["t"].to_pylist() == text.to_pylist()


def test_a_record_that_is_too_long_is_named_where_small_row_groups_are_read_together(tmp_path: Path) -> None:
    text = pa.array(["x" * (1200 if row == 25 else 10) for row in range(4000)])
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=10)
    with pytest.raises(InputError, match="row group 2, row 25"):
        read_all(open_source(path), longest=1000)


@pytest.mark.parametrize("group", [0, 7, 199])
def test_of_small_row_groups_the_damaged_one_is_named(tmp_path: Path, group: int) -> None:
    columns = {"a": np.arange(2000, dtype=np.int64), "b": np.arange(2000) % 7}
    options = {"row_group_size": 10, "compression": "none", "use_dictionary": False}
    path = store(tmp_path / "in.parquet", columns, write_page_checksum=True, **options)
    content = bytearray(path.read_bytes())
    content[content.index((10 * group + 3).to_bytes(8, "little"))] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"in\.parquet: row group {group}: a page does not match its checksum"
    ):
        read_all(open_source(path))


@pytest.mark.parametrize("column", [np.arange(5000), np.arange(5000).astype("datetime64[us]")])
def test_footers_that_were_read_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: np.ndarray
) -> None:
    path = store(tmp_path / "in.parquet", {"a": column}, row_group_size=10)
    monkeypatch.setattr(file_module, "_BIN_BYTES", 3 * pq.read_metadata(path).serialized_size)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            read_all(open_source(path))
        alive = sum(isinstance(one, pq.FileMetaData) for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive <= 6


def test_a_footer_is_read_once_for_all_row_groups_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A footer may be larger than a row group by far."""
    path = store(
        tmp_path / "in.parquet", {"t": ["x" * 1000] * 9000}, row_group_size=1000, use_dictionary=False
    )
    source = open_source(path)
    given: list[bool] = []
    parquet_file = pq.ParquetFile

    def watched(*args: Any, metadata: pq.FileMetaData | None, **options: Any) -> pq.ParquetFile:
        given.append(metadata is not None)
        return parquet_file(*args, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", watched)
    fragments = list(source.fragments(0, BLOCK, LONGEST))
    assert not given
    assert sum(batch.num_rows for fragment in fragments for batch in fragment.batches()) == 9000
    assert given == [False] + [True] * (len(fragments) - 1)
    assert len(fragments) > 1


def test_rows_are_read_without_the_schema_that_keeps_a_footer_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels in pages of version 2 are no reason to ask for it either."""
    path = store(
        tmp_path / "in.parquet",
        {"t": [["x" * 1000]] * 9000},
        row_group_size=1000,
        use_dictionary=False,
        data_page_version="2.0",
    )
    thrown: list[int] = []
    monkeypatch.setattr(file_module.BIN, "add", thrown.append)
    source = open_source(path)
    assert thrown == [pq.read_metadata(path).serialized_size]
    fragments = list(source.fragments(0, BLOCK, LONGEST))
    assert len(fragments) > 1
    assert sum(batch.num_rows for fragment in fragments for batch in fragment.batches()) == 9000
    assert len(thrown) == 1


def test_the_memory_of_a_large_footer_is_planned_for(tmp_path: Path) -> None:
    few = store(tmp_path / "few.parquet", {"a": np.arange(20_000)})
    many = store(tmp_path / "many.parquet", {"a": np.arange(20_000)}, row_group_size=2)
    more_bytes = pq.read_metadata(many).serialized_size - pq.read_metadata(few).serialized_size
    without, found = (open_source(*paths).reading_bytes(BLOCK) for paths in ([few], [few, many]))
    assert found >= without + 5 * more_bytes


def test_fixed_and_plain_columns_are_counted_exactly(tmp_path: Path) -> None:
    text = [str(number) * 3 for number in range(5000)]
    store(tmp_path / "in.parquet", {"a": list(range(5000)), "t": text}, use_dictionary=False)
    source = open_source(tmp_path / "in.parquet")
    assert source.inputs[0].native_bytes == pytest.approx(read_all(source).nbytes, rel=0.03)


def test_a_long_record_is_named_with_its_row(tmp_path: Path) -> None:
    store(tmp_path / "in.parquet", {"t": ["a", "b", "c" * 5000, "d"]}, row_group_size=2)
    with pytest.raises(InputError, match=r"in\.parquet: row group 1, row 2: .* 1000 bytes"):
        read_all(open_source(tmp_path / "in.parquet"), longest=1000)


# Files whose schemas differ


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int32(), pa.string()),
        ),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.decimal128(5, 2), pa.decimal256(50, 2), pa.decimal256(50, 2)),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.large_list(pa.int16())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
        (
            pa.struct({"a": pa.int8(), "b": pa.null()}),
            pa.struct({"b": pa.string(), "c": pa.bool_()}),
            pa.struct({"a": pa.int8(), "b": pa.string(), "c": pa.bool_()}),
        ),
    ],
    ids=str,
)
def test_types_are_unified_without_loss(left: pa.DataType, right: pa.DataType, expected: pa.DataType) -> None:
    assert unify_types(left, right) == expected
    assert set(map(str, (unify_types(right, left),))) == {str(unify_types(right, left))}
    assert unify_types(expected, left) == unify_types(expected, right) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.int64(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.bool_(), pa.int8()),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    ],
    ids=str,
)
def test_types_that_would_lose_values_clash(left: pa.DataType, right: pa.DataType) -> None:
    for one, other in ((left, right), (right, left)):
        with pytest.raises(FieldClash):
            unify_types(one, other)


def test_files_with_other_columns_orders_and_types_become_one_table(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"n": pa.array([1], pa.int8()), "t": ["x"]})
    second = store(
        tmp_path / "b.parquet", {"extra": [True], "t": pa.array(["y"]).dictionary_encode(), "n": [2]}
    )
    third = store(tmp_path / "c.parquet", {"t": pa.nulls(1)})
    table = read_all(open_source(first, second, third))
    assert table.schema.names == ["n", "t", "extra"]
    assert table.to_pylist() == [
        {"n": 1, "t": "x", "extra": None},
        {"n": 2, "t": "y", "extra": True},
        {"n": None, "t": None, "extra": None},
    ]


def test_a_required_column_that_is_missing_elsewhere_becomes_nullable(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    pq.write_table(pa.table({"a": [1], "b": [1]}, schema=schema), tmp_path / "a.parquet")
    store(tmp_path / "b.parquet", {"b": [2]})
    source = open_source(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert source.schema.field("a").nullable
    written = load(write_all(source, tmp_path / "out.parquet"))
    assert written["a"].to_pylist() == [1, None]


def test_a_clash_names_both_files_the_field_and_both_types(tmp_path: Path) -> None:
    store(tmp_path / "a.parquet", {"s": pa.array([{"x": 1}])})
    store(tmp_path / "b.parquet", {"s": pa.array([{"x": "one"}])})
    with pytest.raises(InputError, match=r"b\.parquet: field 's\.x': type string .* int64 in a\.parquet"):
        open_source(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_a_time_that_does_not_fit_the_finer_unit_is_an_error(tmp_path: Path) -> None:
    store(tmp_path / "a.parquet", {"t": pa.array([1], pa.timestamp("ns"))})
    store(tmp_path / "b.parquet", {"t": pa.array([2**62], pa.timestamp("ms"))})
    with pytest.raises(InputError, match=r"b\.parquet.*row 0"):
        read_all(open_source(tmp_path / "a.parquet", tmp_path / "b.parquet"))


NESTED = pa.list_(
    pa.struct(
        [("a", pa.dictionary(pa.int8(), pa.string())), ("m", pa.map_(pa.string(), pa.list_(pa.int8())))]
    )
)
WIDE = pa.large_list(
    pa.struct(
        [("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("new", pa.int8()), ("a", pa.large_string())]
    )
)


def test_nested_arrays_conform_at_any_slice() -> None:
    rows = [
        [{"a": "x", "m": [("k", [1, None])]}],
        None,
        [],
        [None, {"a": None, "m": None}],
        [{"a": "y", "m": []}],
    ]
    array = pa.array(rows, NESTED)
    for start in range(len(rows)):
        for stop in range(start, len(rows) + 1):
            part = conform(array.slice(start, stop - start), WIDE)
            part.validate(full=True)
            expected = [
                None
                if row is None
                else [each and {"m": each["m"], "new": None, "a": each["a"]} for each in row]
                for row in rows[start:stop]
            ]
            assert part.to_pylist() == expected


@pytest.mark.parametrize(("view", "plain"), [(pa.list_view, pa.list_), (pa.large_list_view, pa.large_list)])
def test_list_views_become_lists_wherever_nulls_stand(
    view: Callable[[pa.DataType], pa.DataType], plain: Callable[[pa.DataType], pa.DataType]
) -> None:
    rows = [[1, 2], [], None, [3, None], None]
    array = pa.array(rows, view(pa.int32()))
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            part = conform(array.slice(start, stop - start), plain(pa.int32()))
            part.validate(full=True)
            assert part.to_pylist() == rows[start:stop]


def test_dense_types_have_no_dictionaries_and_views() -> None:
    assert dense_type(pa.list_(pa.dictionary(pa.int8(), pa.string()), 3)) == pa.list_(pa.string(), 3)
    assert dense_type(pa.dictionary(pa.int8(), pa.string_view())) == pa.large_string()


# Columns and partitions


def test_columns_are_kept_in_the_order_given(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1], "a.b": [2], "c": [3]})
    assert read_all(open_source(path, columns=("c", "a"))).to_pylist() == [{"c": 3, "a": 1}]
    with pytest.raises(UsageError, match=r"'a\.c'.*'a\.b'"):
        open_source(path, columns=("a.c",))


def partitioned(path: Path, *pairs: tuple[str, str]) -> InputFile:
    return InputFile(path.name, path, partitions=pairs)


def test_folders_become_columns(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"n": [1, 2], "own": [5, 6]})
    second = store(tmp_path / "b.parquet", {"n": [3], "own": [7]})
    inputs = [
        partitioned(first, ("year", "2024"), ("la%6Eg", "en%2Fus"), ("own", "1")),
        partitioned(second, ("year", "__HIVE_DEFAULT_PARTITION__"), ("lang", "7"), ("own", "2")),
    ]
    source = FORMAT.open_source(inputs, ReadOptions())
    assert source.schema.field("year").type == pa.int64()
    assert source.schema.field("lang").type == pa.string()
    expected = [
        {"n": 1, "own": 5, "year": 2024, "lang": "en/us"},
        {"n": 2, "own": 6, "year": 2024, "lang": "en/us"},
        {"n": 3, "own": 7, "year": None, "lang": "7"},
    ]
    assert read_all(source).to_pylist() == expected
    assert load(write_all(source, tmp_path / "out.parquet")).to_pylist() == expected
    only = FORMAT.open_source(inputs, ReadOptions(columns=("year",)))
    assert read_all(only)["year"].to_pylist() == [2024, 2024, None]


def test_inputs_with_other_folders_are_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "a.parquet", {"n": [1]})
    other = store(tmp_path / "b.parquet", {"n": [1]})
    with pytest.raises(InputError, match=r"b\.parquet.*a\.parquet"):
        FORMAT.open_source([partitioned(path, ("k", "1")), partitioned(other)], ReadOptions())


# Layout


@pytest.mark.parametrize(("codec", "stored"), [("none", "UNCOMPRESSED"), ("gzip", "GZIP"), ("lz4", "LZ4")])
def test_codec_and_row_groups_follow_the_inputs(tmp_path: Path, codec: str, stored: str) -> None:
    texts = ["x" * 40_000] * 100
    path = store(tmp_path / "in.parquet", {"a": texts}, compression=codec, row_group_size=30)
    written = write_all(open_source(path), tmp_path / "out.parquet")
    metadata = pq.read_metadata(written)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [30, 30, 30, 10]
    assert chunk_of(written).compression == stored


def test_row_groups_that_are_smaller_than_a_mebibyte_are_made_larger(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": np.arange(300_000)}, row_group_size=100)
    written = write_all(open_source(path), tmp_path / "out.parquet")
    metadata = pq.read_metadata(written)
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(rows) == 300_000
    assert rows[0] == rows[1] == pytest.approx((1 << 20) / 8, rel=0.05)


def test_codecs_follow_column_by_column_unless_one_is_asked_for(tmp_path: Path) -> None:
    columns = {"a": [1], "l": [["x"]]}
    codecs = {"a": "gzip", "l.list.element": "snappy"}
    source = open_source(store(tmp_path / "in.parquet", columns, compression=codecs))
    written = write_all(source, tmp_path / "out.parquet")
    assert [chunk_of(written, column).compression for column in (0, 1)] == ["GZIP", "SNAPPY"]
    options = WriteOptions(compression="zstd", compression_level=9)
    written = write_all(source, tmp_path / "zstd.parquet", options=options)
    assert [chunk_of(written, column).compression for column in (0, 1)] == ["ZSTD", "ZSTD"]


def test_single_row_groups_of_small_files_set_no_limit(tmp_path: Path) -> None:
    paths = [store(tmp_path / f"{index}.parquet", {"a": [index] * 10}) for index in range(5)]
    written = write_all(open_source(*paths), tmp_path / "out.parquet")
    assert pq.read_metadata(written).num_row_groups == 1


def test_dictionaries_follow_the_inputs_but_not_where_the_writer_gave_up(tmp_path: Path) -> None:
    count = 200_000
    columns = {
        "few": pa.array([str(number % 10) for number in range(count)]),
        "unique": pa.array([f"{number:012d}" for number in range(count)]),
        "numbers": pa.array(range(count)),
        "months": pa.array(np.arange(count) % 12),
    }
    path = store(tmp_path / "in.parquet", columns)
    assert all(has_dictionary(path, column) for column in range(4))
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert [has_dictionary(written, column) for column in range(4)] == [True, False, False, True]
    converted = convert(load(path), tmp_path / "converted.parquet")
    assert [has_dictionary(converted, column) for column in range(4)] == [True, False, False, True]
    plain = store(tmp_path / "plain.parquet", columns, use_dictionary=False)
    written = write_all(open_source(plain), tmp_path / "plain out.parquet")
    assert not any(has_dictionary(written, column) for column in range(4))


def test_conversions_fill_row_groups_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "ROW_GROUP_BYTES", 100_000)
    table = pa.table({"a": np.arange(50_000)})
    metadata = pq.read_metadata(convert(table, tmp_path / "out.parquet"))
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert rows[0] == pytest.approx(100_000 / 8, rel=0.4)
    assert set(rows[:-1]) == {rows[0]}


def test_row_groups_are_smaller_where_the_writer_needs_much_more_than_the_data(tmp_path: Path) -> None:
    """Each byte of a list of bytes takes four bytes of levels and four as a wider integer."""
    few = {"l": pa.array([[1] * 100] * 2000, pa.list_(pa.uint8()))}
    flat = {"t": pa.array(["1" * 100] * 2000)}
    rows = {}
    for name, columns in (("few", few), ("flat", flat)):
        layout = open_source(store(tmp_path / name, columns, use_dictionary=False)).layout
        assert isinstance(layout, layout_module.ParquetLayout)
        assert layout.sink_bytes <= layout_module.SINK_BYTES
        rows[name] = layout.row_group_rows
    assert rows["few"] < rows["flat"] / 2


def test_sorting_of_the_inputs_is_not_claimed_for_the_output(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1, 2]}, sorting_columns=[pq.SortingColumn(0)])
    assert pq.read_metadata(path).row_group(0).sorting_columns
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert not pq.read_metadata(written).row_group(0).sorting_columns


def test_written_pages_have_checksums(tmp_path: Path) -> None:
    path = store(
        tmp_path / "in.parquet", {"t": ["a", "needle" * 20, "z"]}, compression="none", use_dictionary=False
    )
    written = write_all(open_source(path), tmp_path / "out.parquet")
    written.write_bytes(written.read_bytes().replace(b"needleneedle", b"needlebeetle", 1))
    with pytest.raises(InputError, match=r"out\.parquet.*checksum"):
        read_all(open_source(written))


# Determinism


def mixed_table() -> pa.Table:
    """Return records of nested and nullable types, nulls only in the second half."""
    draw = random.Random(5)
    rows = [
        {
            "i": index,
            "t": draw.choice(["", "ab", "c" * 300]),
            "u": f"{draw.random()}",
            "n": None if index > 700 and index % 3 else index / 7,
            "l": None if index % 9 == 8 else [draw.choice(["p", "q", None])] * (index % 4),
            "s": {"a": index % 5, "b": None if index > 1000 else "b"},
            "f": [index, None],
        }
        for index in range(1500)
    ]
    schema = pa.schema(
        [
            ("i", pa.int64()),
            ("t", pa.string()),
            ("u", pa.string()),
            ("n", pa.float64()),
            ("l", pa.list_(pa.string())),
            ("s", pa.struct([("a", pa.int8()), ("b", pa.string())])),
            ("f", pa.list_(pa.int32(), 2)),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema).combine_chunks()


TABLE = mixed_table()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 1500), max_size=40), labels=st.booleans(), data=st.data())
def test_bytes_do_not_depend_on_cuts_or_buffers(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], labels: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    table = TABLE.set_column(1, "t", TABLE["t"].dictionary_encode()) if labels else TABLE
    pq.write_table(table, folder / "in.parquet", row_group_size=400)
    source = open_source(folder / "in.parquet")
    batches = cut(TABLE, cuts)
    # Records that were taken are laid out anew; those that were sliced keep the buffers of their parents.
    taken = [
        b.take(pa.array(range(b.num_rows), pa.int64())) if data.draw(st.booleans()) else b for b in batches
    ]
    other = pa.Table.from_batches(taken, schema=TABLE.schema)
    whole = write_all(source, folder / "a.parquet", table=TABLE.cast(source.schema))
    parts = write_all(source, folder / "b.parquet", table=other.cast(source.schema))
    assert whole.read_bytes() == parts.read_bytes()
    assert load(whole).to_pylist() == TABLE.to_pylist()
    plain = convert(TABLE, folder / "c.parquet")
    assert plain.read_bytes() == convert(other, folder / "d.parquet", cuts).read_bytes()


@pytest.mark.parametrize("keeps_layout", [True, False])
def test_pages_do_not_depend_on_cuts(tmp_path: Path, keeps_layout: bool) -> None:
    long = [f"{number:0300}" for number in range(20_000)]
    table = pa.table({"t": long, "few": np.arange(20_000) % 9})
    pq.write_table(table, tmp_path / "in.parquet")
    source = open_source(tmp_path / "in.parquet")
    layout = source.layout if keeps_layout else None
    contents = set()
    for draw in range(4):
        path = tmp_path / f"{draw}.parquet"
        with FORMAT.open_target(table.schema, layout, WriteOptions()).open(path, 1) as sink:
            for batch in cut(table, random.Random(draw).sample(range(20_000), 20 * draw)):
                sink.write(batch)
        contents.add(path.read_bytes())
    assert len(contents) == 1


# What Parquet cannot hold, and failures of the disk


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.decimal128(5, -2),
    ],
    ids=str,
)
def test_types_that_parquet_lacks_are_named_before_a_file_is_made(kind: pa.DataType) -> None:
    schema = pa.schema([("fine", pa.int8()), ("odd", kind)])
    with pytest.raises(ConversionError, match="'odd'"):
        FORMAT.open_target(schema, None, WriteOptions())


def test_options_that_do_not_fit_are_refused() -> None:
    for options in (
        WriteOptions(compression="snappy", compression_level=3),
        WriteOptions(compression="7zip"),
    ):
        with pytest.raises(UsageError, match=str(options.compression)):
            FORMAT.open_target(pa.schema([("a", pa.int8())]), None, options)
    with pytest.raises(UsageError, match="stream"):
        FORMAT.open_source([InputFile("-", None)], ReadOptions())


@pytest.mark.parametrize("limit", [0, 3, 1000, 70_000, 300_000])
def test_a_full_disk_is_an_oserror_and_nothing_follows(tmp_path: Path, limit: int) -> None:
    table = pa.table({"a": np.random.default_rng(1).random(100_000)})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared below
            convert(table, tmp_path / "out.parquet")
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "out.parquet").stat().st_size <= limit


def test_a_link_in_place_of_the_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="exists"):
        convert(pa.table({"a": [1]}), tmp_path / "out.parquet")
    assert not (tmp_path / "elsewhere").exists()


def test_no_columns_and_no_rows_are_a_valid_file(tmp_path: Path) -> None:
    table = load(convert(pa.table({}), tmp_path / "out.parquet"))
    assert table.shape == (0, 0)


# Files that cannot be read


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"hello, world, this is text", "not a Parquet file"),
        (b"PAR1 and then nothing more", "cut off"),
        (b"PAR1 some bytes and then \x04\x00\x00\x00PARE", "encrypted"),
        (b"PAR1garbage!\x08\x00\x00\x00PAR1", "cannot be read as Parquet"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "cannot be read as Parquet"),
    ],
)
def test_files_that_are_not_parquet_say_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(InputError, match=f"bad.parquet: .*{problem}"):
        open_source(tmp_path / "bad.parquet")


def test_missing_files_and_folders_say_so(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=problem):
            open_source(path)


def test_a_file_that_changes_between_the_passes_is_an_error(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1, 2]})
    source = open_source(path)
    store(path, {"a": [1, 2, 3]})
    with pytest.raises(InputError, match="changed"):
        read_all(source)


def test_a_summary_of_other_files_is_refused(tmp_path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part.parquet", metadata_collector=collected)
    collected[0].set_file_path("part.parquet")
    collected[0].write_metadata_file(tmp_path / "_metadata")
    with pytest.raises(InputError, match="holds only the metadata"):
        open_source(tmp_path / "_metadata")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    assert open_source(tmp_path / "_common_metadata").inputs[0].record_count == 0


def test_damaged_bytes_never_give_other_records(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(300)), "t": [str(number % 9) for number in range(300)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100, write_page_checksum=True)
    content = (tmp_path / "in.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    draw = random.Random(3)
    errors = 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[draw.randrange(4, footer)] ^= 1 << draw.randrange(8)
        (tmp_path / "bad.parquet").write_bytes(damaged)
        try:
            assert read_all(open_source(tmp_path / "bad.parquet")).equals(table)
        except InputError as error:
            assert "bad.parquet" in str(error)
            errors += 1
    assert errors > 80


def int96_file(path: Path, times: pa.Array, *, by_spark: bool) -> Path:
    table = pa.table({"t": times})
    if by_spark:
        table = table.replace_schema_metadata({"org.apache.spark.version": "3.5"})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    return path


def test_int96_times_keep_their_value_or_are_an_error(tmp_path: Path) -> None:
    fine = pa.array([0, -86_400_000_000_000, None, 1_700_000_000_123_456_789], pa.timestamp("ns"))
    late = pa.array([datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1)], pa.timestamp("us"))
    path = int96_file(tmp_path / "fine.parquet", fine, by_spark=False)
    assert read_all(open_source(path))["t"].equals(pa.chunked_array([fine]))
    path = int96_file(tmp_path / "spark.parquet", late, by_spark=True)
    written = load(write_all(open_source(path), tmp_path / "out.parquet"))
    assert written["t"].to_pylist() == late.to_pylist()
    path = int96_file(tmp_path / "late.parquet", late, by_spark=False)
    with pytest.raises(InputError, match=r"late\.parquet: field 't'.*outside the range"):
        read_all(open_source(path))


# Real files


NO_RECORDS = {
    "no_columns.parquet": "no columns",
    "no_columns_new.parquet": "no columns",
    "_metadata": "holds only the metadata",
}
UNREADABLE = {
    "incorrect_map_schema.parquet": "Map keys",
    "datapage_v1-corrupt-checksum.parquet": "checksum",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "checksum",
    # One of its times is beyond what 64 bits hold in microseconds.
    "int96_from_spark.parquet": "outside the range",
    **NO_RECORDS,
}


# Not all versions of pyarrow before 20 read these.
NEEDS_PYARROW_20 = {
    "datapage_v2_empty_datapage.snappy.parquet",
    "overflow_i16_page_cnt.parquet",
    "page_v2_empty_compressed.parquet",
    "unknown-logical-type.parquet",
}


def problem_of(path: Path) -> str | None:
    """Return what a real file must be refused for; None if it must be read."""
    return "encrypted" if path.suffix == ".encrypted" else UNREADABLE.get(path.name)


def test_every_real_file_survives_or_says_why_not(corpora: Path, tmp_path: Path) -> None:
    suffixes = (".parquet", ".parq", ".encrypted")
    files = sorted(
        path for path in (corpora / "parquet").rglob("*") if path.is_file() and path.suffix in suffixes
    )
    files += [path for path in (corpora / "parquet").rglob("_metadata") if path.is_file()]
    assert len(files) > 150
    if int(pa.__version__.split(".")[0]) < 20:
        files = [path for path in files if path.name not in NEEDS_PYARROW_20]
    for index, path in enumerate(files):
        out = tmp_path / f"{index}.parquet"
        problem = problem_of(path)
        if problem is not None:
            with pytest.raises(InputError, match=problem):
                write_all(open_source(path), out)
            continue
        source = open_source(path)
        write_all(source, out)
        before, after = load(path), load(out)
        assert source.inputs[0].record_count == before.num_rows == after.num_rows, path
        assert after.schema.equals(before.schema), path
        assert holds_the_same(before, after), path
