"""Folders named `key=value` become columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.formats.parquet_tools import load, read_all, store, write_all

if TYPE_CHECKING:
    from pathlib import Path


def partitioned(path: Path, *pairs: tuple[str, str]) -> InputFile:
    return InputFile(path.name, path, partitions=pairs)


def test_folders_become_columns(tmp_path: Path) -> None:
    first = store(tmp_path / "a.parquet", {"n": [1, 2], "own": [5, 6]})
    second = store(tmp_path / "b.parquet", {"n": [3], "own": [7]})
    inputs = [
        partitioned(first, ("year", "2024"), ("la%6Eg", "en%2Fus"), ("own", "1")),
        partitioned(second, ("year", "__HIVE_DEFAULT_PARTITION__"), ("lang", "7"), ("own", "2")),
    ]
    source = FORMAT.open_source(inputs, ReadOptions())
    assert source.schema.field("year").type == pa.int64()
    assert source.schema.field("lang").type == pa.string()
    expected = [
        {"n": 1, "own": 5, "year": 2024, "lang": "en/us"},
        {"n": 2, "own": 6, "year": 2024, "lang": "en/us"},
        {"n": 3, "own": 7, "year": None, "lang": "7"},
    ]
    assert read_all(source).to_pylist() == expected
    assert load(write_all(source, tmp_path / "out.parquet")).to_pylist() == expected
    only = FORMAT.open_source(inputs, ReadOptions(columns=("year",)))
    assert read_all(only)["year"].to_pylist() == [2024, 2024, None]


def test_inputs_with_other_folders_are_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "a.parquet", {"n": [1]})
    other = store(tmp_path / "b.parquet", {"n": [1]})
    with pytest.raises(InputError, match=r"b\.parquet.*a\.parquet"):
        FORMAT.open_source([partitioned(path, ("k", "1")), partitioned(other)], ReadOptions())
