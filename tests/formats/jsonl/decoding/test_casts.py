"""A given schema decides every type, and what does not fit it is named."""

import json
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.casts import cast_column
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.effort import examples
from tests.support.formats.json_records import decode, failure

INNER = pa.struct([("raw", pa.large_binary()), ("none", pa.null()), ("text", pa.string())])
GIVEN: dict[str, tuple[pa.DataType, str, Any]] = {
    "text": (pa.string(), '"x"', "x"),
    "large": (pa.large_string(), '"y"', "y"),
    "half": (pa.float16(), "0.5", 0.5),
    "single": (pa.float32(), "0.1", float(np.float32(0.1))),
    "small": (pa.int8(), "-128", -128),
    "huge": (pa.uint64(), "18446744073709551615", 2**64 - 1),
    "price": (pa.decimal128(20, 2), "123456789012345678.90", Decimal("123456789012345678.90")),
    "cents": (pa.decimal128(5, 2), "999", 999),
    "digits": (pa.decimal128(38, 37), "-9", -9),
    "wide": (pa.decimal256(60, 10), f"{10**49}", 10**49),
    "amounts": (pa.list_(pa.decimal128(5, 2)), "[null,-999]", [None, -999]),
    "pair": (pa.list_(pa.float32(), 2), "[1,2.5]", [1.0, 2.5]),
    "when": (pa.timestamp("us", "UTC"), '"2020-01-01T01:00:00.123456+01:00"', 1_577_836_800_123_456),
    "local": (pa.timestamp("ns"), '"1969-12-31T23:59:59.999999999"', -1),
    "day": (pa.date32(), '"1600-02-29"', -135_081),
    "midnight": (pa.date64(), '"2020-01-01"', 1_577_836_800_000),
    "hour": (pa.time64("us"), '"23:59:59.5"', 86_399_500_000),
    "span": (pa.duration("s"), "7", 7),
    "raw": (pa.binary(), '"AP8="', b"\x00\xff"),
    "nested": (
        pa.large_list(INNER),
        '[{"raw":"","none":null},null,{"text":"z"}]',
        [{"raw": b"", "none": None, "text": None}, None, {"raw": None, "none": None, "text": "z"}],
    ),
}
"""Type, JSON and value of each field; the value of a time is an integer of its unit."""
SCHEMA = pa.schema([(name, kind) for name, (kind, _, _) in GIVEN.items()])
LINE = "{" + ",".join(f'"{name}":{text}' for name, (_, text, _) in GIVEN.items()) + "}"


def test_a_given_schema_decides_every_type() -> None:
    table = decode([b"{}", LINE.encode(), b'{"nested":[],"pair":null}'], SCHEMA)
    for name, (kind, _, value) in GIVEN.items():
        missing, found, _ = table[name]
        assert not missing.is_valid
        assert (found.value if pt.is_temporal(kind) else found.as_py()) == value, name
    assert (table["nested"][2].as_py(), table["pair"][2].as_py()) == ([], None)


MISFITS = {
    "other": ["1"],
    "text": ["[1]", "{}"],
    "half": ["1e6", '"1"'],
    "single": ["1e39", "true"],
    "small": ["128", "1.0"],
    "huge": ["-1", "18446744073709551616"],
    "price": ["1.255", '"x"'],
    "cents": ["1000"],
    "digits": ["10", "69"],  # the second takes more than 128 bits
    "wide": [f"{10**50}"],
    "amounts[]": ["[1,1000]"],
    "pair": ["[1]", "[1,2,3]"],
    "pair[]": ["[1,-1e39]"],
    "when": ['"2020-01-01T00:00:00"', "1577836800"],
    "local": ['"2020-01-01T00:00:00Z"', '"2020-01-01T00:00:00.1234567890"'],
    "day": ['"2020-02-30"', "18262"],
    "midnight": ['"2020-01-01T00:00:00"'],
    "hour": ['"24:00:00"'],
    "span": ['"7"', "7.5"],
    "raw": ['"AP9="', '"AP8"'],
    "nested": ["{}"],
    "nested[].other": ['[{"other":1}]'],
    "nested[].raw": ['[{"raw":"?"}]'],
    "nested[].none": ['[{"none":1}]'],
}


def test_what_does_not_fit_the_schema_is_named() -> None:
    for field, texts in MISFITS.items():
        for text in texts:
            line = f'{{"{field.partition("[")[0]}":{text}}}'
            lines = [LINE.encode()] * 3 + [line.encode()] + [b"{}"] * 3
            assert failure(lines, SCHEMA).place == f"line 4, field '{field}'", text


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


