"""JSON lines to table form, against the same done record by record with `json`."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError, InputError
from recshuf.formats.jsonl.decoding import inference, line_checks
from recshuf.formats.jsonl.decoding.decoder import JsonDecoder
from recshuf.records.arrow_views import view_offsets

CORPORA = Path(os.environ.get("RECSHUF_CORPORA", "../shared/data"))
WHITESPACE = " \t\r\n"


def batch_of(lines: list[bytes]) -> pa.RecordBatch:
    """Return a native batch, a slice of a longer one."""
    padded = [b"[\n", *(line + b"\n" for line in lines), b"]\n"]
    return pa.record_batch([pa.array(padded, pa.large_binary())], ["record"]).slice(1, len(lines))


def decode(lines: list[bytes], schema: pa.Schema | None = None, header_lines: int = 0) -> pa.RecordBatch:
    return decode_with(finished(lines, schema, header_lines), lines)


def finished(lines: list[bytes], schema: pa.Schema | None = None, header_lines: int = 0) -> JsonDecoder:
    """Return a decoder that has seen these lines."""
    decoder = JsonDecoder(["in.jsonl"], schema, header_lines)
    decoder.observe(batch_of(lines), 0, 0)
    decoder.finish()
    return decoder


def decode_with(decoder: JsonDecoder, lines: list[bytes]) -> pa.RecordBatch:
    table = decoder.decode(batch_of(lines))
    table.validate(full=True)
    assert table.schema == decoder.schema
    assert table.num_rows == len(lines)
    return table


def failure(lines: list[bytes], schema: pa.Schema | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        decode(lines, schema)
    assert caught.value.name == "in.jsonl"
    assert "\n" not in str(caught.value)
    return caught.value


# The oracle: types and values record by record.


class DoesNotFitError(Exception):
    pass


def type_of(value: Any) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(name, type_of(child)) for name, child in value.items()])
    if isinstance(value, list):
        element = pa.null()
        for child in value:
            element = merged(element, type_of(child))
        return pa.list_(element)
    kinds = {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return kinds[type(value)]


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pt.is_null(one) or one == other:
        return other
    if pt.is_null(other):
        return one
    if pt.is_struct(one) and pt.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if pt.is_list(one) and pt.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise DoesNotFitError


def as_typed(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_struct(kind):
        return {field.name: as_typed(value.get(field.name), field.type) for field in kind}
    if pt.is_list(kind):
        return [as_typed(child, kind.value_type) for child in value]
    return float(value) if pt.is_floating(kind) else value


TEXTS = st.sampled_from(
    ["", "a", "2020-01-01", "2020-01-01T00:00:00Z", "1", 'é\u2028\x00"\\', "}{", "null"]
) | st.text(st.characters(codec="utf-8"), max_size=4)
NAMES = st.sampled_from(["a", "b", "c", "é", "", "a.b", "[]", 'q"', "x\x00y", "a/b"])
INTEGERS = st.integers(-(2**53), 2**53) | st.integers(-9, 9)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
VALUES_OF_ONE_TYPE = st.recursive(
    st.sampled_from([st.booleans(), INTEGERS, FLOATS, INTEGERS | FLOATS, TEXTS, st.none()]),
    lambda inner: (
        inner.map(lambda values: st.lists(st.none() | values, max_size=4))
        | st.dictionaries(NAMES, inner, max_size=3).map(lambda parts: some_of(parts))
    ),
    max_leaves=5,
)


def some_of(parts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with any of the fields, in any order."""
    optional = {name: st.none() | values for name, values in parts.items()}
    objects = st.fixed_dictionaries({}, optional=optional)
    return objects.flatmap(lambda made: st.permutations(list(made.items())).map(dict))


RECORDS_OF_ONE_TYPE = st.dictionaries(NAMES, VALUES_OF_ONE_TYPE, max_size=4).flatmap(
    lambda parts: st.lists(some_of(parts), max_size=8)
)
ANY_RECORDS = st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=4)


