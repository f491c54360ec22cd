"""What other tools store beside the columns is true of the shuffled records: indices, counts, extents, copies of schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.errors import InputError
from tests.support.formats.parquet_tools import open_source, read_all, shuffled, store

if TYPE_CHECKING:
    from pathlib import Path

pd = pytest.importorskip("pandas")

ROWS = 50


def frame(index: Any = None, first: int = 0) -> Any:
    return pd.DataFrame({"a": [f"{first + row}" for row in range(ROWS)]}, index=index)


def store_frames(folder: Path, *frames: Any) -> list[Path]:
    paths = [folder / f"{number}.parquet" for number in range(len(frames))]
    for path, one in zip(paths, frames, strict=True):
        one.to_parquet(path, row_group_size=7)
    return paths


INDICES = {
    "name": pd.RangeIndex(ROWS, name="id"),
    "start": pd.RangeIndex(10, 10 + ROWS),
    "step": pd.RangeIndex(0, -3 * ROWS, -3, name="id"),
    "column": pd.RangeIndex(ROWS, name="a"),
    "number": pd.RangeIndex(ROWS, name=7),
    "values": pd.Index([3 * row % 50 for row in range(ROWS)], name="id"),
    "levels": pd.MultiIndex.from_tuples([(row, f"{row}") for row in range(ROWS)], names=["x", "y"]),
}


def test_each_row_of_a_data_frame_keeps_its_index(tmp_path: Path) -> None:
    for kind, index in INDICES.items():
        given = frame(index)
        found = pd.read_parquet(shuffled(*store_frames(tmp_path, given)))
        assert list(found.index) != list(given.index), kind
        assert found.index.names == given.index.names, kind
        assert sorted(zip(found.index, found["a"], strict=True)) == sorted(
            zip(given.index, given["a"], strict=True)
        ), kind


def test_row_numbers_and_ranges_of_other_rows_are_no_index(tmp_path: Path) -> None:
    """As of a file from which rows were taken by a tool that knows nothing of pandas, which then ignores it."""
    for index, first in ((None, 0), (INDICES["step"], 3)):
        [path] = store_frames(tmp_path, frame(index))
        store(path, pq.read_table(path).slice(first))
        output = shuffled(path)
        assert pq.read_schema(output).names == ["a"]
        assert list(pd.read_parquet(output).index) == list(range(ROWS - first))


def test_the_indices_of_many_files_go_on_in_each(tmp_path: Path) -> None:
    indices = [pd.RangeIndex(100 * number, 100 * number + ROWS, name="id") for number in range(5)]
    paths = store_frames(tmp_path, *[frame(index, index.start) for index in indices])
    for block_bytes in (1 << 10, 1 << 20):
        table = read_all(open_source(*paths), block_bytes)
        assert table["a"].to_pylist() == [str(index) for index in table["id"].to_pylist()]
    found = pd.read_parquet(shuffled(*paths))
    assert list(found.index) == found["a"].astype(int).to_list()


def test_an_index_is_the_column_of_another_file(tmp_path: Path) -> None:
    paths = store_frames(tmp_path, frame(INDICES["name"]), frame(INDICES["values"]), frame())
    found = pd.read_parquet(shuffled(*paths)).reset_index()
    expected = [*range(ROWS), *INDICES["values"]]
    assert sorted(found["id"].dropna()) == sorted(expected)
    assert found["id"].isna().sum() == ROWS


def test_an_index_is_left_out_as_other_columns_are(tmp_path: Path) -> None:
    paths = store_frames(tmp_path, frame(INDICES["name"]))
    assert pq.read_schema(shuffled(*paths, columns="a")).names == ["a"]
    assert pq.read_schema(shuffled(*paths, columns="id")).names == ["id"]
    assert list(pd.read_parquet(shuffled(*paths, columns="a")).index) == list(range(ROWS))


def with_metadata(path: Path, columns: dict[str, Any], metadata: dict[str, str]) -> Path:
    return store(path, pa.table(columns).replace_schema_metadata(metadata))


def test_claims_of_hugging_face_are_dropped_and_its_features_kept(tmp_path: Path) -> None:
    features = {name: {"dtype": "int64", "_type": "Value"} for name in "xy"}
    info = {
        "features": features,
        "splits": {"train": {"num_examples": 7}},
        "dataset_size": 9,
        "license": "mit",
    }
    metadata = {"huggingface": json.dumps({"info": info, "fingerprint": "0123456789abcdef"})}
    path = with_metadata(tmp_path / "in.parquet", {"x": [1, 2], "y": [3, 4]}, metadata)
    for options in ({}, {"columns": "y"}, {"provenance": True}):
        kept = json.loads(pq.read_schema(shuffled(path, **options)).metadata[b"huggingface"])
        assert kept.keys() == {"info"}
        assert kept["info"].keys() == {"features", "license"}


def test_claims_on_one_file_are_dropped_and_all_else_is_kept(tmp_path: Path) -> None:
    geo = {"columns": {"g": {"encoding": "WKB", "bbox": [0, 0, 1, 1]}}, "version": "1.1.0"}
    metadata = {
        "geo": json.dumps(geo),
        "hoodie_min_record_key": "1",
        "content_defined_chunking": "{}",
        "author": "me",
        "pandas": "no JSON",
    }
    path = with_metadata(tmp_path / "in.parquet", {"g": [b"1", b"2"]}, metadata)
    kept = pq.read_schema(shuffled(path)).metadata
    assert kept.keys() == {b"geo", b"author", b"pandas"}
    assert json.loads(kept[b"geo"])["columns"] == {"g": {"encoding": "WKB"}}


def test_claims_on_geometries_hold_for_all_files(tmp_path: Path) -> None:
    def geo_file(name: str, crs: str, *types: str) -> Path:
        geo = {
            "columns": {"g": {"encoding": "WKB", "crs": crs, "geometry_types": types, "bbox": [len(types)]}}
        }
        return with_metadata(tmp_path / name, {"g": [b"1"]}, {"geo": json.dumps(geo)})

    points, lines = (
        geo_file("0.parquet", "EPSG:4326", "Point"),
        geo_file("1.parquet", "EPSG:4326", "LineString"),
    )
    far = geo_file("2.parquet", "EPSG:3857", "Point")
    for paths, types in (([points, points], ["Point"]), ([points, lines], []), ([lines, points, lines], [])):
        kept = json.loads(pq.read_schema(shuffled(*paths)).metadata[b"geo"])
        assert kept["columns"] == {"g": {"encoding": "WKB", "crs": "EPSG:4326", "geometry_types": types}}
    with pytest.raises(InputError, match=r"2\.parquet: field 'g', key 'geo/crs': is .*3857.* here and"):
        shuffled(points, lines, far)


def test_a_copy_of_the_schema_is_kept_where_it_is_the_schema(tmp_path: Path) -> None:
    copy = {"org.apache.spark.sql.parquet.row.metadata": "{}", "org.apache.spark.version": "3.5"}
    first = with_metadata(tmp_path / "0.parquet", {"n": pa.array([1], pa.int32())}, copy)
    second = with_metadata(tmp_path / "1.parquet", {"n": pa.array([1], pa.int64())}, copy)
    assert len(pq.read_schema(shuffled(first, first)).metadata) == 2
    assert len(pq.read_schema(shuffled(first, second)).metadata) == 1
    assert len(pq.read_schema(shuffled(first, provenance=True)).metadata) == 1
