"""Bad records as lines of JSON: input, line number, reason, and text or bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.jsonl.encoding import encode_lines
from recshuf.formats.values.utf8 import find_invalid
from recshuf.records.arrays.arrow_views import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_PIECE_BYTES = 4 << 20


def encode_records(
    name: str, lines: NDArray[np.int64], reasons: Sequence[str], records: pa.Array, ending_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield JSON lines in pieces of about 4 MiB, each with the line number of its first record.

    Parameters
    ----------
    name
        Name of the input.
    lines
        Line number of each record, from 1.
    reasons
        Reason for each record.
    records
        A large_binary array.
    ending_bytes
        Length of the separator at the end of each record; it is left out.
    """
    texts = pc.binary_slice(records, 0, -ending_bytes)
    for start, stop in _cut(texts):
        piece = texts.slice(start, stop - start)
        yield int(lines[start]), _encode(name, lines[start:stop], reasons[start:stop], piece)


def _cut(records: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield bounds of pieces of about `_PIECE_BYTES`."""
    ends = view_offsets(records)
    start = 0
    while start < len(records):
        stop = int(np.searchsorted(ends, ends[start] + _PIECE_BYTES, side="right")) - 1
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)


def _encode(name: str, lines: NDArray[np.int64], reasons: Sequence[str], records: pa.Array) -> memoryview:
    """Return a JSON line for each record."""
    is_text = np.ones(len(records), np.bool_)
    is_text[find_invalid(records)] = False
    known = {"line": pa.array(lines), "reason": pa.array(reasons, pa.large_string())}
    groups = []
    for chosen, field, kind in (
        (np.flatnonzero(is_text), "record", pa.large_string()),
        (np.flatnonzero(~is_text), "record_base64", pa.large_binary()),
    ):
        index = pa.array(chosen)
        columns = {key: column.take(index) for key, column in known.items()}
        columns[field] = records.take(index).cast(kind)
        groups.append(encode_lines(pa.record_batch(columns), nan_as_null=False))
    order = np.argsort(np.concatenate([np.flatnonzero(is_text), np.flatnonzero(~is_text)]))
    made = pa.concat_arrays(groups).take(pa.array(order))
    whole = pc.binary_replace_slice(made, 0, 1, f'{{"input":{_quote(name)},'.encode())
    return view_bytes(whole).data


def _quote(name: str) -> str:
    """Return a name as a JSON string; bytes that are not UTF-8 are escaped."""
    text = json.dumps(name, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(name)
