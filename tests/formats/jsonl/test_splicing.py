"""Fields are spliced into lines of JSON, and taken out of them, without touching their other bytes."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl.encoding import JsonFieldAdder
from recshuf.formats.lines.cutting import SCHEMA
from tests.support.effort import examples

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


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.dictionaries(texts, values, max_size=3), space, space, space), min_size=1),
    st.booleans(),
)
def test_lines_get_fields_and_keep_their_bytes(
    given: list[tuple[dict[str, Any], str, str, str]], is_ascii: bool
) -> None:
    """Space may stand before and after a line, and before its last brace."""
    objects = [record for record, *_ in given]
    lines = [
        f"{before}{json.dumps(record, ensure_ascii=is_ascii)[:-1]}{inner}}}{after}\n".encode()
        for record, before, inner, after in given
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
        pairs = json.loads(line, object_pairs_hook=list)
        assert [name for name, _ in pairs] == [*record, *NAMES], "no name is there twice"
        assert json.loads(line) == record | {"source_file": 'a"\\\n.é', "source_row": row}
        assert line.startswith(lines[row].rpartition(b"}")[0])
        assert line.endswith(lines[row].rpartition(b"}")[2])
    assert adder.remove_fields(made).equals(batch)
    assert adder.add_fields(batch.slice(1), columns.slice(1)).equals(made.slice(1))


def test_lines_that_may_have_one_of_the_fields_or_are_no_objects_are_refused_by_their_row() -> None:
    for line in (
        b'{"source_row":1}\n',
        b'{"a":1, "source_file" :null}\n',
        b'{"a":{"source_row":[]}}\n',
        b'{"source\\u005frow":1}\n',
        b'{"\\u0073ource_file":1}\n',
        b'{"\\u0073ource\\u005fro\\u0077": 1}\n',
        b"[1]\n",
        b"\n",
        b"{} x\n",
    ):
        with pytest.raises(InputError, match=r"^in\.jsonl: line 103: .*source_file and source_row"):
            make_adder().observe(to_batch([b'{"a":"source_row"}\n', b"{}\n", line]), 0, 100)


def test_lines_that_no_run_has_given_fields_stay_as_they_are():
    batch = to_batch([b'{"a":1}\n', b'{"source_file":"x"}\n', b'"source_file":"x","source_row":1\n', b"\n"])
    assert make_adder().remove_fields(batch).equals(batch)
