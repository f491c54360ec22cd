"""All conversions as whole runs: values come through in the order of the seed, or are refused by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufError, RecshufWarning
from tests.support.formats.conversion_data import (
    COUNT,
    PAIRS,
    WRITERS,
    choose_columns,
    choose_schema,
    read_columns,
)
from tests.support.numbered_files import SUFFIXES, order_of

SEED = 12


@pytest.mark.parametrize(("name", "to"), PAIRS)
def test_every_pair_moves_every_value(tmp_path: Path, name: str, to: str):
    columns = choose_columns(name, to)
    path, output = tmp_path / f"in{SUFFIXES[name]}", tmp_path / f"out{SUFFIXES[to]}"
    WRITERS[name](path, columns)
    report = recshuf.shuffle(path, output, seed=SEED, piles=5, schema=choose_schema(name, to))
    assert (report.format, report.to, report.records_written) == (name, to, COUNT)
    lists = {key: values if isinstance(values, list) else values.tolist() for key, values in columns.items()}
    order = order_of([COUNT], SEED)
    assert read_columns(output) == {key: [values[row] for row in order] for key, values in lists.items()}


@pytest.mark.parametrize("to", ["arrow", "hdf5", "jsonl", "npz", "parquet"])
def test_a_level_of_compression_counts(tmp_path: Path, to: str):
    table = pa.table({"a": np.random.default_rng(0).integers(0, 300, 20_000)})
    codec, sizes = "gzip" if to in ("hdf5", "npz") else "zstd", []
    for level in (1, 9):
        recshuf.shuffle(
            table, f"{tmp_path}/{level}/", to=to, seed=1, shards=1, compression=f"{codec}:{level}"
        )
        sizes += [path.stat().st_size for path in (tmp_path / f"{level}").iterdir()]
    assert sizes[0] != sizes[1]


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


def write_lines(*lines: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(b"".join(line + b"\n" for line in lines))


AT_ONCE: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "null column in hdf5": ("parquet", write_table(nothing=pa.nulls(2)), "hdf5", "nothing"),
    "columns in text": (
        "parquet",
        write_table(a=["x"], b=["y"]),
        "text",
        r"one column .*, not 'a' of string, 'b' of string",
    ),
    "numbers in text": ("parquet", write_table(number=[1]), "text", "number"),
    "references": ("hdf5", make_reference, "parquet", "pointers"),
    "references in json": ("hdf5", make_reference, "jsonl", "pointers"),
    "uneven datasets": ("hdf5", make_uneven, "parquet", r"a.*\(3, 2\).*b.*\(4,\)|'a'.*'b'"),
}
"""What the schema shows: the plan refuses it already."""
REFUSED = AT_ONCE | {
    "nulls in hdf5": ("parquet", write_table(a=[1, 2], holes=[1, None]), "hdf5", "holes.*null"),
    "missing fields in hdf5": ("jsonl", write_lines(b'{"a":1,"b":2}', b'{"a":1}'), "hdf5", "b.*null"),
    "newlines in text": ("parquet", write_table(text=["a\nb"]), "text", "text.*separator"),
    "nulls in text": ("parquet", write_table(text=["a", None]), "text", "text.*null"),
    "records of json in text": ("jsonl", write_lines(b'{"a":1,"b":2}'), "text", "2|a"),
    "nan in json": ("parquet", write_table(v=[1.5, np.nan]), "jsonl", r"'v'.*nan_as_null=True"),
    "lists in csv": ("parquet", write_table(a=[1], deep=[[1, 2]]), "csv", r"'deep'.*CSV cannot hold list"),
    "bytes in a string": ("text", write_lines(b"fine", b"\xff"), "parquet", "UTF-8|utf-8"),
    "scalars as records": ("jsonl", write_lines(b"1", b"2"), "parquet", "line 1"),
    "no json": ("jsonl", write_lines(b"{}", b'{"a": '), "parquet", r"in\.jsonl: line 2"),
    "no fields": ("jsonl", write_lines(b"{}", b"{}"), "parquet", "no fields"),
    "types in conflict": (
        "jsonl",
        write_lines(b'{"a": {"b": 1}}', b'{"a": {"b": "x"}}'),
        "hdf5",
        r"in\.jsonl.*(line 2.*a\.b|a\.b.*line 2).*(string.*number|number.*string)",
    ),
    "long numbers": ("jsonl", write_lines(b'{"a": 123456789012345678901234567890}'), "parquet", "a"),
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
    if case in AT_ONCE:
        with pytest.raises(RecshufError, match=words):
            recshuf.plan(path, output, to=to)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "meant"), [("out.parqet", ".parquet would mean parquet"), ("out.jsnl.gz", ".jsonl would")]
)
def test_a_suffix_that_is_nearly_known_is_told(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    with pytest.warns(RecshufWarning, match=rf"{name}: gets text, as the inputs; the suffix \{meant}"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / name)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["out", "out.dat", "out.md", "out.texts"])
def test_other_suffixes_have_the_format_of_the_inputs(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    recshuf.shuffle(tmp_path / "in.txt", tmp_path / name)
    assert (tmp_path / name).read_text() == "a\n"
