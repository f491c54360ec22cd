"""Dictionary columns keep their index type where it has room for the values of all inputs, and else get a wider one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from tests.support.formats.parquet_tools import load, shuffled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 60
INDICES = {pa.int8(): 128, pa.uint8(): 256, pa.int16(): 1 << 15, pa.uint16(): 1 << 16}
"""Narrow index types, and the number of values that each has room for."""


def label(index: pa.DataType, value: pa.DataType | None = None, *, ordered: bool = False) -> pa.DataType:
    return pa.dictionary(index, value or pa.string(), ordered=ordered)


def encode(kind: pa.DataType, numbers: range) -> pa.Array:
    values = pa.array([f"value {number}" for number in numbers]).cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(numbers)), kind.index_type), values, ordered=kind.ordered
    )


def as_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def as_map(values: pa.Array) -> pa.Array:
    keys = pa.array(["k"] * len(values))
    return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values)


FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda values: values,
    "struct": lambda values: pa.StructArray.from_arrays([values, values.indices], ["a", "b"]),
    "list": as_list,
    "map": as_map,
    "deep": lambda values: as_list(pa.StructArray.from_arrays([as_map(values)], ["m"])),
    "fixed": lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
}


def write(path: Path, *columns: pa.Array, **options: Any) -> Path:
    """Write a row group of each column."""
    tables = [pa.table({"n": range(len(column)), "c": column}) for column in columns]
    with pq.ParquetWriter(path, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table)
    return path


def find_labels(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return [kind]
    return [found for place in range(kind.num_fields) for found in find_labels(kind.field(place).type)]


def list_texts(column: pa.ChunkedArray) -> list[str]:
    return sorted(map(repr, column.to_pylist()))


@pytest.mark.parametrize(
    ("form", "is_one_file"), [(form, number % 2 > 0) for number, form in enumerate(FORMS)]
)
def test_an_index_without_room_for_the_values_of_all_inputs_is_widened(
    tmp_path: Path, form: str, is_one_file: bool
) -> None:
    columns = [FORMS[form](encode(label(pa.int8()), range(at, at + ROWS))) for at in (0, ROWS, 2 * ROWS)]
    paths = (
        [write(tmp_path / "in.parquet", *columns)]
        if is_one_file
        else [write(tmp_path / f"{n}.parquet", column) for n, column in enumerate(columns)]
    )
    written = load(shuffled(*paths))
    assert find_labels(written.schema.field("c").type) == [label(pa.int32())]
    assert list_texts(written["c"]) == list_texts(pa.chunked_array(columns))


@pytest.mark.parametrize(
    ("index", "ordered"),
    [
        pytest.param(
            index, ordered, marks=() if ordered == (number % 2 > 0) and number < 3 else pytest.mark.slow
        )
        for number, index in enumerate(INDICES)
        for ordered in (False, True)
    ],
)
def test_an_index_with_room_for_all_values_stays(tmp_path: Path, index: pa.DataType, ordered: bool) -> None:
    """The dictionaries of two files overlap; their union has just room, and then one value too many."""
    kind, room = label(index, ordered=ordered), INDICES[index]
    first = write(tmp_path / "1.parquet", encode(kind, range(room)))
    for most, expected in ((room, kind), (room + 1, label(pa.int32(), ordered=ordered))):
        paths = [first, write(tmp_path / "2.parquet", encode(kind, range(most - 100, most)))]
        written = load(shuffled(*paths))
        assert written.schema.field("c").type == expected
        assert len(set(written["c"].to_pylist())) == most


STORED = {
    "plain": ({"compression": "none"}, label(pa.int8())),
    "lz4": ({"compression": "lz4"}, label(pa.int8())),
    "gzip": ({"compression": "gzip", "version": "1.0"}, label(pa.int8())),
    "pages": ({"data_page_version": "2.0", "data_page_size": 64}, label(pa.int8())),
    "bytes": ({"compression": "brotli"}, label(pa.int8(), pa.binary())),
    "no dictionary": ({"use_dictionary": False}, label(pa.int32())),
}


@pytest.mark.parametrize("how", STORED)
def test_values_are_counted_however_they_are_stored(tmp_path: Path, how: str) -> None:
    """Where no dictionary says them all, an index with room for any number is taken."""
    options, expected = STORED[how]
    kind = label(pa.int8(), expected.value_type)
    column = encode(kind, range(100))
    for path in (tmp_path / "alone.parquet", tmp_path / "two.parquet"):
        write(path, *[column] * (1 + (path.stem == "two")), **options)
    assert load(shuffled(tmp_path / "alone.parquet")).schema.field("c").type == kind
    assert load(shuffled(tmp_path / "two.parquet")).schema.field("c").type == expected


def test_a_chunk_that_gave_up_its_dictionary_counts_as_unknown(tmp_path: Path) -> None:
    parts = [encode(label(pa.int8()), range(at, at + ROWS)) for at in (0, ROWS, 2 * ROWS, 3 * ROWS)]
    first = write(tmp_path / "1.parquet", pa.chunked_array(parts[:2]))
    second = write(tmp_path / "2.parquet", pa.chunked_array(parts[2:]))
    written = load(shuffled(first, second))
    assert written.schema.field("c").type == label(pa.int32())
    assert list_texts(written["c"]) == list_texts(pa.chunked_array(parts))


def test_a_store_is_gathered_with_room_for_all_also_when_it_has_grown(tmp_path: Path) -> None:
    columns = [encode(label(pa.int8()), range(at, at + ROWS)) for at in (0, ROWS, 2 * ROWS)]
    paths = [write(tmp_path / f"{n}.parquet", column) for n, column in enumerate(columns)]
    recshuf.scatter(paths, tmp_path / "whole")
    recshuf.scatter(paths[0], tmp_path / "grown")
    recshuf.gather(tmp_path / "grown", tmp_path / "first.parquet")
    assert load(tmp_path / "first.parquet").schema == load(paths[0]).schema
    for path in paths[1:]:
        with recshuf.PileStore(tmp_path / "grown").update() as update:
            update.append(path)
    for name in ("whole", "grown"):
        recshuf.gather(tmp_path / name, tmp_path / f"{name}.parquet")
        written = load(tmp_path / f"{name}.parquet")
        assert written.schema.field("c").type == label(pa.int32()), name
        assert list_texts(written["c"]) == list_texts(pa.chunked_array(columns))
