"""Shards are stored as the inputs are, their bytes depend on records alone, and what cannot be written is refused."""

import base64
import errno
import gc
import io
import random
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, UsageError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import WriteOptions
from tests.conftest import Run
from tests.support.formats.parquet_tools import (
    chunk_of,
    convert,
    cut,
    group_rows,
    load,
    open_source,
    read_all,
    store,
    watched_memory,
    write_all,
)


def dictionaries_of(path: Path) -> list[bool]:
    columns = range(pq.read_metadata(path).num_columns)
    return [chunk_of(path, column).has_dictionary_page for column in columns]


# What a shard takes from the inputs


def has_checksums(path: Path) -> bool:
    """Tell whether a reader notices a flipped bit at the end of the last page."""
    chunk, content = chunk_of(path), bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    try:
        pq.read_table(io.BytesIO(content), page_checksum_verification=True)
    except OSError as error:
        return "CRC checksum" in str(error)
    return False


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [("without", False), ("with", True), ("with without", True), ("without with", False), ("jsonl", False)],
)
def test_pages_have_checksums_as_those_of_the_first_input_or_as_an_option_says(
    tmp_path: Path, call: Run, inputs: str, expected: bool
) -> None:
    options = {"compression": "none", "use_dictionary": False}
    for kind in ("with", "without"):
        store(tmp_path / kind, {"a": np.arange(9)}, write_page_checksum=kind == "with", **options)
    (tmp_path / "jsonl").write_text('{"a": 1}\n')
    out, paths = tmp_path / "out.parquet", [tmp_path / name for name in inputs.split()]
    for given, wanted in (((), expected), (("--page-checksums",), True), (("--no-page-checksums",), False)):
        assert call(*paths, "-o", out, "--overwrite", "--compression", "none", *given).returncode == 0
        assert has_checksums(out) == wanted
    assert call(*paths, "-o", tmp_path / "out.txt", "--to", "csv", "--page-checksums").returncode == 2


def test_a_store_and_a_table_have_checksums_of_pages_as_their_inputs_have_or_as_an_argument_says(
    tmp_path: Path,
) -> None:
    path = store(tmp_path / "in.parquet", {"a": np.arange(9)}, write_page_checksum=True, use_dictionary=False)
    recshuf.scatter(path, tmp_path / "s.piles")
    recshuf.gather(tmp_path / "s.piles", tmp_path / "store.parquet")
    recshuf.shuffle(pa.table({"a": np.arange(9)}), tmp_path / "table.parquet", compression="none")
    recshuf.gather(tmp_path / "s.piles", tmp_path / "none.parquet", page_checksums=False)
    found = {name: has_checksums(tmp_path / f"{name}.parquet") for name in ("store", "table", "none")}
    assert found == {"store": True, "table": False, "none": False}


@pytest.mark.parametrize(
    ("codec", "stored", "rest"), [("none", "UNCOMPRESSED", [10]), ("gzip", "GZIP", [1]), ("lz4", "LZ4", [])]
)
def test_codec_and_row_groups_follow_the_inputs(
    tmp_path: Path, codec: str, stored: str, rest: list[int]
) -> None:
    texts = [f"{row:040000}" for row in range(90 + sum(rest))]
    path = store(tmp_path / "in.parquet", {"a": texts}, compression=codec, row_group_size=30)
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert group_rows(written) == [30, 30, 30, *rest]
    assert load(written)["a"].to_pylist() == texts
    assert chunk_of(written).compression == stored


def test_dictionaries_follow_the_inputs_but_not_where_the_writer_gave_up(tmp_path: Path) -> None:
    count = 200_000
    columns = {
        "few": pa.array([str(number % 10) for number in range(count)]),
        "unique": pa.array([f"{number:012d}" for number in range(count)]),
        "numbers": pa.array(range(count)),
        "months": pa.array(np.arange(count) % 12),
    }
    path, worth = store(tmp_path / "in.parquet", columns), [True, False, False, True]
    assert dictionaries_of(path) == [True] * 4
    assert dictionaries_of(write_all(open_source(path), tmp_path / "out.parquet")) == worth
    assert dictionaries_of(convert(load(path), tmp_path / "made.parquet")) == worth
    plain = open_source(store(tmp_path / "plain.parquet", columns, use_dictionary=False))
    assert dictionaries_of(write_all(plain, tmp_path / "plain out.parquet")) == [False] * 4


