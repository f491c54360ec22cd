"""Checks and pictures of CSV: its columns are those of its header, and its records may span lines."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError

COUNT = 6000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of records in order, with line ends inside of fields."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, numbers in (("0.csv", range(COUNT // 3)), ("1.csv", range(COUNT // 3, COUNT))):
        with (folder / name).open("w", newline="") as file:
            rows = ([number, "cat" if number < COUNT / 2 else "dog", "two\nlines"] for number in numbers)
            csv.writer(file).writerows([["id", "label", "text"], *rows])
    return folder


@pytest.mark.parametrize("suffix", ["/", ".csv", ".csv.gz", ".parquet", ".jsonl"])
def test_own_shuffles_are_uniform(tmp_path: Path, inputs: Path, suffix: str):
    output = Path(f"{tmp_path}/out{suffix}")
    recshuf.shuffle(inputs, f"{tmp_path}/out{suffix}", seed=1)
    report = recshuf.check(output, against=inputs)
    assert (report.is_uniform, report.tested, report.missing, report.extra) == (True, COUNT, 0, 0)
    for column in ("id", "label"):
        assert recshuf.check(output, column=column).is_uniform
        assert not recshuf.check(inputs, column=column).is_uniform


def test_an_order_that_is_kept_is_found(inputs: Path):
    assert not recshuf.check(inputs, against=inputs).is_uniform


def test_a_column_that_is_missing_is_named_with_those_there(inputs: Path):
    with pytest.raises(UsageError, match="no column 'x'; there are: id, label, text"):
        recshuf.check(inputs, column="x")


def test_a_picture_is_that_of_the_same_records_in_parquet(tmp_path: Path, inputs: Path):
    pytest.importorskip("PIL")
    recshuf.shuffle(inputs, tmp_path / "out.csv", seed=1)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = pa.table({"id": [int(row["id"]) for row in rows], "label": [row["label"] for row in rows]})
    pq.write_table(table, tmp_path / "out.parquet")
    for column in ("id", "label"):
        drawn = recshuf.picture(tmp_path / "out.csv", column=column, title="x")
        assert drawn == recshuf.picture(tmp_path / "out.parquet", column=column, title="x")
    assert recshuf.picture(tmp_path / "out.csv", against=inputs).startswith(b"\x89PNG")
