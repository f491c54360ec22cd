"""JSON lines to table form, against the same done record by record with `json`."""

from __future__ import annotations

import json
import random
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
from tests.support.effort import examples
from tests.support.formats.json_decoding import batch_of, decode, decode_with, merge_spans, observe_spans
from tests.support.formats.json_oracle import DoesNotFitError, as_typed, merged, type_of
from tests.support.formats.json_records import ANY_RECORDS, RECORDS_OF_ONE_TYPE, written


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
