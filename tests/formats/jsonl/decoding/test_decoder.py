"""JSON lines to table form, against the same done record by record with `json`."""

import json
import random
import tracemalloc
from functools import reduce
from itertools import pairwise, permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl import line_checks
from recshuf.formats.jsonl.decoder import JsonDecoder
from recshuf.formats.jsonl.line_checks import as_lines, check_lines
from tests.support.effort import examples
from tests.support.formats.json_oracle import DoesNotFitError, as_typed, merged, type_of
from tests.support.formats.json_records import (
    ANY_RECORDS,
    RECORDS_OF_ONE_TYPE,
    WRONG,
    batch_of,
    decode,
    decode_with,
    failure,
    merge_spans,
    observe_spans,
    written,
)


@settings(max_examples=examples(160), deadline=None)
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
    shuffled = list(range(len(lines)))
    random.Random(7).shuffle(shuffled)
    for observe in (observe_spans, merge_spans):
        decoder = JsonDecoder(["in.jsonl"], None)
        try:
            expected = reduce(merged, map(type_of, records), pa.struct([]))
        except DoesNotFitError:
            with pytest.raises(InputError, match=r"line [0-9]+, field"):
                observe(decoder, lines, order)
            continue
        observe(decoder, lines, order)
        assert decoder.schema is None
        assert decoder.finish() == pa.schema(list(expected))
        found = decode_with(decoder, [lines[row] for row in shuffled]).to_pylist()
        assert repr(found) == repr([as_typed(records[row], expected) for row in shuffled])


# Many pieces and many threads.


def test_pieces_of_many_sizes_make_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are no options, and only large data would show pieces of all of them."""
    records = [{"a": row, "b": "x" * row, "c": [row] * (row % 4)} for row in range(0, 300, 3)]
    lines = [json.dumps(record).encode() for record in records]
    whole = decode(lines)
    assert whole.to_pylist() == records
    for size in (1, 100, 5_000):
        monkeypatch.setattr(line_checks, "PIECE_BYTES", size)
        monkeypatch.setattr(line_checks, "KEPT_PIECE_BYTES", size)
        assert decode(lines).equals(whole)
    monkeypatch.setattr(line_checks, "_PIECE_CELLS", 100)
    assert decode(lines).equals(whole)


def test_fields_are_in_the_order_of_the_input_in_whatever_order_lines_are_observed() -> None:
    lines = {0: b'{"c":1}', 5: b'{"b":1,"a":1}', 10: b'{"a":1}', 20: b'{"b":1}'}
    for order in permutations(lines):
        decoder = JsonDecoder(["in.jsonl"], None)
        for row in order:
            decoder.observe(batch_of([lines[row]]), 0, row)
        assert decoder.finish().names == ["c", "b", "a"], order


@pytest.mark.parametrize("schema", [None, pa.schema([("z", pa.int64())])], ids=["inferred", "given"])
def test_what_is_wrong_with_a_line_is_said(schema: pa.Schema | None) -> None:
    for line, problem in WRONG:
        error = failure([b'{"z":1}'] * 5 + [line] + [b'{"z":2}'] * 5, schema)
        assert str(error.place).partition(",")[0] == "line 6", line[:30]
        assert schema is not None or problem in error.problem
        assert len(str(error)) < 300


def test_a_number_above_those_of_float64_names_its_field_and_is_kept_as_text() -> None:
    nested = pa.struct([("b", pa.struct([("c", pa.string())]))])
    listed = pa.list_(pa.struct([("c", pa.bool_()), ("d", pa.string())]))
    for line, field, kind in (
        (b'{"z":1,"a":1e400}', "a", pa.string()),
        (b'{"b":1e9,"a":[{"c":true,"d":-1e999}]}', "a[].d", listed),
        (b'{"a":{"b":{"c":1e999}}}', "a.b.c", nested),
    ):
        error = failure([b'{"z":1}', line])
        assert error.place == f"line 2, field {field!r}"
        assert error.remedy == "give its field the type string with --schema"
        text = json.loads(line, parse_float=str, parse_int=str)
        schema = pa.schema([(name, kind if name == "a" else pa.string()) for name in text])
        assert decode([line], schema).to_pylist() == [text]


def test_a_field_that_a_schema_lacks_has_a_remedy_for_comparisons_too() -> None:
    error = failure([b'{"z":1,"a":2}'], pa.schema([("z", pa.int64())]))
    assert error.place == "line 1, field 'a'"
    assert "schema" in str(error.remedy)
    assert "verify" in str(error.remedy)


def test_depth_is_counted_outside_of_texts() -> None:
    text = json.dumps({"a": '[{"' * 5000, "b": [[]] * 5000}).encode()
    assert decode([text]).num_rows == 1
    nested = b'{"a":' + b"[" * 127 + b"]" * 127 + b"}"
    assert decode([nested]).num_rows == 1


def test_a_long_line_among_short_ones_takes_little_memory_beside_them() -> None:
    lines = pa.array([b'{"a":1}\n'] * 10**6 + [b'{"a":"' + b"x" * 5000 + b'"}\n'], pa.large_binary())
    tracemalloc.start()
    check_lines(as_lines(lines))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * lines.nbytes, peak
