"""Every type of the Parquet specification comes back, also those that Arrow has no type for, or is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    decode_struct,
    encode_struct,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 20
TYPE, LENGTH, NAME, CHILDREN, CONVERTED, LOGICAL = 1, 2, 4, 5, 6, 10


def edit_elements(path: Path, change: Callable[[str, Struct], None]) -> None:
    """Change the elements of the schema of a file, given with their names."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    metadata, _ = decode_struct(data, start)
    # The Arrow schema would hide what the elements say.
    metadata.pop(5, None)
    for element in metadata[2][1][1]:
        change(element[NAME][1].decode(), element)
    path.write_bytes(wrap(data[4:start], encode_struct(metadata)))


def elements_of(path: Path) -> dict[str, Struct]:
    data = path.read_bytes()
    metadata, _ = decode_struct(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    return {element[NAME][1].decode(): element for element in metadata[2][1][1]}


def annotation_of(element: Struct) -> Struct:
    """Return what a column is; a converted type beside a logical type says nothing more."""
    meaning = LOGICAL if LOGICAL in element else CONVERTED
    return {field: element[field] for field in (TYPE, LENGTH, meaning) if field in element}


def annotate(path: Path, *names: str, **annotation: Value) -> None:
    def change(name: str, element: Struct) -> None:
        if name in names:
            element.pop(CONVERTED, None)
            element.pop(LOGICAL, None)
            element.update(
                {
                    {"converted": CONVERTED, "logical": LOGICAL}[key]: value
                    for key, value in annotation.items()
                }
            )

    edit_elements(path, change)


def logical(number: int, fields: Struct | None = None) -> Value:
    return STRUCT, {number: (STRUCT, fields or {})}


def unit(number: int, *, in_utc: bool) -> Struct:
    return {1: (TRUE if in_utc else FALSE, None), 2: (STRUCT, {number: (STRUCT, {})})}


INT32, INT64 = pa.array(range(ROWS), pa.int32()), pa.array(range(ROWS), pa.int64())
TEXT = pa.array([f'{{"a": {row}}}'.encode() for row in range(ROWS)], pa.binary())
WIDE = {size: pa.array([bytes([row] * size) for row in range(ROWS)], pa.binary(size)) for size in (2, 12, 16)}

ANNOTATIONS: dict[str, tuple[pa.Array, dict[str, Value]]] = {
    "STRING": (TEXT, {"logical": logical(1), "converted": (I32, 0)}),
    "ENUM": (TEXT, {"logical": logical(4), "converted": (I32, 4)}),
    "ENUM, converted": (TEXT, {"converted": (I32, 4)}),
    "DATE": (INT32, {"logical": logical(6), "converted": (I32, 6)}),
    "TIME in UTC, ms": (INT32, {"logical": logical(7, unit(1, in_utc=True)), "converted": (I32, 7)}),
    "TIME in UTC, us": (INT64, {"logical": logical(7, unit(2, in_utc=True)), "converted": (I32, 8)}),
    "TIME in UTC, ns": (INT64, {"logical": logical(7, unit(3, in_utc=True))}),
    "TIME, us": (INT64, {"logical": logical(7, unit(2, in_utc=False))}),
    "TIME_MILLIS": (INT32, {"converted": (I32, 7)}),
    "TIME_MICROS": (INT64, {"converted": (I32, 8)}),
    "TIMESTAMP in UTC, ns": (INT64, {"logical": logical(8, unit(3, in_utc=True))}),
    "TIMESTAMP, ms": (INT64, {"logical": logical(8, unit(1, in_utc=False))}),
    "TIMESTAMP_MILLIS": (INT64, {"converted": (I32, 9)}),
    "TIMESTAMP_MICROS": (INT64, {"converted": (I32, 10)}),
    "INTEGER": (INT32, {"logical": logical(10, {1: (3, 16), 2: (FALSE, None)}), "converted": (I32, 12)}),
    "JSON": (TEXT, {"logical": logical(12), "converted": (I32, 19)}),
    "JSON, converted": (TEXT, {"converted": (I32, 19)}),
    "BSON": (TEXT, {"logical": logical(13), "converted": (I32, 20)}),
    "BSON, converted": (TEXT, {"converted": (I32, 20)}),
    "UUID": (WIDE[16], {"logical": logical(14)}),
    "FLOAT16": (WIDE[2], {"logical": logical(15)}),
    "GEOMETRY": (TEXT, {"logical": logical(17, {1: (BINARY, b"OGC:CRS84")})}),
    "GEOGRAPHY": (TEXT, {"logical": logical(18, {2: (I32, 1)})}),
    "INTERVAL": (WIDE[12], {"converted": (I32, 21)}),
    "of the future": (TEXT, {"logical": logical(77, {5: (I32, 5), 30: (BINARY, b"more")})}),
}


def shuffled(paths: list[Path] | Path, **options: Any) -> Path:
    output = (paths[0] if isinstance(paths, list) else paths).parent / "out.parquet"
    recshuf.shuffle(paths, output, seed=1, verify=True, overwrite=True, **options)
    return output


def make_file(path: Path, kind: str, columns: tuple[str, ...] = ("a",)) -> Path:
    values, annotation = ANNOTATIONS[kind]
    lists = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), values)
    nested = pa.StructArray.from_arrays([values, lists], ["c", "d"])
    table = pa.table({"n": INT64, "a": values, "b": pa.MapArray.from_arrays(lists.offsets, INT64, nested)})
    pq.write_table(table, path, use_compliant_nested_type=True, row_group_size=7)
    annotate(path, *columns, **annotation)
    return path


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_a_column_of_each_type_comes_back(tmp_path: Path, kind: str) -> None:
    path = make_file(tmp_path / "in.parquet", kind, ("a", "c", "element"))
    output = shuffled(path)
    before, after = elements_of(path), elements_of(output)
    for column in ("n", "a", "c", "element"):
        assert annotation_of(after[column]) == annotation_of(before[column]), column
    rows = [pq.read_table(one).to_pylist() for one in (path, output)]
    assert rows[0] != rows[1]
    assert sorted(rows[0], key=lambda row: row["n"]) == sorted(rows[1], key=lambda row: row["n"])
    assert shuffled(output, columns="a").exists()
    assert annotation_of(elements_of(output)["a"]) == annotation_of(before["a"])


