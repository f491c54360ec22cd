"""Types that are inferred: those that do not fit are named with both places, and numbers keep their digits."""

from __future__ import annotations

import json
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl import inference
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.effort import examples, some
from tests.support.formats.json_decoding import batch_of, decode, decode_with, failure, observe_spans
from tests.support.formats.json_records import ANY_RECORDS, RECORDS_OF_ONE_TYPE


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
def test_a_conflict_names_field_types_and_both_places(
    early: bytes, late: bytes, field: str, words: list[str]
) -> None:
    lines = [b"{}", early, b'{"a":null}', b"{}", late, b"{}"]
    for spans in ([(0, 6)], [(0, 3), (3, 6)], [(3, 6), (0, 3)]):
        decoder = JsonDecoder(["in.jsonl"], None)
        with pytest.raises(InputError) as caught:
            observe_spans(decoder, lines, spans)
        message = str(caught.value)
        if "9007199254740993" in message:  # seen as a float at once, so only its own place is known
            assert caught.value.place == "line 2, field 'a'"
            continue
        assert caught.value.place == f"line 5, field '{field}'"
        assert "line 2" in caught.value.problem
        assert all(word in caught.value.problem for word in words)
        assert "--schema" in message


LONG = b'{"a":9007199254740993}'
HOLDS_LONG = "an integer that float64 cannot hold exactly"


@pytest.mark.parametrize(
    ("place", "problem", "lines"),
    [
        (5, f"a float, but {HOLDS_LONG} in line 2", [b"{}", LONG, b'{"a":1}', b'{"a":2}', b'{"a":0.5}']),
        (5, f"{HOLDS_LONG}, but a float in line 3", [b"{}", b'{"a":1}', b'{"a":0.5}', b'{"a":2}', LONG]),
        (
            2,
            f"{HOLDS_LONG}, but a float in another line",
            [b"{}", LONG, b'{"a":1}', b'{"a":2}', b'{"a":2.0}'],
        ),
    ],
    ids=["float-last", "float-first", "whole-float"],
)
@pytest.mark.parametrize("merges", [False, True], ids=["read", "merged"])
def test_integers_and_floats_in_conflict_are_named_by_their_own_lines(
    lines: list[bytes], place: int, problem: str, merges: bool
) -> None:
    """Integers between them are in no conflict; those among floats are not told from floats like 2.0."""
    ways = [[(0, 2), (2, 5)]] if lines[1] == LONG else [[(3, 5), (0, 3)]]
    if merges and lines[1] != LONG:
        ways.append([(0, 2), (2, 3), (3, 5)])
    for spans in ways:
        decoder = JsonDecoder(["in.jsonl"], None)
        with pytest.raises(InputError) as caught:
            (merge_all if merges else observe_spans)(decoder, lines, spans)
        assert caught.value.place == f"line {place}, field 'a'"
        assert caught.value.problem == f"holds {problem}"


@pytest.mark.parametrize("exact", [True, False])
def test_integers_never_lose_digits(exact: bool) -> None:
    texts = {
        True: [
            *(b"9007199254740992 -9007199254740994 -9223372036854775808 9007199254740993.0".split()),
            *(b"100000000000000000000 1e20".split()),
        ],
        False: [
            *(b"9007199254740993 -9007199254740993 9223372036854775807".split()),
            *(b"100000000000000000001 18446744073709551615".split()),
        ],
    }  # fmt: skip
    forms = [b'{"a":%s}', b'{"a":[{"b": %s }]}', b'{"i":9007199254740993,"a":[[],[1,%s]]}']
    cuts = ([(0, 3)], [(0, 1), (1, 3)], [(1, 3), (0, 1)])
    ways = [observe_spans, merge_all]
    cases = product(texts[exact], forms, [False, True], cuts, ways)
    for text, form, backwards, spans, observe in some(cases, 5):
        lines = [form % b"0.5", b"{}", form % text][:: -1 if backwards else 1]
        decoder = JsonDecoder(["in.jsonl"], None)
        if exact:
            observe(decoder, lines, spans)
            assert_read(decoder, lines)
        else:
            with pytest.raises(InputError, match="float64 cannot hold exactly") as caught:
                observe(decoder, lines, spans)
            assert "--schema" in str(caught.value.remedy)
            assert f"line {lines.index(form % text) + 1}" in str(caught.value)


def assert_read(decoder: JsonDecoder, lines: list[bytes]) -> None:
    decoder.finish()
    found = [as_plain(row) for row in decode_with(decoder, lines).to_pylist()]
    assert [row for row in found if row] == [json.loads(line) for line in lines if line != b"{}"]


def as_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def test_too_many_different_names_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 50)
    error = failure([json.dumps({f"key {row}": row}).encode() for row in range(60)])
    assert "number of different fields" in error.problem


# Several decoders, each of some records


@settings(max_examples=examples(120))
@given(RECORDS_OF_ONE_TYPE | ANY_RECORDS, st.data())
def test_decoders_of_some_records_merge_to_the_one_of_all(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    lines = [json.dumps(record).encode() for record in records]
    edges = sorted({0, len(lines), *data.draw(st.sets(st.integers(0, len(lines)), max_size=3))})
    spans = data.draw(st.permutations([*pairwise(edges)]))
    merged = JsonDecoder(["in.jsonl"], None)
    try:
        whole = decode(lines)
    except InputError:
        with pytest.raises(InputError):
            merge_all(merged, lines, spans)
        return
    merge_all(merged, lines, spans)
    assert merged.finish() == whole.schema
    assert decode_with(merged, lines).equals(whole)


def merge_all(merged: JsonDecoder, lines: list[bytes], spans: list[tuple[int, int]]) -> None:
    """Let a decoder observe each span, and merge what they say as JSON."""
    for span in spans:
        one = JsonDecoder(["in.jsonl"], None)
        observe_spans(one, lines, [span])
        merged.merge(json.loads(json.dumps(one.state())))


def test_decoders_that_together_have_too_many_fields_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 4)
    one, other = (JsonDecoder(["one"], None) for _ in range(2))
    one.observe(batch_of([b'{"a":1,"b":1}']), 0, 0)
    other.observe(batch_of([b'{"c":1,"d":1}']), 0, 1)
    with pytest.raises(InputError, match="one: line 2: brings the number of different fields above 4"):
        one.merge(other.state())
