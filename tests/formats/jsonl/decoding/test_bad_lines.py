"""JSON lines that are no records, set aside: exactly those, for reasons of their own, without looking at lines one by one."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl import inference, line_checks
from recshuf.formats.jsonl.decoder import JsonDecoder
from recshuf.formats.jsonl.line_checks import find_ungrammatical
from tests.support.effort import examples
from tests.support.formats.json_oracle import fit_together, is_sound
from tests.support.formats.json_records import BAD, batch_of, damaged_lines, decode_with

SCHEMA = pa.schema([("a", pa.int32()), ("t", pa.string()), ("d", pa.timestamp("s")), ("f", pa.float64())])
GOOD = [
    b'{"a":1,"t":"x","f":0.5}',
    b'{"t":"\xc3\xa9","a":-7,"s":{"n":[1,null]}}',
    b'{"f":1e300,"l":["",null]}',
    b" {} \t",
]
MISFITS = [
    b'{"a":3000000000}',
    b'{"a":"x"}',
    b'{"d":"soon"}',
    b'{"q":1}',
    b'{"q":null}',
    b'{"f":9007199254740993}',
]
FITTING = [
    b'{"a":1,"t":2.50,"f":0.5}',
    b'{"d":"2020-01-01T00:00:00","t":true}',
    b'{"t":"x"}',
    b'{"f":NaN}',
    b"{}",
]


def bad_line_filter(schema: pa.Schema | None = None) -> JsonDecoder:
    return JsonDecoder(["in.jsonl", "other.jsonl"], schema, sets_bad_aside=True)


def filter_lines(decoder: JsonDecoder, lines: list[bytes], first_row: int = 0) -> dict[int, str]:
    """Observe lines and return the reasons of the bad ones by their rows."""
    bad = decoder.observe(batch_of(lines), 0, first_row)
    if bad is None:
        return {}
    assert len(bad.index) == len(bad.reasons) > 0
    assert (bad.index[1:] > bad.index[:-1]).all()
    return {int(at) + first_row: reason for at, reason in zip(bad.index, bad.reasons, strict=True)}


@settings(max_examples=examples(150))
@given(st.lists(damaged_lines(), min_size=1, max_size=12))
@example([b'{"a":"x}', b'{","b":1}', b"{}{}"])
@example([b'{"a":9007199254740993}', b'{"a":1.5,"b":NaN}'])
@example([b'{"a":"x","b":NaN}', b'{"a":1}'])
@example([b'{"a":1}{"a":2}', b'{"a":'])
@example([b'{"a":1}{"a":', b"2}"])
@example([b'{"a":[{}', b"{}]}"])
@example([b"{}", b"null"])
@example([b"{} null {}"])
@example([b"{}\0{}"])
def test_exactly_the_lines_that_are_bad_by_themselves_are_set_aside(lines: list[bytes]) -> None:
    bad = [row for row, line in enumerate(lines) if not is_sound(line)]
    good = [line for line in lines if is_sound(line)]
    decoder = bad_line_filter()
    if not fit_together([b"{}", *good]):
        with pytest.raises(InputError, match=r", but an? .*--schema"):
            filter_lines(decoder, lines)
        return
    found = filter_lines(decoder, lines)
    assert list(found) == bad
    assert not any("\n" in reason for reason in found.values())
    without = JsonDecoder(["in.jsonl"], None)
    without.observe(batch_of(good), 0, 0)
    assert decoder.finish() == without.finish()
    assert decode_with(decoder, good).equals(decode_with(without, good))


@pytest.mark.parametrize(
    ("share", "schema"),
    [(0.3, SCHEMA), (0.9, None), pytest.param(0.01, None, marks=pytest.mark.slow)],
    ids=["some-given", "most", "few"],
)
def test_neither_verdict_nor_reason_depends_on_the_other_lines(
    schema: pa.Schema | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_checks, "PIECE_BYTES", 1 << 11)
    chooser = random.Random(f"{share} {schema}")
    good, bad = GOOD, BAD
    if schema is not None:
        good, bad = FITTING, [line for line in [*BAD, *MISFITS] if line not in FITTING]
    lines = [chooser.choice(bad if chooser.random() < share else good) for _ in range(160)]
    alone = {line: filter_lines(bad_line_filter(schema), [line]).get(0) for line in set(lines)}
    assert {line for line, reason in alone.items() if reason} <= set(bad)
    assert not any(alone.get(line) for line in good)
    assert all(alone[line] for line in set(lines) - set(good))
    expected = {row: alone[line] for row, line in enumerate(lines) if alone[line]}
    assert filter_lines(bad_line_filter(schema), lines) == expected

    decoder, cuts = bad_line_filter(schema), list(range(0, len(lines), 40))
    chooser.shuffle(cuts)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda start: filter_lines(decoder, lines[start : start + 40], start), cuts)
    assert {row: reason for part in parts for row, reason in part.items()} == expected
    if schema is None:
        kept = [line for row, line in enumerate(lines) if row not in expected]
        without = JsonDecoder(["in.jsonl"], None)
        without.observe(batch_of(kept), 0, 0)
        assert decoder.finish() == without.finish()


def test_good_lines_that_do_not_fit_together_stay_an_error() -> None:
    for lines in (
        [b'{"a":1}', b'{"a":"x"}', b"{", b"{}"],
        [b'{"a":9007199254740993}', b'{"a":0.5}', b"{"],
        [b"{", b'{"a":0.5}', b'{"a":9007199254740993}'],
    ):
        for size in (len(lines), 1):
            with pytest.raises(InputError, match=r"line \d, field 'a': .*--schema"):
                filter_parts(lines, size)


def filter_parts(lines: list[bytes], size: int) -> None:
    decoder = bad_line_filter()
    for row in range(0, len(lines), size):
        filter_lines(decoder, lines[row : row + size], row)


def test_an_error_names_the_line_in_the_input_though_lines_before_it_were_left_out() -> None:
    decoder = bad_line_filter()
    with pytest.raises(InputError) as caught:
        filter_lines(decoder, [b"{", b"}", b'{"a":1}', b"", b'{"a":"x"}'], 100)
    assert caught.value.place == "line 105, field 'a'"
    assert "in line 103" in caught.value.problem


def test_too_many_fields_in_one_line_make_it_bad_in_all_lines_they_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 50)
    wide = json.dumps({f"f{n}": n for n in range(60)}).encode()
    decoder = bad_line_filter()
    assert list(filter_lines(decoder, [b'{"a":1}', wide, b'{"a":2}'])) == [1]
    assert decoder.finish().names == ["a"]
    with pytest.raises(InputError, match="--schema"):
        filter_lines(bad_line_filter(), [f'{{"f{n}":1}}'.encode() for n in range(60)])


@pytest.mark.parametrize(
    ("bad", "every"),
    [(b"{'a':1}", 500), (b'{"a":NaN}', 2), (b'{"t":"\xff"}', 2), (b"{}{}", 500), (b'{"a":1,"a":2}', 2)],
)
def test_good_lines_are_not_parsed_one_by_one_nor_those_behind_each_bad_one(
    bad: bytes, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    read = pj.read_json

    def count(source: pa.BufferReader, **options: object) -> pa.Table:
        parsed.append(source.size())
        return read(source, **options)

    lines = [bad if row % every == 1 else b'{"a":1,"t":"x"}' for row in range(2000)]
    monkeypatch.setattr("pyarrow.json.read_json", count)
    assert list(filter_lines(bad_line_filter(), lines)) == list(range(1, 2000, every))
    assert sum(parsed) < 20 * sum(map(len, lines))
    assert len(parsed) < 20 or bad == b'{"a":1,"a":2}', "repeated names are found by parsing alone"


TOKENS = [
    "{", "}", "[", "]", ",", ":", '"a"', '"b"', "1", "-0.5e+3", "01", "1.", "true", "nul", "NaN", "-Inf", " ", "\t",
    '"\\n"', '"\\u12aF"', '"\\u12g"', '"}{"', '"\\', "é", "\x01", "\x02", '"\x02"', "\x7f", "'", "{}", '"a":1', "\\",
]  # fmt: skip


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.lists(st.sampled_from(TOKENS), max_size=9).map(lambda tokens: "{" + "".join(tokens) + "}\n"),
        min_size=1,
        max_size=8,
    )
)
def test_the_grammar_refuses_what_the_parser_refuses(lines: list[str]) -> None:
    wrong = set(find_ungrammatical(pa.array(lines, pa.large_string())).tolist())
    for row, line in enumerate(lines):
        try:
            is_one = pj.read_json(pa.BufferReader(line.encode())).num_rows == 1
            means_nothing = False
        except pa.ArrowInvalid as error:
            is_one, means_nothing = False, " changed from " in str(error) or " twice " in str(error)
        assert (row in wrong) == (not is_one) or (means_nothing and row not in wrong)
