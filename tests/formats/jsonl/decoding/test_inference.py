"""Types that are inferred: those that do not fit are named with both places, and numbers keep their digits."""

import json
from itertools import product

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats.jsonl import inference
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.effort import some
from tests.support.formats.json_oracle import as_typed
from tests.support.formats.json_records import batch_of, decode_with, merge_spans, observe_spans

CONFLICTS = [
    (b'{"a":"x"}', b'{"a":1}', "a", ["a number", "a string"]),
    (b'{"a":1.5}', b'{"a":true}', "a", ["a boolean", "a number"]),
    (b'{"a":{}}', b'{"a":[]}', "a", ["an array", "an object"]),
    (b'{"a":{"b":[1]}}', b'{"a":{"b":[{}]}}', "a.b[]", ["an object", "a number"]),
    (b'{"a":[{"b":"2020-01-01"}]}', b'{"a":[{"b":[]}]}', "a[].b", ["an array", "a string"]),
]


def test_a_conflict_names_field_types_and_both_places() -> None:
    for (early, late, field, words), spans in product(
        CONFLICTS, ([(0, 6)], [(0, 3), (3, 6)], [(3, 6), (0, 3)])
    ):
        lines = [b"{}", early, b'{"a":null}', b"{}", late, b"{}"]
        with pytest.raises(InputError) as caught:
            observe_spans(JsonDecoder(["in.jsonl"], None), lines, spans)
        assert caught.value.place == f"line 5, field '{field}'"
        assert "line 2" in caught.value.problem
        assert all(word in caught.value.problem for word in words)
        assert "--schema" in str(caught.value)


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
    if merges:
        ways.append([(2, 4), (0, 2), (4, 5)] if lines[1] == LONG else [(0, 2), (2, 3), (3, 5)])
    for spans in ways:
        decoder = JsonDecoder(["in.jsonl"], None)
        with pytest.raises(InputError) as caught:
            (merge_spans if merges else observe_spans)(decoder, lines, spans)
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
    ways = [observe_spans, merge_spans]
    cases = product(texts[exact], forms, [False, True], cuts, ways)
    for text, form, backwards, spans, observe in some(cases, 5):
        lines = [form % b"0.5", b"{}", form % text][:: -1 if backwards else 1]
        decoder = JsonDecoder(["in.jsonl"], None)
        if exact:
            observe(decoder, lines, spans)
            kind = pa.struct(list(decoder.finish()))
            found = decode_with(decoder, lines).to_pylist()
            assert found == [as_typed(json.loads(line), kind) for line in lines]
        else:
            with pytest.raises(InputError, match="float64 cannot hold exactly") as caught:
                observe(decoder, lines, spans)
            assert "--schema" in str(caught.value.remedy)
            assert f"line {lines.index(form % text) + 1}" in str(caught.value)


def test_decoders_that_together_have_too_many_fields_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 4)
    one, other = (JsonDecoder(["one"], None) for _ in range(2))
    one.observe(batch_of([b'{"a":1,"b":1}']), 0, 0)
    other.observe(batch_of([b'{"c":1,"d":1}']), 0, 1)
    with pytest.raises(InputError, match="one: line 2: brings the number of different fields above 4"):
        one.merge(other.state())