def test_decimals_keep_scale_and_precision(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": INT32}), tmp_path / "in.parquet")

    def change(name: str, element: Struct) -> None:
        if name == "a":
            element.update({CONVERTED: (I32, 5), 7: (I32, 2), 8: (I32, 9)})

    edit_elements(tmp_path / "in.parquet", change)
    assert pq.read_schema(shuffled(tmp_path / "in.parquet")).field("a").type == pa.decimal128(9, 2)


STRICT = ["TIME in UTC, us", "INTERVAL", "GEOMETRY", "of the future"]


@pytest.mark.parametrize("kind", STRICT)
@pytest.mark.parametrize("column", ["a", "c"])
def test_files_that_annotate_a_column_otherwise_are_refused_by_name(
    tmp_path: Path, kind: str, column: str
) -> None:
    first = make_file(tmp_path / "1.parquet", kind, (column,))
    plain = {"TIME in UTC, us": "TIME, us"}.get(kind)
    second = make_file(tmp_path / "2.parquet", plain or kind, (column,) if plain else ())
    for paths in ([first, second], [second, first]):
        name = kind.partition(",")[0] if kind in ("INTERVAL", "GEOMETRY", STRICT[0]) else "number 77"
        with pytest.raises(InputError, match=rf"\.parquet: field '.*{column}': type .*{name}"):
            shuffled(paths)


@pytest.mark.parametrize("kind", ["ENUM", "BSON", "TIMESTAMP_MICROS"])
def test_annotations_that_change_no_value_give_way(tmp_path: Path, kind: str) -> None:
    paths = [make_file(tmp_path / f"{number}.parquet", kind, ("a",) * number) for number in (1, 0)]
    if kind == "TIMESTAMP_MICROS":
        annotate(paths[1], "a", logical=logical(8, unit(2, in_utc=True)))
    output = shuffled(paths)
    assert pq.read_table(output).num_rows == 2 * ROWS
    assert annotation_of(elements_of(output)["a"]) == annotation_of(elements_of(paths[1])["a"])


def test_a_column_that_other_files_lack_keeps_its_annotation(tmp_path: Path) -> None:
    first = make_file(tmp_path / "1.parquet", "INTERVAL")
    pq.write_table(pa.table({"n": INT64, "a": pa.nulls(ROWS)}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"n": INT64}), tmp_path / "3.parquet")
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        paths = [[first, tmp_path / "2.parquet", tmp_path / "3.parquet"][index] for index in order]
        element = elements_of(shuffled(paths))["a"]
        assert annotation_of(element) == {TYPE: (I32, 7), LENGTH: (I32, 12), CONVERTED: (I32, 21)}


