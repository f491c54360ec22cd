"""Times of 96 bits keep their value, or are an error."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.errors import InputError
from tests.support.parquet_tools import load, open_source, read_all, write_all

if TYPE_CHECKING:
    from pathlib import Path


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
