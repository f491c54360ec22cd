"""Further fields for lines of JSON, put in front of the last brace; no line is parsed, and no byte of it changes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.errors import InputError
from recshuf.formats.jsonl.encoding import encode_values
from recshuf.formats.lines.cutting import SCHEMA, view_records
from recshuf.interfaces import FieldAdder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.lines.cutting import Bytes, Positions

_SPACE = r"[ \t\r\n]*"
_BEGINS = rf"^{_SPACE}\{{"
_ENDS = rf"\}}{_SPACE}$"
_IS_EMPTY = rf"^{_SPACE}\{{{_SPACE}\}}"
_BEFORE_NOTHING = np.frombuffer(b"{ \t\r\n", np.uint8)
"""What may stand in front of the last brace of an object without fields."""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[0-9]+)'
_SPELLED = r"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])"
"""A small letter or a low line, written as an escape."""
_NOTHING, _COMMA = pa.scalar(b"", pa.large_binary()), pa.scalar(b",", pa.large_binary())


class JsonFieldAdder(FieldAdder):
    """Puts fields behind those of an object.

    Quotes inside of strings are escaped, so that a name in bare quotes and a colon behind them are a key, of the object or
    of one in it. A key with escaped letters may be any name.

    Parameters
    ----------
    inputs
        Names of the inputs for messages, by input index.
    names
        Of the fields: letters and low lines.
    """

    def __init__(self, inputs: Sequence[str], names: Sequence[str]) -> None:
        self._inputs = inputs
        words = "|".join(map(re.escape, names))
        # Apart from each other, since each begins in its own way, which is what a search looks for first.
        self._clashes = (rf'"(?:{words})"{_SPACE}:', rf'{_SPELLED}[^"]*"{_SPACE}:')
        self._added = (
            ",?"
            + ",".join(f'"{re.escape(name)}":{_VALUE}' for name in names)
            + f"({_ENDS.removesuffix('$')})$"
        )
        self._names = " and ".join(names)

    @property
    def schema(self) -> pa.Schema:
        """See `Decoder`."""
        return SCHEMA

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """See `FieldAdder`."""
        lines = batch.column(0)
        is_object = pc.and_(pc.match_substring_regex(lines, _BEGINS), pc.match_substring_regex(lines, _ENDS))
        self._check(is_object, "is no JSON object, so that it cannot get fields", input_index, first_row)
        data, offsets = view_records(lines)
        whole = _wrap(offsets[[0, -1]], data)
        for clash in self._clashes:
            # Few lines have what looks like a clash, and one search is faster than as many as lines.
            if pc.match_substring_regex(whole, clash)[0].as_py():
                is_free = pc.invert(pc.match_substring_regex(lines, clash))
                problem = "may have one of these fields already, or an object inside of it has"
                self._check(is_free, problem, input_index, first_row)

    def _check(self, is_good: pa.Array, problem: str, input_index: int, first_row: int) -> None:
        row = pc.index(is_good, pa.scalar(False)).as_py()
        if row >= 0:
            raise InputError(
                self._inputs[input_index],
                f"{problem}: {self._names}",
                place=f"line {first_row + row + 1}",
                remedy="leave out --provenance, or choose --to parquet",
            )

    def finish(self) -> pa.Schema:
        """See `Decoder`."""
        return SCHEMA

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch."""
        return batch

    def add_fields(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.RecordBatch:
        """See `FieldAdder`."""
        if not batch.num_rows:
            return batch
        data, offsets = view_records(batch.column(0))
        cuts = _find_cuts(batch.column(0), data, offsets)
        # What lies between two insertions is one piece, the end of a line and the beginning of the next one: the joined
        # pieces are the lines, cut in other places. Behind the last line, fields are inserted for nobody.
        pieces = _wrap(np.concatenate(([0], cuts, offsets[-1:])), data)
        columns = pa.concat_batches([columns, columns.slice(batch.num_rows - 1)])
        parts = [_choose_commas(batch.column(0), data, cuts)]
        for index, (field, column) in enumerate(zip(columns.schema, columns.columns, strict=True)):
            name = f"{',' if index else ''}{json.dumps(field.name)}:"
            parts += [pa.scalar(name.encode(), pa.large_binary()), _encode(column, field.name)]
        joined = pc.binary_join_element_wise(pieces, *parts, _NOTHING)
        filled, ends = view_records(joined)
        ends = np.append(0, ends[1:-1] + (offsets[1:] - cuts))
        return pa.RecordBatch.from_arrays([_wrap(ends, filled)], schema=SCHEMA)

    def remove_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `FieldAdder`."""
        lines = pc.replace_substring_regex(batch.column(0), self._added, r"\1")
        return pa.RecordBatch.from_arrays([lines], schema=SCHEMA)


def _encode(column: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of each value, as bytes."""
    text = encode_values(column, name, nan_as_null=False)
    return pa.Array.from_buffers(pa.large_binary(), len(text), text.buffers(), offset=text.offset)


def _wrap(offsets: Positions, data: Bytes) -> pa.Array:
    """Return what lies between the offsets, without a copy."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _find_cuts(lines: pa.Array, data: Bytes, offsets: Positions) -> Positions:
    """Return where the last brace of each line is."""
    cuts = offsets[1:] - len(b"}\n")
    other = np.flatnonzero((data[cuts] != ord("}")) | (data[cuts + 1] != ord("\n")))
    if len(other):
        found = pc.find_substring_regex(lines.take(pa.array(other)), _ENDS).to_numpy()
        cuts[other] = offsets[other] + found
    return cuts


def _choose_commas(lines: pa.Array, data: Bytes, cuts: Positions) -> pa.Array:
    """Return what goes in front of the fields of each line, and of one more: nothing in an object without others."""
    commas = np.full(len(lines) + 1, True)
    doubtful = np.flatnonzero(np.isin(data[cuts - 1], _BEFORE_NOTHING))
    if len(doubtful):
        is_empty = pc.match_substring_regex(lines.take(pa.array(doubtful)), _IS_EMPTY)
        commas[doubtful] = ~is_empty.to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(commas), _COMMA, _NOTHING)
