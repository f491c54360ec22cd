"""Times of 96 bits keep their value: the unit of a column holds every time of every input exactly, or the inputs are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.parquet_tools import load, open_source, read_all

if TYPE_CHECKING:
    from pathlib import Path

FINE = [0, -86_400_000_000_001, None, 1_700_000_000_123_456_789, 2**63 - 1, -(2**63)]
COARSE = [0, -86_400_000_001, None, 1_700_000_000_123_456]
"""Microseconds within the range of nanoseconds."""
LATE = [253_402_214_400_000_001, -62_135_596_800_000_000, *COARSE]
"""The years 9999 and 1, in microseconds."""
KINDS = {"fine": pa.array(FINE, pa.timestamp("ns")), "coarse": pa.array(COARSE, pa.timestamp("us"))}
KINDS["late"] = pa.array(LATE, pa.timestamp("us"))


def int96_file(path: Path, times: pa.Array, *, by_spark: bool = False, **options: Any) -> Path:
    table = pa.table({"t": times, "n": pa.array(np.arange(len(times)), pa.int16())})
    if by_spark:
        table = table.replace_schema_metadata({"org.apache.spark.version": "3.5"})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, **options)
    return path


def counts_of(times: pa.Array | pa.ChunkedArray) -> list[int | None]:
    return [None if time is None else int(time) for time in times.cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize("by_spark", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group_rows", [1, 100])
def test_times_keep_their_value(tmp_path: Path, kind: str, by_spark: bool, group_rows: int) -> None:
    times = KINDS[kind]
    path = int96_file(tmp_path / "in.parquet", times, by_spark=by_spark, row_group_size=group_rows)
    recshuf.shuffle(path, tmp_path / "out.parquet", seed=1, verify=True)
    found = load(tmp_path / "out.parquet").sort_by("n")["t"].combine_chunks()
    assert found.type.unit == {"fine": "ns", "late": "us", "coarse": "us" if by_spark else "ns"}[kind]
    assert counts_of(found.cast(times.type)) == counts_of(times)


@pytest.mark.parametrize("late_file", [0, 1, 2])
def test_one_unit_holds_the_times_of_all_files(tmp_path: Path, late_file: int) -> None:
    kinds = ["coarse"] * 3
    kinds[late_file] = "late"
    paths = [int96_file(tmp_path / f"{index}.parquet", KINDS[kind]) for index, kind in enumerate(kinds)]
    found = read_all(open_source(*paths))["t"]
    assert found.type == pa.timestamp("us")
    assert counts_of(found) == [time for kind in kinds for time in counts_of(KINDS[kind])]


def test_a_spark_file_among_others_takes_their_unit(tmp_path: Path) -> None:
    fine = int96_file(tmp_path / "fine.parquet", KINDS["fine"])
    spark = int96_file(tmp_path / "spark.parquet", KINDS["coarse"], by_spark=True)
    for paths in ((fine, spark), (spark, fine)):
        assert read_all(open_source(*paths))["t"].type == pa.timestamp("ns")


def test_times_that_no_unit_holds_are_refused(tmp_path: Path) -> None:
    fine, late = (int96_file(tmp_path / f"{kind}.parquet", KINDS[kind]) for kind in ("fine", "late"))
    for paths in ((fine, late), (late, fine)):
        problem = (
            r"fine\.parquet: field 't', row group 0: an INT96 time has digits below microseconds, and "
            r"an INT96 time is outside the range of nanoseconds in 64 bits in .*late\.parquet; leave the column out"
        )
        with pytest.raises(InputError, match=problem):
            open_source(*paths)
        assert open_source(*paths, columns=("n",)).schema.names == ["n"]


def test_times_in_lists_structs_and_maps_keep_their_value(tmp_path: Path) -> None:
    for kind, unit in (("fine", "ns"), ("late", "us")):
        times = KINDS[kind]
        lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 6], pa.int32()), times)
        nested = pa.StructArray.from_arrays([lists, pa.array([1, None, 2])], ["l", "n"])
        maps = pa.MapArray.from_arrays(lists.offsets, pa.array(list("abcdef")), times)
        path = int96_file(tmp_path / "in.parquet", nested)
        table = pa.table({"s": nested, "m": maps, "t": times.slice(0, 3)})
        pq.write_table(table, path, use_deprecated_int96_timestamps=True)
        found = read_all(open_source(path))
        assert found.schema.field("s").type.field("l").type.value_type.unit == unit
        assert found.schema.field("m").type.item_type.unit == unit
        assert counts_of(found["s"].combine_chunks().field("l").values) == counts_of(times)
        assert counts_of(found["m"].combine_chunks().items) == counts_of(times)


def test_times_with_a_unit_beside_them_stay_as_they_are(tmp_path: Path) -> None:
    int96_file(tmp_path / "late.parquet", KINDS["late"])
    pq.write_table(pa.table({"u": pa.array(FINE, pa.timestamp("ns"))}), tmp_path / "plain.parquet")
    table = read_all(open_source(tmp_path / "late.parquet", tmp_path / "plain.parquet"))
    assert table["u"].type == pa.timestamp("ns")
    assert counts_of(table["u"])[len(LATE) :] == FINE
    assert table["t"].type == pa.timestamp("us")
