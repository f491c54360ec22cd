"""Columns of a conversion from JSONL."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from tests.support.small_runs import infer_from_few

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [{"text": f"t{row}", "id": row, "more": [{"a": row}]} for row in range(400)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("schema", [None, {"text": "string", "id": "int16"}])
def test_only_these_fields_are_written_in_their_order(
    tmp_path: Path, lines: Path, schema: dict[str, str] | None
) -> None:
    options = {"columns": "id,text", "schema": schema, "verify": True}
    recshuf.shuffle(lines, tmp_path / "out.parquet", **options)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["id", "text"]
    assert str(table.schema.field("id").type) == ("int64" if schema is None else "int16")
    assert sorted(table["id"].to_pylist()) == [row["id"] for row in ROWS]
    recshuf.shuffle(lines, tmp_path / "out.txt", columns=["text"], verify=True)
    assert sorted((tmp_path / "out.txt").read_text().split()) == sorted(row["text"] for row in ROWS)
    report = recshuf.verify(lines, tmp_path / "out.parquet", columns="id,text", schema=schema)
    assert report.is_equal


def test_a_field_may_appear_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infer_from_few(monkeypatch)
    inputs = [tmp_path / f"{index}.jsonl" for index in range(3)]
    for path, row in zip(inputs, [{"a": 1}, {"a": 2}, {"a": 3, "b": "x"}], strict=True):
        path.write_text((json.dumps(row) + "\n") * 30)
    recshuf.shuffle(inputs, tmp_path / "out.parquet", columns="b")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.names == ["b"]
    assert found["b"].null_count == 60
    with pytest.raises(UsageError, match="there is no column 'c'; there are: a, b"):
        recshuf.shuffle(inputs, tmp_path / "c.parquet", columns="b,c")


def test_columns_of_records_that_stay_lines_are_refused(tmp_path: Path, lines: Path) -> None:
    problem = "columns: records of jsonl are kept as they are, unless they are converted"
    with pytest.raises(UsageError, match=problem):
        recshuf.shuffle(lines, "-", columns="id", stdout=io.BytesIO())
    with pytest.raises(UsageError, match=problem):
        recshuf.scatter(lines, tmp_path / "store", columns="id")
    with pytest.raises(UsageError, match="there is no column 'no'; there are: text, id"):
        recshuf.shuffle(lines, tmp_path / "o.parquet", columns="no", schema={"text": "string", "id": "int64"})


def test_a_schema_file_in_the_folder_of_the_inputs_is_no_input(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "in").mkdir()
    lines.rename(tmp_path / "in" / "a.jsonl")
    schema = tmp_path / "in" / "schema.json"
    schema.write_text('{"text": "string", "id": "int64", "more": "json"}')
    report = recshuf.shuffle(tmp_path / "in", tmp_path / "out.parquet", schema=schema, verify=True)
    assert report.records == len(ROWS)
    assert recshuf.verify(tmp_path / "in", tmp_path / "out.parquet", schema=str(schema)).is_equal
