"""Bytes of a shard depend on its records alone, pages have checksums, and what cannot be written is refused."""

from __future__ import annotations

import errno
import gc
import random
import resource
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile, ReadOptions, WriteOptions
from tests.support.formats.parquet_tools import convert, cut, load, open_source, read_all, store, write_all

if TYPE_CHECKING:
    from pathlib import Path


def test_an_empty_shard_has_a_row_group(tmp_path: Path) -> None:
    """Without one, pyarrow 18 cannot read columns of dictionary type."""
    path = store(tmp_path / "in.parquet", {"t": pa.array(["x", None, "x"]).dictionary_encode().slice(0, 0)})
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert pq.read_metadata(written).num_row_groups == 1
    assert load(written).num_rows == 0


def test_written_pages_have_checksums(tmp_path: Path) -> None:
    path = store(
        tmp_path / "in.parquet", {"t": ["a", "needle" * 20, "z"]}, compression="none", use_dictionary=False
    )
    written = write_all(open_source(path), tmp_path / "out.parquet")
    written.write_bytes(written.read_bytes().replace(b"needleneedle", b"needlebeetle", 1))
    with pytest.raises(InputError, match=r"out\.parquet.*checksum"):
        read_all(open_source(written))


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
