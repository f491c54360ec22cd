"""Floats of a given type: no whole number is altered, at any depth; zeros are zeros whatever their exponents."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.formats.json_decoding import decode, failure

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


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,2})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from(["0e", "0.0E+", "-0e"]), NUMBERS, st.text()), min_size=1))
def test_zeros_with_any_exponent_are_zeros(rows: list[tuple[str, str, str]]) -> None:
    """Beside other numbers, and texts that look like zeros."""
    zeros = [f"{zero}{400 + number}" for number, (zero, _, _) in enumerate(rows)]
    texts = [f"{text}{zero}" for zero, (_, _, text) in zip(zeros, rows, strict=True)]
    lines = [
        f'{{"z":{zero},"n":[{number},1.5],"t":{json.dumps(text)}}}'
        for zero, text, (_, number, _) in zip(zeros, texts, rows, strict=True)
        if math.isfinite(float(number))
    ]
    expected = [json.loads(line, parse_int=float) for line in lines]
    found = decode([line.encode() for line in lines]).to_pylist()
    assert [repr(row) for row in found] == [repr(row) for row in expected]
