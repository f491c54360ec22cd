"""Columns spliced into JSON lines: the lines keep their bytes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recshuf
from recshuf.errors import InputError
from recshuf.formats.jsonl.splicing import JsonFieldAdder
from recshuf.formats.lines.cutting import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


NAMES = ["source_file", "source_row"]
space = st.text(" \t", max_size=2)
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"source_file":1', '"source_row"', "}", "{", "\\", '{"source_file":', "source_row"]
)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def make_adder() -> JsonFieldAdder:
    return JsonFieldAdder(["in.jsonl"], NAMES)


def to_batch(lines: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_binary())], schema=SCHEMA)


@given(
    st.lists(st.tuples(st.dictionaries(texts, values, max_size=3), space, space), min_size=1), st.booleans()
)
def test_lines_get_fields_and_keep_their_bytes(given: list[tuple[dict[str, Any], str, str]], is_ascii: bool):
    objects = [record for record, _, _ in given]
    lines = [
        (before + json.dumps(record, ensure_ascii=is_ascii) + after + "\n").encode()
        for record, before, after in given
    ]
    adder, batch = make_adder(), to_batch(lines)
    has_name = [any(f'"{name}":' in line.decode().replace(" ", "") for name in NAMES) for line in lines]
    try:
        adder.observe(batch, 0, 0)
    except InputError:
        assert any(has_name) or any("\\u00" in line.decode() for line in lines)
        return
    columns = pa.record_batch({"source_file": ['a"\\\n.é'] * len(lines), "source_row": range(len(lines))})
    made = adder.add_fields(batch.slice(0), columns)
    for row, (line, record) in enumerate(zip(made.column(0).to_pylist(), objects, strict=True)):
        assert json.loads(line) == record | {"source_file": 'a"\\\n.é', "source_row": row}
        assert line.startswith(lines[row].rpartition(b"}")[0])
        assert line.endswith(lines[row].rpartition(b"}")[2])
    assert adder.remove_fields(made).equals(batch)
    assert adder.add_fields(batch.slice(1), columns.slice(1)).equals(made.slice(1))


def test_lines_that_no_run_has_given_fields_stay_as_they_are():
    batch = to_batch([b'{"a":1}\n', b'{"source_file":"x"}\n', b'"source_file":"x","source_row":1\n', b"\n"])
    assert make_adder().remove_fields(batch).equals(batch)


@pytest.mark.parametrize(
    "line",
    [
        '{"source_file": 1}',
        '{"a": {"source_row"\t: 1}}',
        '{"source\\u005ffile": 1}',
        '{"\\u0073ource_row": 1}',
        '{"sourc\\u0065_row" : 1}',
        "[]",
        "",
        "3",
        '"}',
        "\ufeff{}",
    ],
)
def test_lines_that_cannot_get_fields_are_refused_by_place(tmp_path: Path, line: str, run: Run):
    (tmp_path / "in.jsonl").write_text('{"b": "source_file"}\n' * 4 + line + "\n{}\n")
    result = run(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--provenance")
    assert result.returncode == 1
    assert b"in.jsonl: line 5: " in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_streams_of_lines_say_where_they_come_from():
    stdout = io.BytesIO()
    recshuf.shuffle("-", "-", format="jsonl", provenance=True, stdin=io.BytesIO(b"{}"), stdout=stdout)
    assert stdout.getvalue() == b'{"source_file":"standard input","source_row":0}\n'
