"""Codecs, row groups and dictionaries of the output follow the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.formats.parquet.plan import SINK_BYTES, ParquetLayout
from recshuf.interfaces import WriteOptions
from tests.support.formats.parquet_tools import chunk_of, convert, load, open_source, store, write_all

if TYPE_CHECKING:
    from pathlib import Path


def has_dictionary(path: Path, column: int = 0) -> bool:
    return chunk_of(path, column).has_dictionary_page


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
    monkeypatch.setattr("recshuf.formats.parquet.plan.ROW_GROUP_BYTES", 100_000)
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
        assert isinstance(layout, ParquetLayout)
        assert layout.sink_bytes <= SINK_BYTES
        rows[name] = layout.row_group_rows
    assert rows["few"] < rows["flat"] / 2


def test_sorting_of_the_inputs_is_not_claimed_for_the_output(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1, 2]}, sorting_columns=[pq.SortingColumn(0)])
    assert pq.read_metadata(path).row_group(0).sorting_columns
    written = write_all(open_source(path), tmp_path / "out.parquet")
    assert not pq.read_metadata(written).row_group(0).sorting_columns
