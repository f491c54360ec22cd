"""Every type of the Parquet specification comes back, also those that Arrow lacks or cuts, or is refused by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.hostile_parquet import (
    BINARY,
    FALSE,
    I32,
    STRUCT,
    TRUE,
    Struct,
    Value,
    edit_footer,
    elements_of,
)
from tests.support.formats.parquet_tools import open_source, read_all, shuffled, store

ROWS = 20
TYPE, LENGTH, NAME, CHILDREN, CONVERTED, LOGICAL, KEY_VALUES = 1, 2, 4, 5, 6, 10, 5


def annotation_of(element: Struct) -> Struct:
    """Return what a column is; a converted type beside a logical type says nothing more."""
    meaning = LOGICAL if LOGICAL in element else CONVERTED
    return {field: element[field] for field in (TYPE, LENGTH, meaning) if field in element}


def annotate(path: Path, annotations: dict[str, dict[int, Value]], *, keeps_arrow: bool = False) -> Path:
    """Give other annotations to columns; the Arrow schema would hide most of them."""

    def change(metadata: Struct) -> None:
        if not keeps_arrow:
            metadata.pop(KEY_VALUES, None)
        for element in metadata[2][1][1]:
            wanted = annotations.get(element[NAME][1].decode())
            if wanted is not None:
                element.pop(CONVERTED, None)
                element.pop(LOGICAL, None)
                element.update(wanted)

    edit_footer(path, change)
    return path


def logical(number: int, fields: Struct | None = None) -> Value:
    return STRUCT, {number: (STRUCT, fields or {})}


def unit(number: int, *, in_utc: bool) -> Struct:
    return {1: (TRUE if in_utc else FALSE, None), 2: (STRUCT, {number: (STRUCT, {})})}


INT32, INT64 = pa.array(range(ROWS), pa.int32()), pa.array(range(ROWS), pa.int64())
TEXT = pa.array([f'{{"a": {row}}}'.encode() for row in range(ROWS)], pa.binary())
WIDE = {size: pa.array([bytes([row] * size) for row in range(ROWS)], pa.binary(size)) for size in (2, 12, 16)}

ANNOTATIONS: dict[str, tuple[pa.Array, dict[int, Value]]] = {
    "STRING": (TEXT, {LOGICAL: logical(1), CONVERTED: (I32, 0)}),
    "ENUM": (TEXT, {LOGICAL: logical(4), CONVERTED: (I32, 4)}),
    "ENUM, converted": (TEXT, {CONVERTED: (I32, 4)}),
    "DATE": (INT32, {LOGICAL: logical(6), CONVERTED: (I32, 6)}),
    "TIME in UTC, ms": (INT32, {LOGICAL: logical(7, unit(1, in_utc=True)), CONVERTED: (I32, 7)}),
    "TIME in UTC, us": (INT64, {LOGICAL: logical(7, unit(2, in_utc=True)), CONVERTED: (I32, 8)}),
    "TIME in UTC, ns": (INT64, {LOGICAL: logical(7, unit(3, in_utc=True))}),
    "TIME, us": (INT64, {LOGICAL: logical(7, unit(2, in_utc=False))}),
    "TIME_MILLIS": (INT32, {CONVERTED: (I32, 7)}),
    "TIME_MICROS": (INT64, {CONVERTED: (I32, 8)}),
    "TIMESTAMP in UTC, ns": (INT64, {LOGICAL: logical(8, unit(3, in_utc=True))}),
    "TIMESTAMP, ms": (INT64, {LOGICAL: logical(8, unit(1, in_utc=False))}),
    "TIMESTAMP_MILLIS": (INT64, {CONVERTED: (I32, 9)}),
    "TIMESTAMP_MICROS": (INT64, {CONVERTED: (I32, 10)}),
    "INTEGER": (INT32, {LOGICAL: logical(10, {1: (3, 16), 2: (FALSE, None)}), CONVERTED: (I32, 12)}),
    "JSON": (TEXT, {LOGICAL: logical(12), CONVERTED: (I32, 19)}),
    "JSON, converted": (TEXT, {CONVERTED: (I32, 19)}),
    "BSON": (TEXT, {LOGICAL: logical(13), CONVERTED: (I32, 20)}),
    "BSON, converted": (TEXT, {CONVERTED: (I32, 20)}),
    "UUID": (WIDE[16], {LOGICAL: logical(14)}),
    "FLOAT16": (WIDE[2], {LOGICAL: logical(15)}),
    "GEOMETRY": (TEXT, {LOGICAL: logical(17, {1: (BINARY, b"OGC:CRS84")})}),
    "GEOGRAPHY": (TEXT, {LOGICAL: logical(18, {2: (I32, 1)})}),
    "INTERVAL": (WIDE[12], {CONVERTED: (I32, 21)}),
    "of the future": (TEXT, {LOGICAL: logical(77, {5: (I32, 5), 30: (BINARY, b"more")})}),
}


def make_file(path: Path, kinds: Iterable[str], levels: str = "ace") -> Path:
    """Write columns of annotated types: a flat one, and in a map that in a struct and that in a list."""
    columns, annotations = {"n": INT64}, {}
    for number, kind in enumerate(kinds):
        values, annotation = ANNOTATIONS[kind]
        offsets = pa.array(range(ROWS + 1), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, values, pa.list_(pa.field(f"e{number}", values.type)))
        nested = pa.StructArray.from_arrays([values, lists], [f"c{number}", f"d{number}"])
        columns |= {f"a{number}": values, f"b{number}": pa.MapArray.from_arrays(offsets, INT64, nested)}
        annotations |= {f"{level}{number}": annotation for level in levels}
    store(path, columns, use_compliant_nested_type=False, row_group_size=7)
    return annotate(path, annotations)


def test_a_column_of_each_type_comes_back(tmp_path: Path) -> None:
    path = make_file(tmp_path / "in.parquet", ANNOTATIONS)
    output = shuffled(path)
    before, after = elements_of(path), elements_of(output)
    assert before.keys() == after.keys()
    for column in before:
        assert annotation_of(after[column]) == annotation_of(before[column]), column
    for number, (values, annotation) in enumerate(ANNOTATIONS.values()):
        meaning = LOGICAL if LOGICAL in annotation else CONVERTED
        assert after[f"a{number}"][meaning] == annotation[meaning], values
    rows = [pq.read_table(one).to_pylist() for one in (path, output)]
    assert rows[0] != rows[1]
    assert sorted(rows[0], key=lambda row: row["n"]) == sorted(rows[1], key=lambda row: row["n"])
    chosen = [f"a{number}" for number in reversed(range(len(ANNOTATIONS)))]
    again = shuffled(output, columns=",".join(chosen))
    assert pq.read_schema(again).names == chosen
    for column in chosen:
        assert annotation_of(elements_of(again)[column]) == annotation_of(before[column]), column


def test_annotations_stay_within_parquet(tmp_path: Path) -> None:
    """Elsewhere they would be metadata that nobody knows."""
    path = make_file(tmp_path / "in.parquet", ANNOTATIONS)
    schema = recshuf.stream([path, pa.table({"n": [7]})]).schema
    recshuf.shuffle(path, tmp_path / "out.arrow", verify=True)
    recshuf.scatter(path, tmp_path / "store")
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.arrow")
    written = [pa.ipc.open_file(tmp_path / name).schema for name in ("out.arrow", "gathered.arrow")]
    for each in (schema, recshuf.stream(path).schema, *written):
        assert "recshuf:" not in each.to_string(), each


def test_annotated_columns_keep_their_own_metadata_and_field_ids(tmp_path: Path) -> None:
    """Those of the field itself, of other fields, and of the same field in a list or struct."""
    noted = [
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number), "unit": name})
        for number, (name, kind) in enumerate(
            [("a", pa.binary(12)), ("b", pa.string()), ("c", pa.binary(12))], 7
        )
    ]
    pair = pa.struct(noted)
    lists = pa.list_(pa.field("element", pair, metadata={"PARQUET:field_id": "20"}))
    sorted_map = pa.map_(pa.string(), pa.binary(12), keys_sorted=True)
    fields = [*noted[:2], pa.field("s", pair), pa.field("l", lists), pa.field("m", sorted_map)]
    schema = pa.schema(fields, metadata={"by": "the tests"})
    row = {"a": b"x" * 12, "b": "y", "c": b"z" * 12}
    path = store(
        tmp_path / "in.parquet",
        pa.Table.from_pylist([{**row, "s": row, "l": [row], "m": [("k", row["a"])]}], schema),
    )
    interval = ANNOTATIONS["INTERVAL"][1]
    annotate(path, {"a": interval, "c": interval, "value": interval}, keeps_arrow=True)
    output = shuffled(path)
    before, after = pq.read_schema(path), pq.read_schema(output)
    assert before.field("a").metadata == {b"PARQUET:field_id": b"7", b"unit": b"a"}
    assert after.equals(before, check_metadata=True)
    assert after.field("m").type.keys_sorted
    for name, element in elements_of(path).items():
        assert annotation_of(elements_of(output)[name]) == annotation_of(element), name
    second = store(
        tmp_path / "2.parquet", pa.Table.from_pylist([row], pa.schema([*noted[:2]], metadata=schema.metadata))
    )
    annotate(second, {"a": interval}, keeps_arrow=True)
    assert pq.read_schema(shuffled(path, second)).field("a").metadata == before.field("a").metadata


STRICT = {
    "TIME in UTC, us": "TIME in UTC",
    "INTERVAL": "INTERVAL",
    "GEOMETRY": "GEOMETRY",
    "of the future": "number 77",
}


@pytest.mark.parametrize("kind", STRICT)
def test_files_that_annotate_a_column_otherwise_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    for level in "ac":
        first = make_file(tmp_path / "1.parquet", [kind], level)
        other = "TIME, us" if kind.startswith("TIME") else kind
        second = make_file(tmp_path / "2.parquet", [other], level if other != kind else "")
        for paths in ([first, second], [second, first]):
            with pytest.raises(InputError, match=rf"\.parquet: field '.*{level}0': type .*{STRICT[kind]}"):
                shuffled(*paths)


@pytest.mark.parametrize("kind", ["ENUM", "BSON", "TIMESTAMP_MICROS"])
def test_annotations_that_change_no_value_give_way(tmp_path: Path, kind: str) -> None:
    paths = [make_file(tmp_path / f"{number}.parquet", [kind], "a" * number) for number in (1, 0)]
    if kind == "TIMESTAMP_MICROS":
        annotate(paths[1], {"a0": {LOGICAL: logical(8, unit(2, in_utc=True))}})
    for order in (paths, paths[::-1]):
        output = shuffled(*order)
        assert pq.read_table(output).num_rows == 2 * ROWS
        assert annotation_of(elements_of(output)["a0"]) == annotation_of(elements_of(paths[1])["a0"])


@pytest.mark.parametrize(("kind", "void"), [("ENUM", pa.null()), ("INTERVAL", pa.float64())])
def test_a_column_of_nulls_gets_the_annotation_of_others(
    tmp_path: Path, kind: str, void: pa.DataType
) -> None:
    typed = make_file(tmp_path / "typed.parquet", [kind], "a")
    nulls = store(tmp_path / "nulls.parquet", {"n": INT64, "a0": pa.nulls(ROWS, void)})
    for order in ((typed, nulls), (nulls, typed)):
        found = elements_of(shuffled(*order))["a0"]
        assert annotation_of(found) == annotation_of(elements_of(typed)["a0"])


def test_verify_tells_types_apart_that_arrow_does_not(tmp_path: Path) -> None:
    first = make_file(tmp_path / "1.parquet", ["TIME in UTC, us"])
    second = make_file(tmp_path / "2.parquet", ["TIME, us"])
    assert recshuf.verify(first, first).is_equal
    assert not recshuf.verify(first, second).is_equal


def variant_file(path: Path, annotation: int, *, first_is_group: bool = False) -> Path:
    fields = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
    values = pa.StructArray.from_arrays([TEXT, TEXT], fields=fields)
    if first_is_group:
        values = pa.StructArray.from_arrays([values], ["inner"])
    return annotate(store(path, {"v": values}), {"v": {LOGICAL: logical(annotation, {1: (3, 1)})}})


def test_the_type_of_a_group_comes_back_or_is_refused(tmp_path: Path) -> None:
    path = variant_file(tmp_path / "in.parquet", 16)
    assert elements_of(shuffled(path))["v"][LOGICAL] == elements_of(path)["v"][LOGICAL]
    path = variant_file(tmp_path / "in.parquet", 99, first_is_group=True)
    with pytest.raises(
        InputError, match=r"in\.parquet: field 'v': its type number 99 of LogicalType cannot be kept"
    ):
        shuffled(path)


# Times of 96 bits: the unit of a column holds every time of every input exactly, or the inputs are refused

FINE = [0, -86_400_000_000_001, None, 1_700_000_000_123_456_789, 2**63 - 1, -(2**63)]
COARSE = [0, -86_400_000_001, None, 1_700_000_000_123_456]
"""Microseconds within the range of nanoseconds."""
LATE = [*COARSE, 253_402_214_400_000_001, -62_135_596_800_000_000]
"""Among others the years 9999 and 1, in microseconds."""
KINDS = {
    "fine": pa.array(FINE, pa.timestamp("ns")),
    "coarse": pa.array(COARSE, pa.timestamp("us")),
    "late": pa.array(LATE, pa.timestamp("us")),
}


def int96_file(path: Path, times: pa.Array, *, by_spark: bool = False, **options: Any) -> Path:
    table = pa.table({"t": times, "n": pa.array(np.arange(len(times)), pa.int16())})
    if by_spark:
        table = table.replace_schema_metadata({"org.apache.spark.version": "3.5"})
    return store(path, table, use_deprecated_int96_timestamps=True, **options)


def counts_of(times: pa.Array | pa.ChunkedArray) -> list[int | None]:
    return [None if time is None else int(time) for time in times.cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize(
    ("files", "unit"),
    [
        ("fine", "ns"),
        ("coarse", "ns"),
        ("late", "us"),
        ("fine, spark", "ns"),
        ("coarse, spark", "us"),
        ("late, spark", "us"),
        ("coarse+late", "us"),
        ("late+coarse", "us"),
        ("fine+coarse, spark", "ns"),
        ("coarse, spark+fine", "ns"),
    ],
)
def test_one_unit_holds_the_times_of_all_files(tmp_path: Path, files: str, unit: str) -> None:
    for group_rows in (1, 100):
        paths, expected = [], []
        for name in files.split("+"):
            times = KINDS[name.removesuffix(", spark")]
            options = {"by_spark": name.endswith("spark"), "row_group_size": group_rows}
            paths.append(int96_file(tmp_path / f"{name}.parquet", times, **options))
            expected += counts_of(times.cast(pa.timestamp(unit)))
        found = read_all(open_source(*paths))["t"]
        assert found.type == pa.timestamp(unit)
        assert counts_of(found) == expected


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
        for name in ("s", "m"):
            pq.write_table(table.select([name]), path, use_deprecated_int96_timestamps=True)
            assert read_all(open_source(path)).schema.field(name).type == found.schema.field(name).type
