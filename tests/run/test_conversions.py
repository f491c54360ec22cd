"""All twelve conversions as whole runs: values come through in the order of the seed, or are refused by name."""

from __future__ import annotations

import datetime
import json
import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufError
from tests.support.formats.conversion_data import (
    COUNT,
    PAIRS,
    WRITERS,
    choose_columns,
    choose_schema,
)
from tests.support.numbered_files import SUFFIXES, order_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = 12


def read_columns(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a file as Python values."""
    if path.suffix == ".txt":
        return {"text": path.read_text(encoding="utf-8").split("\n")[:-1]}
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".csv":
        return pa.csv.read_csv(path).to_pydict()
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    with h5py.File(path) as file:
        return {
            name: file[name].asstr()[:].tolist() if file[name].dtype.hasobject else file[name][:].tolist()
            for name in file
        }


def expect_columns(columns: dict[str, Any]) -> dict[str, list[Any]]:
    order = order_of([COUNT], SEED)
    lists = {
        name: values if isinstance(values, list) else values.tolist() for name, values in columns.items()
    }
    return {name: [values[place] for place in order] for name, values in lists.items()}


@pytest.mark.parametrize(("name", "to"), PAIRS)
def test_every_pair_moves_every_value(tmp_path: Path, name: str, to: str):
    columns = choose_columns(name, to)
    path, output = tmp_path / f"in{SUFFIXES[name]}", tmp_path / f"out{SUFFIXES[to]}"
    WRITERS[name](path, columns)
    schema = choose_schema(name, to)
    report = recshuf.shuffle(path, output, seed=SEED, piles=5, schema=schema)
    assert (report.format, report.to, report.records_written) == (name, to, COUNT)
    assert read_columns(output) == expect_columns(columns)


# What JSON says of the values of tables


def convert_table(folder: Path, table: pa.Table, suffix: str, **options: Any) -> Path:
    pq.write_table(table, folder / "in.parquet")
    recshuf.shuffle(folder / "in.parquet", folder / f"out{suffix}", seed=0, **options)
    return folder / f"out{suffix}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_refused_or_null_in_json(tmp_path: Path, value: float):
    table = pa.table({"v": [1.5, value]})
    with pytest.raises(ConversionError, match=r"'v'.*nan_as_null=True"):
        convert_table(tmp_path, table, ".jsonl")
    assert os.listdir(tmp_path) == ["in.parquet"]
    output = convert_table(tmp_path, table, ".jsonl", nan_as_null=True)
    assert {line["v"] for line in map(json.loads, output.read_bytes().splitlines())} == {1.5, None}


# JSON to tables


def convert_lines(folder: Path, lines: list[str], suffix: str, **options: Any) -> Path:
    (folder / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recshuf.shuffle(folder / "in.jsonl", folder / f"out{suffix}", seed=0, **options)
    return folder / f"out{suffix}"


def test_types_are_inferred_over_all_records(tmp_path: Path):
    lines = ['{"a": 1}', '{"a": 2.5, "b": null}', '{"b": {"c": [1]}}', "{}"]
    table = pq.read_table(convert_lines(tmp_path, lines, ".parquet"))
    assert table.schema.field("a").type == pa.float64()
    expected = [
        {"a": 1.0, "b": None},
        {"a": 2.5, "b": None},
        {"a": None, "b": {"c": [1]}},
        {"a": None, "b": None},
    ]
    assert table.to_pylist() == [expected[place] for place in order_of([4], 0)]


def test_types_that_conflict_name_field_types_file_and_line(tmp_path: Path):
    lines = ['{"a": {"b": 1}}'] * 3 + ['{"a": {"b": "x"}}'] + ['{"a": {"b": 1}}'] * 3
    for suffix in (".parquet", ".h5"):
        with pytest.raises(InputError, match=r"in\.jsonl.*line 4.*a\.b|in\.jsonl.*a\.b.*line 4") as caught:
            convert_lines(tmp_path, lines, suffix)
        assert "string" in str(caught.value)
        assert "number" in str(caught.value)
        assert os.listdir(tmp_path) == ["in.jsonl"]


def test_lines_that_are_no_json_name_the_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"in\.jsonl: line 3"):
        convert_lines(tmp_path, ['{"a": 1}', '{"a": 2}', '{"a": '], ".parquet")
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_a_schema_decides_where_inference_is_not_enough(tmp_path: Path):
    schema = pa.schema({"a": pa.float32(), "t": pa.timestamp("us", "UTC"), "none": pa.int8()})
    lines = ['{"a": 1, "t": "2020-01-02T03:04:05Z"}', '{"a": null, "t": null}']
    table = pq.read_table(convert_lines(tmp_path, lines, ".parquet", schema=schema))
    assert table.schema.equals(schema)
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert sorted(table.to_pylist(), key=str) == sorted(
        [{"a": 1.0, "t": when, "none": None}, {"a": None, "t": None, "none": None}], key=str
    )


def test_a_schema_file_decides_too(tmp_path: Path):
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "schema.json").write_text('{"a": "uint8", "b": ["float32"]}')
    output = convert_lines(
        tmp_path, ['{"a": 255, "b": [1]}'], ".parquet", schema=tmp_path / "types" / "schema.json"
    )
    assert pq.read_schema(output).types == [pa.uint8(), pa.list_(pa.float32())]


# Tables to HDF5 and back


def test_rows_of_more_axes_survive_hdf5_bit_for_bit(tmp_path: Path):
    values = np.random.default_rng(0).integers(0, 2**32, (50, 4, 2), np.uint32).view(np.float32)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["group/image"] = values
        file["label"] = np.arange(50, dtype=np.uint8)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "b.parquet", seed=1)
    recshuf.shuffle(tmp_path / "b.parquet", tmp_path / "c.h5", seed=2)
    once = np.array(order_of([50], 1))
    twice = once[order_of([50], 2)]
    with h5py.File(tmp_path / "c.h5") as file:
        assert file["label"].dtype == np.uint8
        assert (file["label"][:] == twice).all()
        image = file["group/image"]
        assert (image.dtype, image.shape) == (np.float32, (50, 4, 2))
        assert image[:].tobytes() == values[twice].tobytes()


def test_columns_survive_hdf5(tmp_path: Path):
    order = np.array(order_of([3], 1))
    for number, values in enumerate(
        [
            pa.array(["", "ä", "x" * 1000]),
            pa.array([b"\x00\xff", b"", b"x"]),
            pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
            pa.array([datetime.date(2020, 1, 1)] * 3),
            pa.array([True, False, True]),
            pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        ]
    ):
        before, between, after = (
            tmp_path / f"{number}-{name}" for name in ("a.parquet", "b.h5", "c.parquet")
        )
        pq.write_table(pa.table({"v": values}), before)
        recshuf.shuffle(before, between, seed=1)
        recshuf.shuffle(between, after, seed=1)
        expected = values.take(order[order])
        assert pq.read_table(after)["v"].to_pylist() == expected.to_pylist()


# What is refused


def make_reference(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["id"] = np.arange(3)
        file.create_dataset("pointers", data=[file["id"].ref] * 3, dtype=h5py.ref_dtype)


def make_uneven(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((3, 2))
        file["b"] = np.zeros(4)


def write_table(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


REFUSED: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "nulls-in-hdf5": ("parquet", write_table(a=[1, 2], holes=[1, None]), "hdf5", "holes.*null"),
    "null-strings-in-hdf5": ("parquet", write_table(holes=["x", None]), "hdf5", "holes.*null"),
    "missing-fields-in-hdf5": (
        "jsonl",
        lambda path: path.write_text('{"a":1,"b":2}\n{"a":1}\n'),
        "hdf5",
        "b.*null",
    ),
    "null-column-in-hdf5": ("parquet", write_table(nothing=pa.nulls(2)), "hdf5", "nothing"),
    "columns-in-text": ("parquet", write_table(a=["x"], b=["y"]), "text", "2.*columns"),
    "numbers-in-text": ("parquet", write_table(number=[1]), "text", "number"),
    "newlines-in-text": ("parquet", write_table(text=["a\nb"]), "text", "text.*separator"),
    "nulls-in-text": ("parquet", write_table(text=["a", None]), "text", "text.*null"),
    "json-records-in-text": ("jsonl", lambda path: path.write_text('{"a":1,"b":2}\n'), "text", "2|a"),
    "bytes-in-a-string": (
        "text",
        lambda path: path.write_bytes(b"fine\n\xff\n"),
        "parquet",
        "(?s)UTF-8|utf-8",
    ),
    "references": ("hdf5", make_reference, "parquet", "pointers"),
    "references-in-json": ("hdf5", make_reference, "jsonl", "pointers"),
    "uneven-datasets": ("hdf5", make_uneven, "parquet", r"a.*\(3, 2\).*b.*\(4,\)|'a'.*'b'"),
    "scalars-as-records": ("jsonl", lambda path: path.write_text("1\n2\n"), "parquet", "line 1"),
    "long-numbers": (
        "jsonl",
        lambda path: path.write_text('{"a": 123456789012345678901234567890}\n'),
        "parquet",
        "a",
    ),
}


@pytest.mark.parametrize(
    ("case", "kind"), [(case, ("file", "shards")[k % 2]) for k, case in enumerate(REFUSED)]
)
def test_what_cannot_be_held_is_refused_by_name_and_nothing_is_left(tmp_path: Path, case: str, kind: str):
    name, write, to, words = REFUSED[case]
    path = tmp_path / f"in{SUFFIXES[name]}"
    write(path)
    output = tmp_path / f"out{SUFFIXES[to]}" if kind == "file" else f"{tmp_path}/out/"
    with pytest.raises(RecshufError, match=words) as caught:
        recshuf.shuffle(path, output, to=to, seed=0)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == [path.name]


EARLY = (
    "null-column-in-hdf5",
    "columns-in-text",
    "numbers-in-text",
    "references",
    "uneven-datasets",
)


def test_what_the_schema_shows_is_refused_by_the_plan_already(tmp_path: Path):
    for case in EARLY:
        name, write, to, words = REFUSED[case]
        path = tmp_path / f"{case}{SUFFIXES[name]}"
        write(path)
        with pytest.raises(RecshufError, match=words):
            recshuf.plan(path, f"{tmp_path}/out/", to=to)


def test_records_without_any_field_cannot_go_to_parquet(tmp_path: Path):
    (tmp_path / "in.jsonl").write_bytes(b"{}\n" * 3)
    with pytest.raises(ConversionError, match="no fields"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
