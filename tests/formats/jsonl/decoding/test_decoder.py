"""JSON lines to table form, against the same done record by record with `json`."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.jsonl import line_checks
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.effort import examples
from tests.support.formats.json_decoding import batch_of, decode, decode_with, finished, observe_spans
from tests.support.formats.json_oracle import DoesNotFitError, as_typed, merged, type_of
from tests.support.formats.json_records import ANY_RECORDS, RECORDS_OF_ONE_TYPE, written


@settings(max_examples=examples(300), deadline=None)
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
    decoder = JsonDecoder(["in.jsonl"], None, 0)
    try:
        expected = pa.struct([])
        for record in records:
            expected = merged(expected, type_of(record))
    except DoesNotFitError:
        with pytest.raises(InputError, match=r"line [0-9]+, field"):
            observe_spans(decoder, lines, order)
        return
    observe_spans(decoder, lines, order)
    assert decoder.schema is None
    assert decoder.finish() == pa.schema(list(expected))
    shuffled = list(range(len(lines)))
    random.Random(7).shuffle(shuffled)
    found = decode_with(decoder, [lines[row] for row in shuffled]).to_pylist()
    assert repr(found) == repr([as_typed(records[row], expected) for row in shuffled])


@settings(max_examples=examples(100), deadline=None)
@given(RECORDS_OF_ONE_TYPE)
def test_the_schema_found_decodes_when_it_is_given(records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record).encode() for record in records]
    inferred = decode(lines)
    assert decode(lines, inferred.schema).equals(inferred)


# Many pieces and many threads.


def test_pieces_of_many_sizes_make_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"a": row, "b": "x" * (row % 300), "c": [row] * (row % 4)} for row in range(300)]
    lines = [json.dumps(record).encode() for record in records]
    whole = decode(lines)
    assert whole.to_pylist() == records
    for size in (1, 100, 5_000):
        monkeypatch.setattr(line_checks, "PIECE_BYTES", size)
        monkeypatch.setattr(line_checks, "KEPT_PIECE_BYTES", size)
        assert decode(lines).equals(whole)
    monkeypatch.setattr(line_checks, "_PIECE_CELLS", 100)
    assert decode(lines).equals(whole)


def test_pieces_that_are_kept_hold_few_enough_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_checks, "_PIECE_CELLS", 400)
    shapes = [{}, {"a": [None] * 30}, {"a": [{}] * 30}, {"a": [{"b": 1, "c": 2}]}, {"a": []}]
    lines = [json.dumps(shapes[row * row % 5]).encode() for row in range(200)]
    fields, listed = 4, 3  # a, its elements, b and c
    records = line_checks.as_lines(batch_of(lines).column(0))
    pieces = list(line_checks.cut_kept_pieces(records, fields, listed))
    assert pa.concat_arrays(pieces).equals(records)
    assert max(len(piece) for piece in pieces) > 1
    decoder = finished(lines)
    for piece in pieces:
        batch = pa.record_batch([piece.cast(pa.large_binary())], ["record"])
        elements = decoder.decode(batch).column("a").values
        assert len(piece) == 1 or len(piece) + 3 * len(elements) <= 400


def test_lines_of_many_fields_are_parsed_together() -> None:
    """The cost of a piece grows with its fields, so that one piece for each line would make it their square."""
    line = json.dumps({f"field{index}": index for index in range(5000)}).encode()
    records = line_checks.as_lines(batch_of([line] * 40).column(0))
    assert [len(piece) for _, piece in line_checks.cut_pieces(records)] == [16, 16, 8]
    assert [len(piece) for piece in line_checks.cut_kept_pieces(records, 5000, 0)] == [40]


def test_threads_agree_with_one_thread() -> None:
    rng = random.Random(3)
    records = [
        {f"f{k}": rng.choice([None, k, k + 0.5]) for k in rng.sample(range(40), 5)} for _ in range(2000)
    ]
    lines = [json.dumps(record).encode() for record in records]
    expected = decode(lines)
    for _ in range(3):
        decoder = JsonDecoder(["in.jsonl"], None, 0)
        starts = list(range(0, len(lines), 37))
        rng.shuffle(starts)
        cuts = [batch_of(lines[start : start + 37]) for start in starts]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(decoder.observe, cuts, [0] * len(cuts), starts))
        assert decoder.finish() == expected.schema
        assert decode_with(decoder, lines).equals(expected)
