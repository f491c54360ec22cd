"""Types ``json`` and ``map`` of a schema hold any values and any names, NaN is taken by floats of a schema, and messages propose all that."""

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufError
from recshuf.formats.jsonl import inference
from recshuf.formats.jsonl.decoder import JsonDecoder
from recshuf.job.schema_file import parse_schema
from tests.support.effort import examples, mostly_slow
from tests.support.formats.json_oracle import as_typed
from tests.support.formats.json_records import ANYTHING, FLOATS, TEXTS, batch_of, decode, failure, written
from tests.support.small_runs import infer_from_few

SCHEMA = parse_schema(
    {
        "id": "int64",
        "any": "json",
        "map": "map<string, json>",
        "deep": [{"any": ["json"], "map": "map<string, map<string, float64>>"}],
        'str"in\\g': "json",
    },
    "test",
)
NUMBERS = st.none() | st.dictionaries(TEXTS, FLOATS, max_size=2)
DEEP = {"map": st.none() | st.dictionaries(TEXTS, NUMBERS, max_size=2), "any": st.lists(ANYTHING, max_size=3)}
FIELDS = {
    "id": st.integers(0, 9),
    "any": ANYTHING,
    "map": st.none() | st.dictionaries(TEXTS, ANYTHING, max_size=3),
    "deep": st.lists(st.none() | st.fixed_dictionaries({}, optional=DEEP), max_size=2),
    'str"in\\g': ANYTHING,
}


