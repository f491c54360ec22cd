"""A given schema decides every type, and what does not fit it is named."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.formats.json_decoding import decode, failure

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


MISFITS = [
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
    (b'{"pair":[1,-1e39]}', "pair[]"),
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
]


def test_what_does_not_fit_the_schema_is_named() -> None:
    for line, field in MISFITS:
        lines = [json.dumps(RECORD).encode()] * 3 + [line] + [b"{}"] * 3
        assert failure(lines, GIVEN).place == f"line 4, field '{field}'"


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
        b'{"id":-12345678901234567890123,"deep":[{"i\\"d":1e5},{"i\\"d":-1.5E+10},{"i\\"d":true},{}]}',
        b'{"id":"say \\"id\\":5","n":3}',
        b'{"id":null}',
    ]
    assert [(row["id"], row["deep"]) for row in decode(lines, schema).to_pylist()] == [
        ("007", None),
        ("7.50", None),
        ("-12345678901234567890123", [{'i"d': value} for value in ("1e5", "-1.5E+10", "true", None)]),
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
    for outer in (pa.list_, pa.large_list):
        listed = pa.schema([("a", outer(pa.field("item", pa.int64(), nullable=False)))])
        assert decode([b'{"a":[1]}', b'{"a":[]}', b"{}"], listed).num_rows == 3
        assert failure([b'{"a":[1]}', b'{"a":[2,null]}'], listed).place == "line 2, field 'a[]'"


def test_a_type_that_json_has_no_words_for_is_refused() -> None:
    with pytest.raises(ConversionError) as caught:
        JsonDecoder([], pa.schema([("a", pa.list_(pa.struct([("b", pa.month_day_nano_interval())])))]))
    assert caught.value.field == "a[].b"


def test_lists_of_nothing_but_nulls_keep_their_lengths() -> None:
    for outer, inner in product([pa.list_, pa.large_list], repeat=2):
        schema = pa.schema([("c", outer(inner(pa.null())))])
        table = decode([b'{"c":[[null,null]]}', b'{"c":[[],[null],null]}', b'{"c":null}'], schema)
        assert table["c"].to_pylist() == [[[None, None]], [[], [None], None], None]