ROW_BYTES = 1 << 16


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (bytes(ROW_BYTES), pa.binary(ROW_BYTES)),
        (None, pa.binary(ROW_BYTES)),
        (None, pa.struct([("x", pa.list_(pa.float64(), ROW_BYTES // 16)), ("y", pa.binary(ROW_BYTES // 2))])),
        (None, pa.fixed_shape_tensor(pa.int16(), (ROW_BYTES // 2,))),
    ],
    ids=str,
)
def test_conversions_fill_row_groups_by_bytes(tmp_path: Path, value: bytes | None, kind: pa.DataType) -> None:
    """Nulls take the memory of values, though none in a file."""
    table = pa.table({"a": pa.array([value] * 100, kind)})
    target = FORMAT.open_target(table.schema, None, WriteOptions(compression="none"))
    with target.open(tmp_path / "out.parquet", 1) as sink:
        for _ in range(25):
            sink.write(table.to_batches()[0])
    rows = group_rows(tmp_path / "out.parquet")
    assert rows[0] == rows[1] == pytest.approx((64 << 20) / ROW_BYTES, rel=0.05)
    assert sum(rows) == 2500


@pytest.mark.parametrize(("first", "rows"), [(4 << 20, [16, 4]), (0, [18, 2])])
def test_row_groups_of_conversions_hold_few_long_records(tmp_path: Path, first: int, rows: list[int]) -> None:
    """Also the first one, whose size is found by writing some records: not more of them than it has room for."""
    long = bytes((4 << 20) - 200)
    table = pa.table({"a": pa.array([bytes(first), *[long] * 19][: sum(rows)], pa.binary())})
    assert group_rows(convert(table, tmp_path / "out.parquet")) == rows


# Bytes


def wide_table(rows: int) -> pa.Table:
    """Return rows of 1 kB."""
    draw = np.random.default_rng(1)
    numbers = draw.integers(0, 1 << 40, rows)
    schema = pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("half", pa.float64(), metadata={"unit": "m"}),
            ("text", pa.string()),
            ("list", pa.list_(pa.int32())),
            ("few", pa.dictionary(pa.int8(), pa.string())),
        ],
        {"made by": "the tests"},
    )
    columns = {
        "number": numbers,
        "half": [None if number % 5 == 0 else number / 2 for number in numbers.tolist()],
        "text": [f"{number:01000}" for number in numbers],
        "list": [[number % 1000] * (number % 3) for number in numbers.tolist()],
        "few": pa.array([f"{number % 3}" for number in numbers]).dictionary_encode().cast(schema.types[4]),
    }
    return pa.table(columns, schema=schema)


@pytest.mark.parametrize(
    ("options", "summed"),
    [(WriteOptions(), True), (WriteOptions("zstd", 9), False), (WriteOptions("gzip", 1), True)],
    ids=str,
)
def test_a_shard_is_the_file_of_a_single_writer(tmp_path: Path, options: WriteOptions, summed: bool) -> None:
    """Row groups are encoded apart, by several threads, and statistics, checksums and levels are those of a library."""
    table, size = wide_table(5300), 1100
    stored = {"compression": "snappy", "use_dictionary": ["few"], "write_page_checksum": summed}
    path = store(tmp_path / "in.parquet", table, row_group_size=size, **stored)
    source = open_source(path)
    stream, native = io.BytesIO(), source.schema
    with pq.ParquetWriter(
        stream,
        native,
        compression=options.compression or "snappy",
        compression_level=options.compression_level,
        use_dictionary=["few"],
        version="2.6",
        write_page_checksum=summed,
        store_schema=False,
        use_compliant_nested_type=False,
    ) as writer:
        for start in range(0, len(table), size):
            writer.write_table(table.slice(start, size).cast(native).combine_chunks())
        declared = load(path).schema
        encoded = base64.b64encode(pa.ipc.read_schema(declared.serialize()).serialize())
        writer.add_key_value_metadata({b"ARROW:schema": encoded, **declared.metadata})
    for threads in (1, 5):
        batches = cut(read_all(source), random.Random(threads).sample(range(5300), 9))
        # Records that are taken are laid out anew; those that are sliced keep the buffers of their parents.
        batches = [b.take(pa.array(range(len(b)))) if number % 2 else b for number, b in enumerate(batches)]
        written = write_all(
            source, tmp_path / f"{threads}.parquet", options=options, batches=batches, threads=threads
        )
        assert written.read_bytes() == stream.getvalue()
    statistics = chunk_of(written, 1, 4).statistics
    values = [value for value in table["half"].to_pylist()[4 * size :] if value is not None]
    assert (statistics.min, statistics.max) == (min(values), max(values))
    assert statistics.null_count == len(table) - 4 * size - len(values)


def test_pages_of_conversions_do_not_depend_on_cuts(tmp_path: Path) -> None:
    """The suite cuts batches of its own format."""
    table = pa.table({"t": [f"{number:0300}" for number in range(12_000)], "few": np.arange(12_000) % 9})
    cuts = [(), random.Random(1).sample(range(12_000), 40), range(3000)]
    paths = [convert(table, tmp_path / f"{number}.parquet", each) for number, each in enumerate(cuts)]
    assert len({path.read_bytes() for path in paths}) == 1
    assert load(paths[0]).equals(table)


LONG = [bytes([number]) * 80_000 if number % 9 else None for number in range(250)]
IN_LISTS = [[value, b"", value] if number % 2 else None for number, value in enumerate(LONG)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(LONG, pa.large_binary()),
        pa.array([{"image": {"bytes": value, "path": "x"}} if value else None for value in LONG]),
        pa.array(
            [values and [("key", value) for value in values] for values in IN_LISTS],
            pa.map_("string", "binary"),
        ),
        pa.array([value or bytes(80_000) for value in LONG], pa.binary(80_000)),
    ],
    ids=["bytes", "structs", "maps", "fixed"],
)
def test_pages_of_long_values_are_small_wherever_batches_are_cut(tmp_path: Path, column: pa.Array) -> None:
    table = pa.table({"long": column, "short": np.arange(len(column))})
    paths = [
        convert(table, tmp_path / f"{number}", each) for number, each in enumerate([(), range(1, 250, 7)])
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert load(paths[0]).equals(table)
    with watched_memory() as pool:
        next(
            pq.ParquetFile(paths[0], pre_buffer=False, buffer_size=1 << 16).iter_batches(1, columns=["long"])
        )
    assert pool.max_memory() < 12_000_000


# Refusals


def test_options_that_do_not_fit_are_refused() -> None:
    schema = pa.schema([("a", pa.int8())])
    for codec, level in (("snappy", 3), ("7zip", None), ("none", 1)):
        with pytest.raises(UsageError, match=codec):
            FORMAT.open_target(schema, None, WriteOptions(compression=codec, compression_level=level))


def test_a_type_that_could_not_be_read_back_is_refused() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    schema, file = pa.schema([("a", pa.int8()), ("deep", kind)]), io.BytesIO()
    try:
        FORMAT.open_target(schema, None, WriteOptions())
    except ConversionError as error:
        assert "'deep'" in str(error)
    else:  # as a pyarrow that has no limit does
        pq.write_table(schema.empty_table(), file)
        assert pq.read_table(file).schema == schema


def test_a_full_disk_is_an_oserror_and_nothing_follows(tmp_path: Path) -> None:
    table = pa.table({"a": np.random.default_rng(1).random(100_000)})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 1000, 300_000):
        path = tmp_path / f"{limit}.parquet"
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
        try:
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared below
                convert(table, path)
            gc.collect()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert caught.value.errno == errno.EFBIG
        assert path.stat().st_size <= limit


def test_no_columns_and_no_rows_are_a_valid_file(tmp_path: Path) -> None:
    assert load(convert(pa.table({}), tmp_path / "out.parquet")).shape == (0, 0)
    records = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    target = FORMAT.open_target(records.schema, None, WriteOptions())
    with pytest.raises(ConversionError, match="no fields"), target.open(tmp_path / "2.parquet", 1) as sink:
        sink.write(records)
