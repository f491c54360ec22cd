"""What Parquet files say beside their records must agree, and is true of the shuffled ones: features, types, indices, counts, copies."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, RecshufWarning
from tests.support.effort import mostly_slow
from tests.support.formats.parquet_tools import open_source, read_all, shuffled, store

Value = {"dtype": "int64", "_type": "Value"}


def label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def features(**given: Any) -> dict[str, str]:
    return {"huggingface": json.dumps({"info": {"features": given}})}


ROWS = 4
COLUMNS = {
    "x": pa.array(range(ROWS)),
    "label": pa.array([0, 1] * 2),
    "s": pa.array([{"tags": [0, 1], "n": 1}] * ROWS),
}


def write(
    folder: Path, metadata: dict[str, str] | None = None, *names: str, **fields: dict[str, str]
) -> Path:
    """Write a file with the metadata of its schema, only columns of some names, and the metadata of fields."""
    columns = {name: COLUMNS[name] for name in names or COLUMNS}
    schema = [pa.field(name, one.type, metadata=fields.get(name)) for name, one in columns.items()]
    path = folder / f"{len([*folder.iterdir()])}.parquet"
    return store(path, pa.table([*columns.values()], schema=pa.schema(schema, metadata=metadata)))


def read_shuffled(*paths: Path, **options: Any) -> pa.Schema:
    return pq.read_schema(shuffled(*paths, **options))


NESTED = {
    "column": lambda one: features(x=Value, label=one),
    "sequence": lambda one: features(s={"tags": {"feature": one, "_type": "Sequence"}, "n": Value}),
    "list": lambda one: features(s={"tags": [one], "n": Value}),
    "struct of its name": lambda one: features(s={"labels": {"names": one}}),
}


@pytest.mark.parametrize("kind", mostly_slow(NESTED, *[*NESTED][::2]))
def test_class_names_must_agree_wherever_they_stand(tmp_path: Path, kind: str) -> None:
    make = NESTED[kind]
    short, long, other = (write(tmp_path, make(label(*names))) for names in ("ab", "abc", "ba"))
    for order in ([short, long], [long, short], [short, long, short]):
        found = read_shuffled(*order).metadata[b"huggingface"]
        assert json.loads(found) == json.loads(make(label("a", "b", "c"))["huggingface"])
    for order in ([short, other], [long, other]):
        with pytest.raises(InputError, match=r"key 'huggingface/names': is \[\"b\", \"a\"\] here"):
            read_shuffled(*order)
    with pytest.warns(RecshufWarning, match="huggingface/names"):
        read_shuffled(short, other, first_metadata=True)


def test_features_of_columns_that_are_not_in_a_file_are_those_of_others(tmp_path: Path) -> None:
    """Also if no feature is known of the first file, and columns that are left out do not matter."""
    with_label = features(x=Value, label=label("a", "b"))
    bare, without, given = (
        write(tmp_path, None, "x"),
        write(tmp_path, features(x=Value), "x"),
        write(tmp_path, with_label),
    )
    for first in (bare, without):
        for order in ([first, given], [given, first]):
            found = json.loads(read_shuffled(*order).metadata[b"huggingface"])
            assert found["info"]["features"]["label"] == label("a", "b")
    other = write(tmp_path, features(x=Value, label=label("b", "a")))
    read_shuffled(given, other, columns="x")
    with pytest.raises(InputError, match="'label', key 'huggingface/names': is absent here"):
        read_shuffled(given, write(tmp_path))


def test_sampling_rates_of_features_must_agree_and_types_follow_the_columns(tmp_path: Path) -> None:
    def audio(rate: int, dtype: str) -> Path:
        return write(
            tmp_path,
            features(x={"sampling_rate": rate, "_type": "Audio"}, label={"dtype": dtype, "_type": "Value"}),
        )

    read_shuffled(audio(8, "int64"), audio(8, "int32"))
    with pytest.raises(InputError, match="field 'x', key 'huggingface/sampling_rate': is 9 here and 8 in"):
        read_shuffled(audio(8, "int64"), audio(9, "int64"))


NAME, CONTENT = "ARROW:extension:name", "ARROW:extension:metadata"


def test_extension_types_must_agree(tmp_path: Path) -> None:
    first = write(tmp_path, x={NAME: "my.kind", CONTENT: '{"a": 1, "b": [2]}'})
    read_shuffled(first, write(tmp_path, x={NAME: "my.kind", CONTENT: '{"b":[2.0],"a":1}'}))
    for other in ({NAME: "my.other", CONTENT: '{"a": 1, "b": [2]}'}, {NAME: "my.kind", CONTENT: "{}"}, {}):
        second = write(tmp_path, x=other)
        for order in ([first, second], [second, first]):
            with pytest.raises(InputError, match="field 'x', key 'ARROW:extension"):
                read_shuffled(*order)
        with pytest.warns(RecshufWarning, match="ARROW:extension"):
            found = read_shuffled(first, second, first_metadata=True).field("x")
        assert found.metadata[NAME.encode()] == b"my.kind"


def as_tensors(*shape: int, **facts: Any) -> pa.Array:
    rows = pa.array([[1, 2, 3, 4]] * 2, pa.list_(pa.int64(), 4))
    if not shape:
        return rows
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), shape, **facts), rows)


TYPES = {
    "shape": (as_tensors(2, 2), as_tensors(4, 1)),
    "axes": (as_tensors(2, 2, dim_names=["a", "b"]), as_tensors(2, 2, dim_names=["b", "a"])),
    "order of axes": (as_tensors(2, 2), as_tensors(2, 2, permutation=[1, 0])),
    "absent": (as_tensors(2, 2), as_tensors()),
    "annotated": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))),
        pa.array([b"x" * 16], pa.binary(16)),
    ),
}


@pytest.mark.parametrize("kind", TYPES)
def test_extension_types_that_arrow_knows_must_agree(tmp_path: Path, kind: str) -> None:
    columns = [{"c": one, "s": pa.StructArray.from_arrays([one], ["t"])} for one in TYPES[kind]]
    paths = [store(tmp_path / f"{number}.parquet", one) for number, one in enumerate(columns)]
    said = rf"field 'c', key '{NAME}': is .* here and .*; field 's\.t', key '{NAME}', is "
    for order in (paths, paths[::-1]):
        with pytest.raises(InputError, match=said):
            read_shuffled(*order)
        with pytest.warns(RecshufWarning, match="ARROW:extension:name"):
            assert read_shuffled(*order, first_metadata=True) == pq.read_schema(order[0])


def test_nested_fields_say_something_too(tmp_path: Path) -> None:
    def nested(**says: str) -> Path:
        inner = pa.struct([pa.field("n", pa.int64(), metadata=says)])
        schema = pa.schema({"l": pa.list_(pa.field("element", inner)), "m": pa.map_(pa.string(), inner)})
        return store(
            tmp_path / f"{says}.parquet", pa.table([[[{"n": 1}]], [[("k", {"n": 1})]]], schema=schema)
        )

    first, longer = nested(categories='["a"]'), nested(categories='["a", "b"]')
    for order in ([first, longer], [longer, first]):
        found = read_shuffled(*order)
        for kind in (found.field("l").type.value_type, found.field("m").type.item_type):
            assert kind.field("n").metadata == {b"categories": b'["a", "b"]'}
    said = r"field 'l\.element\.n', key 'categories'.*; field 'm\.value\.n', key 'categories'"
    with pytest.raises(InputError, match=said):
        read_shuffled(first, nested(categories='["b"]'))


SPARK = "org.apache.spark.sql.parquet.row.metadata"


def spark(*names: str) -> str:
    plain = {"name": "x", "type": "long", "metadata": {}}
    indexed = {"name": "label", "type": "long", "metadata": {"ml_attr": {"vals": names}}}
    return json.dumps({"type": "struct", "fields": [plain, indexed]})


def nested_json(*names: str) -> str:
    return json.dumps({"data": {"classes": names, "created": len(names)}, "by": "us"})


@pytest.mark.parametrize(
    ("key", "make"), [(SPARK, spark), ("meta", nested_json), ("PANDAS_ATTRS", nested_json)]
)
def test_json_in_a_key_is_looked_into(tmp_path: Path, key: str, make: Any) -> None:
    short, long, other = (write(tmp_path, {key: make(*names)}) for names in ("ab", "abc", "ba"))
    for order in ([short, long], [long, short]):
        found = json.loads(read_shuffled(*order).metadata[key.encode()])
        wanted = json.loads(make(*"abc"))
        for one in (found, wanted):
            one.get("data", {}).pop("created", None)
        assert found == wanted
    with pytest.raises(
        InputError, match=rf"footer '{key}.*': is \[\"b\", \"a\"\] here and \[\"a\", \"b\"\] in"
    ):
        read_shuffled(short, other)
    pq.write_table(pq.read_table(other).slice(0, 0), other)  # without rows it has no say
    read_shuffled(short, other)


def test_notes_of_pandas_follow_the_columns_and_attributes_of_frames_do_not(tmp_path: Path) -> None:
    """Nothing is said of other types, indexes and versions, and units must agree."""
    frames = {
        "a": pd.DataFrame({"n": [1, 2]}),
        "b": pd.DataFrame({"n": [3.0]}, index=[7]),
        "c": pd.DataFrame({"n": pd.array([1], "Int8")}),
    }
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    paths = [tmp_path / f"{name}.parquet" for name in "abc"]
    assert not recshuf.shuffle(paths, tmp_path / "out.parquet", widen=True).warnings
    for name, unit in (("d", "m"), ("e", "km")):
        frames["a"].attrs = {"units": unit}
        frames["a"].to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"footer '.*', key 'units': is \"km\" here and \"m\" in"):
        recshuf.shuffle([tmp_path / "d.parquet", tmp_path / "e.parquet"], tmp_path / "frames.parquet")


# Claims on the rows of one file: indices, counts, extents, copies of schemas

FRAME_ROWS = 50


def frame(index: Any = None, first: int = 0) -> Any:
    return pd.DataFrame({"a": [f"{first + row}" for row in range(FRAME_ROWS)]}, index=index)


def store_frames(folder: Path, *frames: Any) -> list[Path]:
    paths = [folder / f"{number}.parquet" for number in range(len(frames))]
    for path, one in zip(paths, frames, strict=True):
        one.to_parquet(path, row_group_size=7)
    return paths


INDICES = {
    "name": pd.RangeIndex(FRAME_ROWS, name="id"),
    "start": pd.RangeIndex(10, 10 + FRAME_ROWS),
    "step": pd.RangeIndex(0, -3 * FRAME_ROWS, -3, name="id"),
    "column": pd.RangeIndex(FRAME_ROWS, name="a"),
    "number": pd.RangeIndex(FRAME_ROWS, name=7),
    "values": pd.Index([3 * row % 50 for row in range(FRAME_ROWS)], name="id"),
    "levels": pd.MultiIndex.from_tuples([(row, f"{row}") for row in range(FRAME_ROWS)], names=["x", "y"]),
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
        assert list(pd.read_parquet(output).index) == list(range(FRAME_ROWS - first))


def test_the_indices_of_many_files_go_on_in_each(tmp_path: Path) -> None:
    indices = [pd.RangeIndex(100 * number, 100 * number + FRAME_ROWS, name="id") for number in range(5)]
    paths = store_frames(tmp_path, *[frame(index, index.start) for index in indices])
    for block_bytes in (1 << 10, 1 << 20):
        table = read_all(open_source(*paths), block_bytes)
        assert table["a"].to_pylist() == [str(index) for index in table["id"].to_pylist()]
    found = pd.read_parquet(shuffled(*paths))
    assert list(found.index) == found["a"].astype(int).to_list()


def test_an_index_is_the_column_of_another_file(tmp_path: Path) -> None:
    paths = store_frames(tmp_path, frame(INDICES["name"]), frame(INDICES["values"]), frame())
    found = pd.read_parquet(shuffled(*paths)).reset_index()
    expected = [*range(FRAME_ROWS), *INDICES["values"]]
    assert sorted(found["id"].dropna()) == sorted(expected)
    assert found["id"].isna().sum() == FRAME_ROWS


def test_an_index_is_left_out_as_other_columns_are(tmp_path: Path) -> None:
    paths = store_frames(tmp_path, frame(INDICES["name"]))
    assert read_shuffled(*paths, columns="a").names == ["a"]
    assert read_shuffled(*paths, columns="id").names == ["id"]
    assert list(pd.read_parquet(shuffled(*paths, columns="a")).index) == list(range(FRAME_ROWS))


def with_metadata(path: Path, columns: dict[str, Any], metadata: dict[str, str]) -> Path:
    return store(path, pa.table(columns).replace_schema_metadata(metadata))


def test_claims_on_one_file_are_dropped_and_all_else_is_kept(tmp_path: Path) -> None:
    info = {
        "features": {"y": {"dtype": "int64", "_type": "Value"}},
        "splits": {"train": {"num_examples": 7}},
        "dataset_size": 9,
        "license": "mit",
    }
    metadata = {
        "geo": json.dumps({"columns": {"g": {"encoding": "WKB", "bbox": [0, 0, 1, 1]}}, "version": "1.1.0"}),
        "huggingface": json.dumps({"info": info, "fingerprint": "0123456789abcdef"}),
        "hoodie_min_record_key": "1",
        "content_defined_chunking": "{}",
        "author": "me",
        "pandas": "no JSON",
    }
    path = with_metadata(tmp_path / "in.parquet", {"g": [b"1", b"2"], "y": [3, 4]}, metadata)
    for options in ({}, {"columns": "y"}, {"provenance": True}):
        kept = read_shuffled(path, **options).metadata
        assert kept.keys() == {b"geo", b"huggingface", b"author", b"pandas"}
        assert json.loads(kept[b"geo"])["columns"] == {"g": {"encoding": "WKB"}}
        assert json.loads(kept[b"huggingface"]).keys() == {"info"}
        assert json.loads(kept[b"huggingface"])["info"].keys() == {"features", "license"}


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
        kept = json.loads(read_shuffled(*paths).metadata[b"geo"])
        assert kept["columns"] == {"g": {"encoding": "WKB", "crs": "EPSG:4326", "geometry_types": types}}
    with pytest.raises(InputError, match=r"2\.parquet: field 'g', key 'geo/crs': is .*3857.* here and"):
        shuffled(points, lines, far)


AVRO = "parquet.avro.schema"


def copy_schema(key: str, columns: dict[str, str], said: dict[str, Any]) -> str:
    if key == AVRO:
        fields = [{"name": name, "type": ["null", kind]} for name, kind in columns.items()]
        return json.dumps({"type": "record", "name": "r", "fields": fields})
    fields = [{"name": name, "type": kind, "metadata": said} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize("key", [AVRO, SPARK])
def test_copies_of_schemas_follow_the_types_of_columns_of_any_name(tmp_path: Path, key: str) -> None:
    """Names of columns are no attributes, and a copy of another schema is left out, with what Spark says in it."""
    tables = {
        "int": {"offset": pa.array([1], pa.int32()), "id": pa.array([1])},
        "long": {"offset": pa.array([2], pa.int64()), "id": pa.array([2])},
        "none": {"id": pa.array([3])},
    }
    paths = {}
    for name, columns in tables.items():
        copy = copy_schema(key, dict.fromkeys(columns, name), {"scale_factor": 2})
        paths[name] = with_metadata(tmp_path / f"{name}.parquet", columns, {key: copy})
    for index, names in enumerate((["int", "long"], ["long", "int"], ["none", "int"], ["int", "none"])):
        if key == AVRO or "none" not in names:
            output = tmp_path / f"{index}.parquet"
            assert not recshuf.shuffle([paths[name] for name in names], output, verify=True).warnings
            is_first = names in (["long", "int"], ["int", "none"])
            assert (key.encode() in (pq.read_schema(output).metadata or {})) == is_first
    assert key.encode() in read_shuffled(paths["int"], paths["int"]).metadata
    for index, options in enumerate([{"columns": ["id"]}, {"columns": ["offset"]}, {"provenance": True}]):
        output = tmp_path / f"one{index}.parquet"
        recshuf.shuffle(paths["int"], output, verify=True, **options)
        assert recshuf.verify(paths["int"], output, **options).is_equal
        assert not pq.read_schema(output).metadata


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 2, pa.binary(16)))
LATER = {
    "extension": pa.table({"x": [1, 2], "later": UUIDS}),
    "extension inside": pa.table({"x": [1, 2], "later": pa.StructArray.from_arrays([UUIDS], ["u"])}),
    "unit": pa.table(
        [pa.array([1, 2])] * 2,
        pa.schema([("x", pa.int64()), pa.field("later", pa.int64(), metadata={"units": "m"})]),
    ),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", LATER)
def test_a_column_that_only_a_later_file_has_says_what_it_means_also_without_rows(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    for number, rows in enumerate([(2, 2), (2, 0), (0, 2), (0, 0)]):
        first, later = tmp_path / f"{number}a.{suffix}", tmp_path / f"{number}b.{suffix}"
        for path, table, count in zip(
            (first, later), (LATER[kind].select(["x"]), LATER[kind]), rows, strict=True
        ):
            recshuf.shuffle(table.slice(0, count), path)
        for paths in ([first, later], [later, first]):
            output = tmp_path / f"{number}.parquet"
            report = recshuf.shuffle(paths, output, verify=True, overwrite=True)
            written, expected = pq.read_schema(output).field("later"), LATER[kind].schema.field("later")
            assert (report.records, written.type) == (sum(rows), expected.type)
            assert b"units" not in (expected.metadata or {}) or written.metadata[b"units"] == b"m"
            assert recshuf.verify(paths, output).is_equal
