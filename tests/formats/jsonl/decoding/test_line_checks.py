"""Lines that are not one JSON object each are named, with what is wrong with them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.support.formats.json_decoding import decode, failure

WRONG = [
    (b"", "empty"),
    (b" \t", "empty"),
    (b"\r", "empty"),
    (b"[1]", "not a JSON object"),
    (b"1", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'"{}"', "not a JSON object"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    (b"{} {}", "more than one"),
    (b"{} null {}", "more than one"),
    (b'{"a":1', "end of its JSON object"),
    (b'{"a":1}]', "end of its JSON object"),
    (b'{"a":tru}', "not valid JSON"),
    (b'{"a":01}', "not valid JSON"),
    (b"{'a':1}", "not valid JSON"),
    (b'{"a":1,}', "not valid JSON"),
    (b'{"a":"\t"}', "not valid JSON"),
    (b'{"a":"\0"}', "not valid JSON"),
    (b'{"a":"\\ud800"}', "not valid JSON"),
    (b'{"\\udc00":1}', "not valid JSON"),
    (b'{"a":"\xff"}', "UTF-8"),
    (b'{"\xff":1}', "UTF-8"),
    (b'{"a":1e400}', "too large for float64"),
    (b'{"a":NaN}', "NaN"),
    (b'{"a":[{"b":-Infinity}]}', "infinite"),
    (b'{"a":1,"a":2}', "twice"),
    (b'{"a":{"b":1,"\\u0062":2}}', "twice"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
    (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deep"),
    (b'{"a":"\\"","b":' + b"[" * 9000 + b"]" * 9000 + b"}", "deep"),
]


@pytest.mark.parametrize("schema", [None, pa.schema([("z", pa.int64())])], ids=["inferred", "given"])
def test_what_is_wrong_with_a_line_is_said(schema: pa.Schema | None) -> None:
    for line, problem in WRONG:
        error = failure([b'{"z":1}'] * 5 + [line] + [b'{"z":2}'] * 5, schema)
        assert str(error.place).partition(",")[0] == "line 6", line[:30]
        assert schema is not None or problem in error.problem
        assert len(str(error)) < 300


def test_a_number_above_those_of_float64_names_its_field_and_is_kept_as_text() -> None:
    nested = pa.struct([("b", pa.struct([("c", pa.string())]))])
    listed = pa.list_(pa.struct([("c", pa.bool_()), ("d", pa.string())]))
    for line, field, kind in (
        (b'{"z":1,"a":1e400}', "a", pa.string()),
        (b'{"b":1e9,"a":[{"c":true,"d":-1e999}]}', "a[].d", listed),
        (b'{"a":{"b":{"c":1e999}}}', "a.b.c", nested),
    ):
        error = failure([b'{"z":1}', line])
        assert error.place == f"line 2, field {field!r}"
        assert error.remedy == "give its field the type string with --schema"
        text = json.loads(line, parse_float=str, parse_int=str)
        schema = pa.schema([(name, kind if name == "a" else pa.string()) for name in text])
        assert decode([line], schema).to_pylist() == [text]


def test_a_field_that_a_schema_lacks_has_a_remedy_for_comparisons_too() -> None:
    error = failure([b'{"z":1,"a":2}'], pa.schema([("z", pa.int64())]))
    assert error.place == "line 1, field 'a'"
    assert "schema" in str(error.remedy)
    assert "verify" in str(error.remedy)


def test_depth_is_counted_outside_of_texts() -> None:
    text = json.dumps({"a": '[{"' * 5000, "b": [[]] * 5000}).encode()
    assert decode([text]).num_rows == 1
    nested = b'{"a":' + b"[" * 127 + b"]" * 127 + b"}"
    assert decode([nested]).num_rows == 1