def test_below_null_lists_of_a_fixed_size_is_nothing() -> None:
    """Arrow's cast puts the first values of a block there, or reads a second offset of texts that are none: here a length."""
    kind = pa.list_(pa.int64(), 2)
    lists = pa.array([None, [3, None], None], pa.list_(pa.int64()))
    cast = cast_column(lists, kind, 3, ("a",))
    assert cast.to_pylist() == [None, [3, None], None]
    assert cast.values.to_pylist() == [None, None, 3, None, None, None]
    ends = pa.py_buffer(np.array([0, 1 << 50]))
    texts = pa.Array.from_buffers(pa.large_string(), 0, [None, ends, pa.py_buffer(b"")])
    nothing, starts = pa.py_buffer(bytes(1)), pa.py_buffer(bytes(4 * 4))
    lists = pa.Array.from_buffers(pa.list_(pa.large_string()), 3, [nothing, starts], children=[texts])
    kind = pa.list_(pa.large_string(), 2)
    assert cast_column(lists, kind, 3, ("a",)).equals(pa.nulls(3, kind))


def test_null_lists_of_a_fixed_size_may_have_required_items() -> None:
    """Also within others, which Arrow does not cast then."""
    inner = pa.list_(pa.field("item", pa.int8(), nullable=False), 2)
    rows = [[[1, 2], None], [None, [3, 4]]]
    lines = [json.dumps({"a": row}).encode() + b"\n" for row in rows]
    for kind in (pa.list_(inner, 2), pa.list_(inner)):
        table = decode(lines, pa.schema({"a": kind}))
        assert table["a"].to_pylist() == rows


# Floats of a given type: no whole number is altered, at any depth

WIDTHS = {16: np.float16, 32: np.float32, 64: np.float64}
KINDS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
FORMS = {
    "scalar": lambda number: number,
    "list": lambda number: [0.5, number],
    "nested": lambda number: [{"b": 3}, {"b": number, "c": 9007199254740993}],
}


def type_of(form: str, kind: pa.DataType) -> pa.DataType:
    nested = pa.list_(pa.struct([("b", kind), ("c", pa.int64())]))
    return {"scalar": kind, "list": pa.list_(kind), "nested": nested}[form]


def is_held(number: int, bits: int) -> bool:
    """Tell whether a float of this width is the same whole number."""
    with np.errstate(over="ignore"):
        return float(WIDTHS[bits](number)) == number


@settings(max_examples=examples(100))
@given(
    st.sampled_from(sorted(WIDTHS)),
    st.sampled_from(sorted(FORMS)),
    st.lists(st.integers(-(10**40), 10**40) | st.integers(0, 70).map(lambda n: 2**n + 1), max_size=4),
)
@example(32, "scalar", [2**128 - 2**103 - 2**74])  # Arrow's largest float32, infinite in NumPy
def test_whole_numbers_are_held_or_refused(bits: int, form: str, numbers: list[int]) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", type_of(form, KINDS[bits]))])
    records: list[dict[str, Any]] = [{"id": 2**60 + 1, "a": FORMS[form](number)} for number in (0, *numbers)]
    lines = [json.dumps(record).encode() for record in records]
    wrong = [index for index, number in enumerate((0, *numbers)) if not is_held(number, bits)]
    if not wrong:
        found = [row["a"] for row in decode(lines, schema).to_pylist()]
        assert json.loads(json.dumps(found), parse_float=float) == [
            [{"c": None, **one} for one in record["a"]] if form == "nested" else record["a"]
            for record in records
        ]
    else:
        error = failure(lines, schema)
        path = {"scalar": "a", "list": "a[]", "nested": "a[].b"}[form]
        assert str(error.place).endswith(f", field '{path}'")
        assert str(error.place).removeprefix("line ").partition(",")[0] in {str(index + 1) for index in wrong}


def test_numbers_with_a_point_or_an_exponent_are_rounded() -> None:
    schema = pa.schema([("a", pa.float32()), ("b", pa.float16())])
    lines = [b'{"a":16777217.0,"b":2049.0}', b'{"a":1.23456789e20,"b":2.049e3}', b'{"a":12345678.9,"b":0.1}']
    found = decode(lines, schema).to_pylist()
    assert [row["a"] for row in found] == [
        float(np.float32(one)) for one in (16777217, 1.23456789e20, 12345678.9)
    ]
    assert [row["b"] for row in found] == [float(np.float16(one)) for one in (2049, 2049, 0.1)]


def test_a_name_may_be_spelled_with_escapes() -> None:
    spellings = [
        ("a", r"\u0061"),
        ("a/b", r"a\/b"),
        ('"', r"\""),
        ("\n", r"\n"),
        ("é.*", r"\u00E9.*"),
        ("é.*", "é.*"),
    ]
    for (name, spelled), space in product(spellings, ["", " \t\r"]):
        line = f'{{"id":1,"{spelled}"{space}:{space}-16777217{space}}}'
        error = failure([line.encode()], pa.schema([("id", pa.int8()), (name, pa.float32())]))
        assert "-16777217, which float32 cannot hold exactly" in error.problem
