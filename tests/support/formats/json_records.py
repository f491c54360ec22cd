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


# JSON lines that are damaged: by hand, and drawn

BAD = [
    b"",
    b"[]",
    b"\xff",
    b'{"t":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"a":1',
    b"{}{}",
    b'{"a":1}}',
    b"{'a':1}",
    b'{"a":01}',
    b'{"a":1,"a":2}',
    b'{"a":1,"zz":1e999}',
    b'{"f":NaN}',
    b'{"f":NaN,"g":-Infinity}',
    b'{"b":1,"t":"\\ud800"}',
    b'{"n":[1,"x"]}',
    b'{"n":[1,"x"],}',
    b'{"u":18446744073709551617}',
    b'{"u":[0.5,9007199254740993]}',
    b'{"x":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"c":"\x01"}',
]
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
