"""Lines of JSON: records drawn and the ways to write them, damaged lines, and short ways to decode them."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.formats.json_oracle import WHITESPACE

TEXTS = st.sampled_from(
    ["", "a", "2020-01-01", "2020-01-01T00:00:00Z", "1", 'é\u2028\x00"\\', '}],:\n{["', "null"]
)
TEXTS |= st.text(st.characters(codec="utf-8"), max_size=4) | st.text('\\"[]{},: \n\tx', max_size=8)
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


# JSON lines that are damaged: by hand, and drawn

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
    (b'{"a":1e-Inf}', "not valid JSON"),
    (b"{'a':1}", "not valid JSON"),
    (b'{"a":1,}', "not valid JSON"),
    (b'{"a":"\t"}', "not valid JSON"),
    (b'{"a":"\0"}', "not valid JSON"),
    (b'{"a":"\\ud800"}', "not valid JSON"),
    (b'{"\\udc00":1}', "not valid JSON"),
    (b'{"a":"\xff"}', "UTF-8"),
    (b'{"\xff":1}', "UTF-8"),
    (b'{"a":1e400}', "a number too large for float64"),
    (b'{"a":0e400}', "a zero with an exponent too large for float64"),
    (b'{"a":NaN}', "NaN"),
    (b'{"a":[{"b":-Infinity}]}', "infinite"),
    (b'{"a":1,"a":2}', "twice"),
    (b'{"a":{"b":1,"\\u0062":2}}', "twice"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
    (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deep"),
    (b'{"a":"\\"","b":' + b"[" * 9000 + b"]" * 9000 + b"}", "deep"),
]
"""Lines that are not one JSON object each, and what is said of them."""
BAD = [
    *(line for line, _ in WRONG),
    b'{"f":NaN,"g":-Infinity}',
    b'{"n":[1,"x"]}',
    b'{"n":[1,"x"],}',
    b'{"u":18446744073709551617}',
    b'{"u":[0.5,9007199254740993]}',
    b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
]
"""These, and objects whose values have no type."""
SEEDS = [
    b'{"a":1}',
    b'{"a":[1,{"b":null}],"c":"x\\u00e9"}',
    b'{"a":-1.5e3,"b":true}',
    b"{}",
    b'{"a":{"b":[[],[2]]}}',
]
BITS = [b" ", b"\r", b"\xef\xbb\xbf", *b"{ } [ ] {} }{ , : . 1 0 - e9 e999 null NaN /**/ \0 \xff".split()]
BITS += b'" "a":2 \\ \\ud800'.split()


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
        line = line[:at] + draw(st.sampled_from([b"", *BITS])) + line[at + gone :]
    return line


# Short ways to decode JSON lines, and to see that it fails


def batch_of(lines: list[bytes]) -> pa.RecordBatch:
    """Return a native batch, a slice of a longer one."""
    padded = [b"[\n", *(line + b"\n" for line in lines), b"]\n"]
    return pa.record_batch([pa.array(padded, pa.large_binary())], ["record"]).slice(1, len(lines))


def decode(lines: list[bytes], schema: pa.Schema | None = None) -> pa.RecordBatch:
    decoder = JsonDecoder(["in.jsonl"], schema)
    decoder.observe(batch_of(lines), 0, 0)
    decoder.finish()
    return decode_with(decoder, lines)


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


def observe_spans(decoder: JsonDecoder, lines: list[bytes], spans: list[tuple[int, int]]) -> None:
    for start, stop in spans:
        decoder.observe(batch_of(lines[start:stop]), 0, start)


def merge_spans(merged: JsonDecoder, lines: list[bytes], spans: list[tuple[int, int]]) -> None:
    """Let a decoder observe each span, and merge what they say as JSON."""
    for span in spans:
        one = JsonDecoder(["in.jsonl"], None)
        observe_spans(one, lines, [span])
        merged.merge(json.loads(json.dumps(one.state())))