@st.composite
def written(draw: st.DrawFn, record: dict[str, Any]) -> bytes:
    """Return one of the many ways to write a record."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\r")]))
    text = json.dumps(record, ensure_ascii=draw(st.booleans()), separators=separators)
    spaces = st.text(WHITESPACE.replace("\n", ""), max_size=2)
    return (draw(spaces) + text + draw(spaces)).encode()


@settings(max_examples=300, deadline=None)
@given(RECORDS_OF_ONE_TYPE | ANY_RECORDS, st.data())
@example([{"b": [None, None, 1]}, {"b": None}], None)
@example([{"b": [None, None, None]}, {"b": [None]}], None)
@example([{"b": [[None, None], [None]]}], None)
@example([{"b": [{"x": [None, None]}, {"x": None}, {}]}], None)
@example([{}, {}], None)
def test_any_records_in_any_cuts_and_any_order(
    records: list[dict[str, Any]], data: st.DataObject | None
) -> None:
    lines = [
        json.dumps(record).encode() if data is None else data.draw(written(record)) for record in records
    ]
    cuts = (
        range(len(lines))
        if data is None
        else data.draw(st.sets(st.integers(1, max(len(lines), 1)), max_size=3))
    )
    edges = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    spans = list(pairwise(edges))
    order = spans if data is None else data.draw(st.permutations(spans))
    decoder = JsonDecoder(["in.jsonl"], None, 0)
    try:
        expected = pa.struct([])
        for record in records:
            expected = merged(expected, type_of(record))
    except DoesNotFitError:
        with pytest.raises(InputError, match=r"line [0-9]+, field"):
            observe_spans(decoder, lines, order)
        return
    observe_spans(decoder, lines, order)
    assert decoder.schema is None
    assert decoder.finish() == pa.schema(list(expected))
    shuffled = list(range(len(lines)))
    random.Random(7).shuffle(shuffled)
    found = decode_with(decoder, [lines[row] for row in shuffled]).to_pylist()
    assert repr(found) == repr([as_typed(records[row], expected) for row in shuffled])


def observe_spans(decoder: JsonDecoder, lines: list[bytes], spans: list[tuple[int, int]]) -> None:
    for start, stop in spans:
        decoder.observe(batch_of(lines[start:stop]), 0, start)


@settings(max_examples=100, deadline=None)
@given(RECORDS_OF_ONE_TYPE)
def test_the_schema_found_decodes_when_it_is_given(records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record).encode() for record in records]
    inferred = decode(lines)
    assert decode(lines, inferred.schema).equals(inferred)


# Lines that are not one object each.


def is_sound(line: bytes) -> bool:
    """Tell whether a line is one object by the letter of RFC 8259, names unique, and within float64."""
    try:
        value = json.loads(line.decode(), parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode()
        type_of(value)
    except (ValueError, RecursionError, DoesNotFitError):
        return False
    return isinstance(value, dict) and set(line.decode()[:1]) <= {"{", *WHITESPACE}


def refuse(_: str) -> Any:
    raise ValueError


def finite(text: str) -> float:
    if not np.isfinite(float(text)):
        raise ValueError
    return float(text)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


SEEDS = [
    b'{"a":1}',
    b'{"a":[1,{"b":null}],"c":"x\\u00e9"}',
    b'{"a":-1.5e3,"b":true}',
    b"{}",
    b'{"a":{"b":[[],[2]]}}',
]
BITS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"null",
    b" ",
    b"\0",
    b"\xff",
    b"\\",
    b"{}",
    b"1",
    b"-",
    b"\xef\xbb\xbf",
    b"}{",
    b"NaN",
    b'"a":2',
    b"\r",
    b"/**/",
    b"\\ud800",
    b".",
    b"e9",
    b"e999",
    b"0",
]


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
        line = line[:at] + draw(st.sampled_from([b"", *BITS])) + line[at + gone :]
    return line


@settings(max_examples=600, deadline=None)
@given(st.lists(damaged_lines(), min_size=1, max_size=4))
@example([b'{"a":1}{"a":2}', b""])
@example([b'{"a":1}{"a":2}', b'{"a":'])
@example([b'{"a":1}{"a":', b"2}"])
@example([b'{"a":[{}', b"{}]}"])
@example([b'{"a":"', b'"}'])
@example([b"null"])
@example([b"{}", b"null"])
@example([b"{} null {}"])
@example([b"{}\0{}"])
def test_a_line_that_is_not_one_object_is_named(lines: list[bytes]) -> None:
    broken = {f"line {row + 1}" for row, line in enumerate(lines) if not is_sound(line)}
    decoder = JsonDecoder(["in.jsonl"], None, 0)
    if broken:
        with pytest.raises(InputError) as caught:
            decoder.observe(batch_of(lines), 0, 0)
        assert caught.value.place
        place = caught.value.place.partition(",")[0]
        assert place in broken or "line" in caught.value.problem
        return
    if not fit_together(lines):
        with pytest.raises(InputError, match=r", but an? "):
            decoder.observe(batch_of(lines), 0, 0)
        return
    decoder.observe(batch_of(lines), 0, 0)
    decoder.finish()
    decode_with(decoder, lines)


def fit_together(lines: list[bytes]) -> bool:
    try:
        reduce(merged, (type_of(json.loads(line)) for line in lines))
    except DoesNotFitError:
        return False
    return True


@pytest.mark.parametrize(
    ("line", "problem"),
    [
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
        (b'{"a":1e400}', "not valid JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":[{"b":-Infinity}]}', "infinite"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"\\u0062":2}}', "twice"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deep"),
        (b'{"a":"\\"","b":' + b"[" * 9000 + b"]" * 9000 + b"}", "deep"),
    ],
    ids=lambda value: repr(value[:30]),
)
@pytest.mark.parametrize("schema", [None, pa.schema([("z", pa.int64())])], ids=["inferred", "given"])
def test_what_is_wrong_with_a_line_is_said(line: bytes, problem: str, schema: pa.Schema | None) -> None:
    lines = [b'{"z":1}'] * 5 + [line] + [b'{"z":2}'] * 5
    error = failure(lines, schema)
    assert error.place
    assert error.place.partition(",")[0] == "line 6"
    if schema is None:
        assert problem in error.problem
    assert len(str(error)) < 300


def test_depth_is_counted_outside_of_texts() -> None:
    text = json.dumps({"a": '[{"' * 5000, "b": [[]] * 5000}).encode()
    assert decode([text]).num_rows == 1
    nested = b'{"a":' + b"[" * 127 + b"]" * 127 + b"}"
    assert decode([nested]).num_rows == 1


def test_depth_is_found_line_by_line() -> None:
    deep = '{"a":' + "[" * 2100 + "]" * 2100 + "}"
    flat = '{"a":[' + ",".join(["[[[{}]]]"] * 3000) + "]}"
    quoted = json.dumps({"a": "[{" * 3000})
    long = json.dumps({"a": "x" * 9000})
    short = '{"a":[[[]]]}'
    for order in ([deep], [flat, quoted, long, short], [long, short, deep, short, flat, deep, quoted] * 20):
        lines = pa.array(["]", *(line + "\n" for line in order)], pa.large_string()).slice(1)
        found = line_checks.find_deep(lines, view_offsets(lines))
        assert found.tolist() == [row for row, line in enumerate(order) if line is deep]


def test_line_numbers_count_the_header_and_the_rows_before() -> None:
    decoder = JsonDecoder(["one", "two"], None, 3)
    decoder.observe(batch_of([b"{}"]), 0, 0)
    with pytest.raises(InputError) as caught:
        decoder.observe(batch_of([b"{}", b"{"]), 1, 1000)
    assert (caught.value.name, caught.value.place) == ("two", "line 1005")


# Types that do not fit, and numbers.


@pytest.mark.parametrize(
    ("early", "late", "field", "words"),
    [
        (b'{"a":"x"}', b'{"a":1}', "a", ["a number", "a string"]),
        (b'{"a":1.5}', b'{"a":true}', "a", ["a boolean", "a number"]),
        (b'{"a":{}}', b'{"a":[]}', "a", ["an array", "an object"]),
        (b'{"a":{"b":[1]}}', b'{"a":{"b":[{}]}}', "a.b[]", ["an object", "a number"]),
        (b'{"a":[{"b":"2020-01-01"}]}', b'{"a":[{"b":[]}]}', "a[].b", ["an array", "a string"]),
        (
            b'{"a":9007199254740993}',
            b'{"a":0.5}',
            "a",
            ["a float", "an integer that float64 cannot hold exactly"],
        ),
    ],
)
@pytest.mark.parametrize("cuts", ["together", "apart", "backwards"])
def test_a_conflict_names_field_types_and_both_places(
    early: bytes, late: bytes, field: str, words: list[str], cuts: str
) -> None:
    lines = [b"{}", early, b'{"a":null}', b"{}", late, b"{}"]
    decoder = JsonDecoder(["in.jsonl"], None, 0)
    spans = {"together": [(0, 6)], "apart": [(0, 3), (3, 6)], "backwards": [(3, 6), (0, 3)]}[cuts]
    with pytest.raises(InputError) as caught:
        observe_spans(decoder, lines, spans)
    message = str(caught.value)
    if "9007199254740993" in message:  # seen as a float at once, so only its own place is known
        assert caught.value.place == "line 2, field 'a'"
        return
    assert caught.value.place == f"line 5, field '{field}'"
    assert "line 2" in caught.value.problem
    assert all(word in caught.value.problem for word in words)
    assert "--schema" in message


def test_a_conflict_between_inputs_names_both() -> None:
    decoder = JsonDecoder(["one", "two"], None, 0)
    decoder.observe(batch_of([b'{"a":"x"}']), 1, 6)
    with pytest.raises(InputError, match=r"two: line 7, field 'a': .* in line 3 of one") as caught:
        decoder.observe(batch_of([b"{}", b"{}", b'{"a":2}']), 0, 0)
    assert caught.value.name == "two"


def test_a_conflict_within_one_record() -> None:
    error = failure([b"{}", b'{"a":[1,"x"]}'])
    assert error.place == "line 2, field 'a[]'"
    assert "number" in error.problem
    assert "string" in error.problem


@pytest.mark.parametrize(
    ("text", "other", "exact"),
    [
        (b"9007199254740992", b"0.5", True),
        (b"9007199254740993", b"0.5", False),
        (b"-9007199254740993", b"0.5", False),
        (b"-9007199254740994", b"0.5", True),
        (b"-9223372036854775808", b"0.5", True),
        (b"9223372036854775807", b"0.5", False),
        (b"9007199254740993.0", b"0.5", True),
        (b"100000000000000000000", b"0.5", True),
        (b"100000000000000000001", b"0.5", False),
        (b"18446744073709551615", b"1", False),
        (b"1e20", b"1", True),
        (b"9007199254740993", b"1", True),
        (b"9223372036854775807", b"1", True),
    ],
)
@pytest.mark.parametrize(
    "form", [b'{"a":%s}', b'{"a":[{"b": %s }]}', b'{"i":9007199254740993,"a":[[],[1,%s]]}']
)
@pytest.mark.parametrize("together", [True, False])
def test_integers_never_lose_digits(
    text: bytes, other: bytes, exact: bool, form: bytes, together: bool
) -> None:
    for lines in ([form % text, b"{}", form % other], [form % other, b"{}", form % text]):
        decoder = JsonDecoder(["in.jsonl"], None, 0)
        spans = [(0, 3)] if together else [(0, 1), (1, 3)]
        if exact:
            observe_spans(decoder, lines, spans)
            decoder.finish()
            found = decode_with(decoder, lines).to_pylist()
            assert [as_plain(row) for row in found if row["a"]] == [
                json.loads(line) for line in lines if line != b"{}"
            ]
        else:
            with pytest.raises(InputError, match="float64 cannot hold exactly") as caught:
                observe_spans(decoder, lines, spans)
            assert caught.value.remedy
            assert "--schema" in caught.value.remedy
            assert f"line {lines.index(form % text) + 1}" in str(caught.value)


def as_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def test_too_many_different_names_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 50)
    error = failure([json.dumps({f"key {row}": row}).encode() for row in range(60)])
    assert "number of different fields" in error.problem


def test_texts_that_look_like_times_stay_as_they_are() -> None:
    table = decode([b'{"a":"2020-01-01","b":["2020-01-01T00:00:00Z"]}', b'{"a":"2020-01-01 00:00:00"}'])
    assert table.to_pylist() == [
        {"a": "2020-01-01", "b": ["2020-01-01T00:00:00Z"]},
        {"a": "2020-01-01 00:00:00", "b": None},
    ]


def test_no_records_make_an_empty_schema() -> None:
    decoder = JsonDecoder([], None, 0)
    assert decoder.finish() == pa.schema([])
    assert decoder.decode(batch_of([])).num_rows == 0
    assert decode([b"{}", b"{}"]).num_rows == 2


# Many pieces and many threads.


def test_pieces_of_many_sizes_make_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"a": row, "b": "x" * (row % 300), "c": [row] * (row % 4)} for row in range(300)]
    lines = [json.dumps(record).encode() for record in records]
    whole = decode(lines)
    assert whole.to_pylist() == records
    for size in (1, 100, 5_000):
        monkeypatch.setattr(line_checks, "PIECE_BYTES", size)
        monkeypatch.setattr(line_checks, "KEPT_PIECE_BYTES", size)
        assert decode(lines).equals(whole)
    monkeypatch.setattr(line_checks, "_PIECE_CELLS", 100)
    assert decode(lines).equals(whole)


def test_pieces_that_are_kept_hold_few_enough_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_checks, "_PIECE_CELLS", 400)
    shapes = [{}, {"a": [None] * 30}, {"a": [{}] * 30}, {"a": [{"b": 1, "c": 2}]}, {"a": []}]
    lines = [json.dumps(shapes[row * row % 5]).encode() for row in range(200)]
    fields = 4  # a, its elements, b and c
    records = line_checks.as_lines(batch_of(lines).column(0))
    pieces = list(line_checks.cut_kept_pieces(records, fields))
    assert pa.concat_arrays(pieces).equals(records)
    assert max(len(piece) for piece in pieces) > 1
    decoder = finished(lines)
    for piece in pieces:
        batch = pa.record_batch([piece.cast(pa.large_binary())], ["record"])
        elements = decoder.decode(batch).column("a").values
        assert len(piece) == 1 or len(piece) + 3 * len(elements) <= 400


def test_threads_agree_with_one_thread() -> None:
    rng = random.Random(3)
    records = [
        {f"f{k}": rng.choice([None, k, k + 0.5]) for k in rng.sample(range(40), 5)} for _ in range(2000)
    ]
    lines = [json.dumps(record).encode() for record in records]
    expected = decode(lines)
    for _ in range(3):
        decoder = JsonDecoder(["in.jsonl"], None, 0)
        starts = list(range(0, len(lines), 37))
        rng.shuffle(starts)
        cuts = [batch_of(lines[start : start + 37]) for start in starts]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(decoder.observe, cuts, [0] * len(cuts), starts))
        assert decoder.finish() == expected.schema
        assert decode_with(decoder, lines).equals(expected)


# A schema given.

GIVEN = pa.schema(
    [
        ("text", pa.string()),
        ("large", pa.large_string()),
        ("half", pa.float16()),
        ("single", pa.float32()),
        ("small", pa.int8()),
        ("huge", pa.uint64()),
        ("price", pa.decimal128(20, 2)),
        ("pair", pa.list_(pa.float32(), 2)),
        ("when", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ns")),
        ("day", pa.date32()),
        ("midnight", pa.date64()),
        ("hour", pa.time64("us")),
        ("span", pa.duration("s")),
        ("raw", pa.binary()),
        (
            "nested",
            pa.large_list(
                pa.struct([("raw", pa.large_binary()), ("none", pa.null()), ("text", pa.string())])
            ),
        ),
    ]
)
RECORD = {
    "text": "x",
    "large": "y",
    "half": 0.5,
    "single": 0.1,
    "small": -128,
    "huge": 2**64 - 1,
    "pair": [1, 2.5],
    "when": "2020-01-01T01:00:00.123456+01:00",
    "local": "1969-12-31T23:59:59.999999999",
    "day": "1600-02-29",
    "midnight": "2020-01-01",
    "hour": "23:59:59.5",
    "span": 7,
    "raw": "AP8=",
    "nested": [{"raw": "", "none": None}, None, {"text": "z"}],
}


def test_a_given_schema_decides_every_type() -> None:
    line = json.dumps(RECORD)[:-1].encode() + b',"price":123456789012345678.90}'
    table = decode([b"{}", line, b'{"nested":[],"pair":null}'], GIVEN)
    integers = table.select(["when", "local", "day", "midnight", "hour", "span"])
    assert [column[1].value for column in integers] == [
        1_577_836_800_123_456,
        -1,
        -135_081,
        1_577_836_800_000,
        86_399_500_000,
        7,
    ]
    others = table.select(
        ["text", "large", "half", "single", "small", "huge", "price", "pair", "raw", "nested"]
    ).to_pylist()
    assert others[0] == dict.fromkeys(others[0])
    assert others[1] == {
        "text": "x",
        "large": "y",
        "half": 0.5,
        "single": float(np.float32(0.1)),
        "small": -128,
        "huge": 2**64 - 1,
        "price": Decimal("123456789012345678.90"),
        "pair": [1.0, 2.5],
        "raw": b"\x00\xff",
        "nested": [
            {"raw": b"", "none": None, "text": None},
            None,
            {"raw": None, "none": None, "text": "z"},
        ],
    }
    assert others[2]["nested"] == []


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"other":1}', "other"),
        (b'{"nested":[{"other":1}]}', "nested[].other"),
        (b'{"text":[1]}', "text"),
        (b'{"text":{}}', "text"),
        (b'{"half":1e6}', "half"),
        (b'{"half":"1"}', "half"),
        (b'{"single":1e39}', "single"),
        (b'{"single":true}', "single"),
        (b'{"small":128}', "small"),
        (b'{"small":1.0}', "small"),
        (b'{"huge":-1}', "huge"),
        (b'{"huge":18446744073709551616}', "huge"),
        (b'{"price":1.255}', "price"),
        (b'{"price":"x"}', "price"),
        (b'{"pair":[1]}', "pair"),
        (b'{"pair":[1,NaN]}', "pair[]"),
        (b'{"pair":[1,2,3]}', "pair"),
        (b'{"when":"2020-01-01T00:00:00"}', "when"),
        (b'{"when":1577836800}', "when"),
        (b'{"local":"2020-01-01T00:00:00Z"}', "local"),
        (b'{"local":"2020-01-01T00:00:00.1234567890"}', "local"),
        (b'{"day":"2020-02-30"}', "day"),
        (b'{"day":18262}', "day"),
        (b'{"midnight":"2020-01-01T00:00:00"}', "midnight"),
        (b'{"hour":"24:00:00"}', "hour"),
        (b'{"span":"7"}', "span"),
        (b'{"span":7.5}', "span"),
        (b'{"raw":"AP9="}', "raw"),
        (b'{"raw":"AP8"}', "raw"),
        (b'{"nested":[{"raw":"?"}]}', "nested[].raw"),
        (b'{"nested":[{"none":1}]}', "nested[].none"),
        (b'{"nested":{}}', "nested"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(line: bytes, field: str) -> None:
    lines = [json.dumps(RECORD).encode()] * 3 + [line] + [b"{}"] * 3
    assert failure(lines, GIVEN).place == f"line 4, field '{field}'"


def test_messages_stay_short_and_on_one_line() -> None:
    schema = pa.schema([("day", pa.date32()), ("n", pa.int8())])
    for line in (json.dumps({"day": "1\n2" * 9000}), '{"n":' + "1" * 200 + "}"):
        error = failure([line.encode()], schema)
        assert "\n" not in str(error)
        assert len(str(error)) < 400


def test_numbers_and_booleans_become_the_text_they_were() -> None:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("n", pa.float64()),
            ("deep", pa.list_(pa.struct([('i"d', pa.large_string())]))),
        ]
    )
    lines = [
        b'{"id":"007","n":1}',
        b'{"n":2, "id" : 007.50 }'.replace(b"007", b"7"),
        b'{"id":-12345678901234567890123,"deep":[{"i\\"d":1e5},{"i\\"d":true},{}]}',
        b'{"id":"say \\"id\\":5","n":3}',
        b'{"id":null}',
    ]
    assert [(row["id"], row["deep"]) for row in decode(lines, schema).to_pylist()] == [
        ("007", None),
        ("7.50", None),
        ("-12345678901234567890123", [{'i"d': "1e5"}, {'i"d': "true"}, {'i"d': None}]),
        ('say "id":5', None),
        (None, None),
    ]
    assert failure([b'{"id":"x"}', b'{"id":01}'], schema).place == "line 2"


def test_only_the_named_key_is_taken_for_text() -> None:
    schema = pa.schema([("id", pa.string()), ('x"id', pa.int64()), ("id2", pa.int64())])
    found = decode([b'{"x\\"id":5,"id":6,"id2":7}'], schema).to_pylist()
    assert found == [{"id": "6", 'x"id': 5, "id2": 7}]


def test_a_field_that_must_not_be_null() -> None:
    child = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("a", child), pa.field("c", pa.string(), nullable=False)])
    assert decode([b'{"a":null,"c":"x"}', b'{"a":{"b":1},"c":""}'], schema).num_rows == 2
    assert failure([b'{"c":"x"}', b'{"a":{},"c":"x"}'], schema).place == "line 2, field 'a.b'"
    assert failure([b'{"c":"x"}', b'{"c":null}'], schema).place == "line 2, field 'c'"


def test_a_type_that_json_has_no_words_for_is_refused() -> None:
    with pytest.raises(ConversionError) as caught:
        JsonDecoder([], pa.schema([("a", pa.list_(pa.struct([("b", pa.month_day_nano_interval())])))]), 0)
    assert caught.value.field == "a[].b"


# Files that others wrote.


@pytest.mark.skipif(not (CORPORA / "json").is_dir(), reason=f"no JSONTestSuite in {CORPORA}")
@pytest.mark.parametrize("form", [b'{"value":%s}', b"%s"], ids=["as a value", "as a line"])
def test_the_json_test_suite(form: bytes) -> None:
    files = sorted((CORPORA / "json/JSONTestSuite/test_parsing").glob("*.json"))
    assert files
    for path in files:
        line = form % path.read_bytes().replace(b"\n", b"\r")
        if is_sound(line):
            assert not path.name.startswith("n_"), path.name
            value = json.loads(line)
            assert repr(decode([line]).to_pylist()) == repr([as_typed(value, type_of(value))]), path.name
        else:
            place = failure([line]).place
            assert place is not None, path.name
            assert place.partition(",")[0] == "line 1", path.name


@pytest.mark.skipif(not (CORPORA / "jsonl").is_dir(), reason=f"no JSONL files in {CORPORA}")
def test_real_files() -> None:
    files = sorted((CORPORA / "jsonl").rglob("*.jsonl"))
    assert files
    for path in files:
        lines = path.read_bytes().splitlines()[:2000]
        records = [json.loads(line) for line in lines]
        kind = pa.struct([])
        for record in records:
            kind = merged(kind, type_of(record))
        assert decode(lines).to_pylist() == [as_typed(record, kind) for record in records]