def test_verify_tells_types_apart_that_arrow_does_not(tmp_path: Path) -> None:
    first = make_file(tmp_path / "1.parquet", "TIME in UTC, us")
    second = make_file(tmp_path / "2.parquet", "TIME, us")
    assert recshuf.verify(first, first).is_equal
    assert not recshuf.verify(first, second).is_equal


def variant_file(path: Path, annotation: int, *, first_is_group: bool = False) -> Path:
    fields = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
    values = pa.StructArray.from_arrays([TEXT, TEXT], fields=fields)
    if first_is_group:
        values = pa.StructArray.from_arrays([values], ["inner"])
    pq.write_table(pa.table({"v": values}), path)
    annotate(path, "v", logical=logical(annotation, {1: (3, 1)}))
    return path


def test_the_type_of_a_group_comes_back_or_is_refused(tmp_path: Path) -> None:
    path = variant_file(tmp_path / "in.parquet", 16)
    assert elements_of(shuffled(path))["v"][LOGICAL] == elements_of(path)["v"][LOGICAL]
    path = variant_file(tmp_path / "in.parquet", 99, first_is_group=True)
    with pytest.raises(
        InputError, match=r"in\.parquet: field 'v': its type number 99 of LogicalType cannot be kept"
    ):
        shuffled(path)


def test_every_type_of_duckdb_comes_back(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    columns = {
        "i": "i",
        "interval_": "case when i % 5 > 0 then to_days(i::int) + to_months(3) end",
        "timetz": "'12:00:00+02'::timetz",
        "times": "['12:00:00+02'::timetz, null]",
        "time_": "'12:00:00'::time",
        "stamp": "'2024-01-01 12:00:00'::timestamp",
        "stamps": "{'a': '2024-01-01 12:00:00+01'::timestamptz}",
        "json_": """'{"a": 1}'::json""",
        "uuid_": "uuid()",
        "enum_": "'a'::enum('a', 'b')",
        "huge": "i::hugeint",
        "map_": "map {'a': to_days(i::int)}",
    }
    if tuple(map(int, duckdb.__version__.split(".")[:2])) >= (1, 5):
        columns["variant_"] = "{'a': i, 'b': [i]}::variant"
    select = ", ".join(f"{value} as {name}" for name, value in columns.items())
    path = tmp_path / "in.parquet"
    connection.execute(f"copy (select {select} from range({ROWS}) r(i)) to '{path}'")
    output = shuffled(path)
    described = [connection.execute(f"describe from '{one}'").fetchall() for one in (path, output)]
    assert described[0] == described[1]
    rows = [
        connection.execute(f"select columns(*)::text from '{one}' order by i").fetchall()
        for one in (path, output)
    ]
    assert rows[0] == rows[1]
