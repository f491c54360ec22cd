"""Adds fields to lines of JSON before the last brace, without parsing them or changing other bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.errors import InputError
from recshuf.formats.jsonl.encoding import encode_values
from recshuf.formats.lines.cutting import SCHEMA, make_batch, view_records
from recshuf.interfaces import FieldAdder
from recshuf.records.arrays import wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.lines.cutting import Bytes, Positions


_SPACE = r"[ \t\r\n]*"
_BEGINS = rf"^{_SPACE}\{{"
_ENDS = rf"\}}{_SPACE}$"
_IS_EMPTY = rf"^{_SPACE}\{{{_SPACE}\}}"
_BEFORE_NOTHING = np.frombuffer(b"{ \t\r\n", np.uint8)
"""Bytes that may precede the last brace of an object without fields."""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[0-9]+)'
_SPELLED = r"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])"
"""A lowercase letter or an underscore, written as an escape."""
_BYTES = pa.large_binary()
_NOTHING, _COMMA = pa.scalar(b"", _BYTES), pa.scalar(b",", _BYTES)


class JsonFieldAdder(FieldAdder):
    """Appends fields to objects.

    Quotes inside strings are escaped, so a quoted name followed by a colon is a key of the object or of a nested one. A key
    with escaped letters may be any name. The names of the fields are letters and underscores. If it `checks_late`, `add_fields`
    checks the records, because nobody observes them.
    """

    def __init__(self, inputs: Sequence[str], names: Sequence[str], *, checks_late: bool = False) -> None:
        self._inputs = inputs
        self._checks_late = checks_late
        words = "|".join(map(re.escape, names))
        # Two patterns, since a search first looks for the fixed text that a pattern begins with.
        self._clashes = (rf'"(?:{words})"{_SPACE}:', rf'{_SPELLED}[^"]*"{_SPACE}:')
        self._added = (
            ",?"
            + ",".join(f'"{re.escape(name)}":{_VALUE}' for name in names)
            + f"({_ENDS.removesuffix('$')})$"
        )
        self._names = " and ".join(names)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        if problem := self._find_problem(batch.column(0)):
            raise self._refuse(problem[1], self._inputs[input_index], first_row + problem[0])

    def _find_problem(self, lines: pa.Array) -> tuple[int, str] | None:
        """Return the row of a line that cannot get the fields, and why; None if all can."""
        is_object = pc.and_(pc.match_substring_regex(lines, _BEGINS), pc.match_substring_regex(lines, _ENDS))
        row = pc.index(is_object, pa.scalar(False)).as_py()
        if row >= 0:
            return row, "is not a JSON object, so fields cannot be added"
        data, offsets = view_records(lines)
        whole = wrap_bytes(data, offsets[[0, -1]])
        for clash in self._clashes:
            # Clashes are rare, and one search of all lines is faster than one per line.
            if pc.match_substring_regex(whole, clash)[0].as_py():
                row = pc.index(pc.match_substring_regex(lines, clash), pa.scalar(True)).as_py()
                if row >= 0:
                    return row, "may already have one of these fields, at the top level or nested"
        return None

    def _refuse(self, problem: str, name: str, row: int) -> InputError:
        remedy = "leave out --provenance, or choose --to parquet"
        return InputError(name, f"{problem}: {self._names}", place=f"line {row + 1}", remedy=remedy)

    def finish(self) -> pa.Schema:
        return SCHEMA

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def add_fields(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the lines with the fields of `columns`: the name of the input and the row."""
        if not batch.num_rows:
            return batch
        if self._checks_late and (problem := self._find_problem(batch.column(0))):
            raise self._refuse(problem[1], *(column[problem[0]].as_py() for column in columns.columns))
        data, offsets = view_records(batch.column(0))
        cuts = _find_cuts(batch.column(0), data, offsets)
        # A piece reaches from one insertion to the next: the end of a line and the beginning of the next one. The fields
        # inserted after the last line are cut off.
        pieces = wrap_bytes(data, np.concatenate(([0], cuts, offsets[-1:])))
        columns = pa.concat_batches([columns, columns.slice(batch.num_rows - 1)])
        parts = [_choose_commas(batch.column(0), data, cuts)]
        for index, (field, column) in enumerate(zip(columns.schema, columns.columns, strict=True)):
            name = f"{',' if index else ''}{json.dumps(field.name)}:"
            values = encode_values(column, field.name, nan_as_null=False)
            parts += [pa.scalar(name.encode(), _BYTES), values.cast(_BYTES)]
        joined = pc.binary_join_element_wise(pieces, *parts, _NOTHING)
        filled, ends = view_records(joined)
        ends = np.append(0, ends[1:-1] + (offsets[1:] - cuts))
        return make_batch(filled, ends)

    def remove_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lines = pc.replace_substring_regex(batch.column(0), self._added, r"\1")
        return pa.RecordBatch.from_arrays([lines], schema=SCHEMA)


def _find_cuts(lines: pa.Array, data: Bytes, offsets: Positions) -> Positions:
    cuts = offsets[1:] - len(b"}\n")
    other = np.flatnonzero((data[cuts] != ord("}")) | (data[cuts + 1] != ord("\n")))
    if len(other):
        cuts[other] = offsets[other] + pc.find_substring_regex(lines.take(pa.array(other)), _ENDS).to_numpy()
    return cuts


def _choose_commas(lines: pa.Array, data: Bytes, cuts: Positions) -> pa.Array:
    """Return, for each line and one more, the comma before the new fields; empty for an object without fields."""
    commas = np.full(len(lines) + 1, True)
    doubtful = np.flatnonzero(np.isin(data[cuts - 1], _BEFORE_NOTHING))
    if len(doubtful):
        is_empty = pc.match_substring_regex(lines.take(pa.array(doubtful)), _IS_EMPTY)
        commas[doubtful] = ~is_empty.to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(commas), _COMMA, _NOTHING)
