"""Short ways to decode JSON lines, and to see that it fails."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats.jsonl.decoder import JsonDecoder


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