@st.composite
def spelled_lines(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """Return a record, and a line of it with some spaces and escapes."""
    record = draw(st.fixed_dictionaries({}, optional=FIELDS))
    spelling = draw(st.sampled_from([b'"any"', b'"\\u0061ny"']))
    return record, draw(written(record)).replace(b'"any"', spelling, 1)


def to_plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a table as JSON has it."""
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pt.is_map(kind):
        return {name: to_plain(inner, kind.item_type) for name, inner in value}
    if pt.is_list(kind):
        return [to_plain(inner, kind.value_type) for inner in value]
    if pt.is_struct(kind):
        return {field.name: to_plain(value[field.name], field.type) for field in kind}
    return value


@settings(max_examples=examples(160), deadline=None)
@given(st.lists(spelled_lines(), min_size=1, max_size=6))
def test_any_json_is_found_in_any_spelling(drawn: list[tuple[dict[str, Any], bytes]]) -> None:
    table, kind = decode([line for _, line in drawn], SCHEMA), pa.struct(list(SCHEMA))
    assert [to_plain(row, kind) for row in table.to_pylist()] == [
        as_typed(record, kind) for record, _ in drawn
    ]


def test_what_is_no_json_or_no_map_is_named() -> None:
    good = b'{"any":{"a":"{"},"map":{"b":[1]}}'
    for line, place in (
        (b'{"any":{"a":01}}', "line 2"),
        (b'{"any":{"a":[1,}}', "line 2"),
        (b'{"any":"x}', "line 2"),
        (b'{"map":{"a":1,"a":2}}', "line 2, field 'map'"),
        (b'{"map":[1]}', "line 2, field 'map"),
        (b'{"map":[{"value":1}]}', "line 2, field 'map[]'"),
        (b'{"deep":[{"map":{"a":{"b":"x"}}}]}', "line 2, field 'deep"),
        (b'{"deep":[{"map":{"a":{"b":9007199254740993}}}]}', "line 2, field 'deep[].map[][]'"),
        (b'{"any":1,"any":2}', "line 2"),
        (b'{"other":1}', "line 2, field 'other'"),
    ):
        assert str(failure([good, line, good], SCHEMA).place).startswith(place), line


def test_the_text_of_any_json_has_no_blanks_around_it() -> None:
    [row] = decode([b'{"any" : "a " , "map": {"k" : [1 ] }}'], SCHEMA).to_pylist()
    assert (row["any"], row["map"]) == ('"a "', [("k", "[1 ]")])


def test_what_a_map_holds_is_no_field_of_the_schema() -> None:
    schema = pa.schema([("value", pa.string()), ("map", pa.map_(pa.string(), pa.int64()))])
    [row] = decode([b'{"value":1.50,"map":{"k":2}}'], schema).to_pylist()
    assert row == {"value": "1.50", "map": [("k", 2)]}
    for line in (b'{"map":[{"x":1}]}', b'{"map":{"k":{"x":1}}}', b'{"value":{"x":1}}'):
        assert "is not in the schema" not in failure([line], schema).problem


def test_runs_keep_them(tmp_path: Path) -> None:
    """Through a store too; HDF5 has no maps."""
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"a": {f"k{row}": row}, "b": {"c": [row] * (row % 3)}}) for row in range(500)]
    source.write_text("\n".join(lines))
    options = {"schema": {"a": "map<string, int32>", "b": "json"}, "seed": 3}
    recshuf.shuffle(source, tmp_path / "a.parquet", **options, verify=True)
    recshuf.scatter(source, tmp_path / "store", **options)
    recshuf.gather(tmp_path / "store", tmp_path / "b.parquet", verify=True)
    first, second = (pq.read_table(tmp_path / f"{name}.parquet") for name in "ab")
    assert second.equals(first)
    rows = [{"a": dict(row["a"]), "b": json.loads(row["b"])} for row in first.to_pylist()]
    assert sorted(map(json.dumps, rows)) == sorted(lines)
    recshuf.shuffle(source, tmp_path / "a.h5", schema={"a": "json", "b": "json"}, verify=True)


def read_schema_of(error: RecshufError) -> dict[str, object]:
    """Return the schema file that the remedy of an error shows."""
    found = re.search(r"schema=FILE with (\{.*\}), which|--schema FILE with (\{.*\}), which", str(error))
    assert found is not None, str(error)
    return json.loads(found[1] or found[2])


PROPOSED = {
    "empty objects": ['{"id":1,"e":{}}', '{"id":2,"l":[{"f":{}}],"e":null}'],
    "NaN": ['{"x":1,"n":null}', '{"y":[{"x":NaN}],"x":2.5}', '{"x":-Infinity}'],
    "names that are data": [json.dumps({"id": row, "m": [{f"k{row}": row / 2}]}) for row in range(300)],
    "names of several types": [
        json.dumps({"m": {f"k{row}": [row, "x", True][row % 3]}}) for row in range(300)
    ],
}


@pytest.mark.parametrize(
    ("case", "by_prefix"),
    mostly_slow(
        product(PROPOSED, [True, False]), *list(zip(PROPOSED, [True, False, True, False], strict=True))[:2]
    ),
)
def test_the_message_shows_a_schema_that_works(
    tmp_path: Path, case: str, by_prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 250)
    if by_prefix:
        infer_from_few(monkeypatch)
    inputs = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    for path in inputs:
        path.write_text("\n".join(PROPOSED[case]))
    with pytest.raises((InputError, ConversionError), match="give schema=FILE with") as caught:
        recshuf.shuffle(inputs, tmp_path / "out.parquet")
    schema = read_schema_of(caught.value)
    report = recshuf.shuffle(inputs, tmp_path / "out.parquet", schema=schema, verify=True)
    assert report.records == 2 * len(PROPOSED[case])


CONFLICTS = {
    "an object": (["1", '{"b":2}'], {"json"}),
    "an array": (['"x"', '["x"]', "null"], {"json"}),
    "a boolean": (["1", "true"], {"string"}),
    "a text": (['"x"', "1.5"], {"string"}),
    "a fraction": (["9007199254740993", "0.5"], {"string"}),
    "a fraction before": (["0.5", "9007199254740993"], {"string"}),
    "a fraction and too many digits": (["1.0", "18446744073709551615"], {"string"}),
    "digits alone": (["9007199254740993", "9223372036854775808"], {"string", "uint64", "decimal128(38, 0)"}),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_each_type_that_the_message_of_a_conflict_names_takes_the_values(tmp_path: Path, case: str) -> None:
    values, kinds = CONFLICTS[case]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"a":{value}}}\n' for value in values))
    with pytest.raises(InputError, match=r"in\.jsonl: line \d, field 'a': holds ") as caught:
        recshuf.shuffle(path, tmp_path / "out.parquet")
    always, _, without_fractions = (
        str(caught.value).partition("; ")[2].partition(", or, if it has no fractions, ")
    )
    named = always if "fraction" in case else f"{always} {without_fractions}"
    assert {*re.findall(r"json|string|uint64|decimal128\(38, 0\)", named)} == kinds
    for kind in kinds:
        recshuf.shuffle(path, tmp_path / f"{kind}.parquet", schema={"a": kind}, verify=True)


def test_names_that_may_be_data_are_told() -> None:
    decoder = JsonDecoder(["in.jsonl"], None)
    decoder.observe(batch_of([json.dumps({"a": {"m": {f"k{row}": 1}}}).encode() for row in range(250)]), 0, 0)
    decoder.finish()
    (note,) = decoder.notes
    assert note.startswith("field 'a.m' has 250 different names")
    assert '{"a":{"m":"map<string, int64>"}}' in note
    wide = JsonDecoder(["in.jsonl"], None)
    wide.observe(batch_of([json.dumps({f"k{column}": 1 for column in range(400)}).encode()] * 3), 0, 0)
    wide.finish()
    assert not wide.notes


def test_names_that_may_be_data_are_told_at_once_where_inference_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "_NAMED_DATA_SECONDS", 0.0)
    path, schema = tmp_path / "in.jsonl", tmp_path / "schema.json"
    path.write_text("\n".join(json.dumps({"id": row, "m": {f"k{row}": 1}}) for row in range(250)))
    with pytest.warns(recshuf.errors.RecshufWarning) as told:
        recshuf.shuffle(path, tmp_path / "out.parquet")
    first, last = (str(one.message) for one in told)
    assert first == f"so far, {last}"
    schema.write_text(re.search(r"with ({.*}), which takes any names", first)[1])
    assert recshuf.shuffle(path, tmp_path / "map.parquet", schema=schema, verify=True).records == 250
    monkeypatch.setattr(inference, "_NAMED_DATA_RECORD", 250)
    path.write_text("\n".join(json.dumps({f"k{row}": 1}) for row in range(250)))
    with pytest.warns(
        recshuf.errors.RecshufWarning, match=r"so far, records have 250 .*; .* write a \.jsonl, "
    ):
        recshuf.shuffle(path, tmp_path / "wide.parquet")


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_of_a_schema_take_what_python_writes(kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind), ("l", pa.list_(pa.struct([("y", kind)])))])
    values = [math.nan, math.inf, -math.inf, 1.5, None]
    lines = [json.dumps({"x": value, "l": [{"y": value}] * 2}).encode() for value in values]
    table = decode(lines, schema)
    for row, value in zip(table.to_pylist(), values, strict=True):
        assert repr(row) == repr({"x": value, "l": [{"y": value}] * 2})
    for large in ("1e999", "1e300", "-1e39", "1e6")[: {64: 1, 32: 3, 16: 4}[kind.bit_width]]:
        for text in (f'{{"x":{large}}}', f'{{"l":[{{"y":NaN}},{{"y":{large}}}]}}'):
            assert failure([b'{"x":NaN}', text.encode()], schema).place.startswith("line 2")
