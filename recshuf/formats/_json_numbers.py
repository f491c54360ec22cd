"""Numbers that a column's type would alter: found on whole columns, confirmed on the text of the few suspects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.formats._json_records import BadRecord, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.formats._json_columns import Column
    from recshuf.formats._json_records import Path

_EXACT = 1 << 53
_LONG_INTEGER = r"[0-9]{16,}[ \t\r\n]*[,\]}]"
TYPE_REMEDY = "give the field a type with --schema, such as string, uint64 or decimal128(38, 0)"


def check_floats(column: Column, lines: pa.Array) -> None:
    """Make sure that every number of a column of floats is one, and that no integer among them lost digits.

    Raises
    ------
    BadRecord
        Otherwise, with the row.
    """
    values = _numbers(column.values).astype(np.float64, copy=False)
    suspects = np.flatnonzero(~(np.abs(values) < _EXACT))
    if not len(suspects):
        return
    broken = suspects[~np.isfinite(values[suspects])]
    if len(broken):
        row = int(column.rows(broken[:1])[0])
        problem = f"is NaN, infinite or too large for {column.values.type}"
        raise BadRecord(problem, remedy="write it as null or as a string", path=column.path, row=row)
    if pt.is_float64(column.values.type):
        _check_literals(np.unique(column.rows(suspects)), column.path, lines)


def _check_literals(rows: np.ndarray, path: Path, lines: pa.Array) -> None:
    """Compare large floats with their text: integers of 16 digits and more that are no double are errors."""
    suspects = lines.take(pa.array(rows))
    is_long = pc.match_substring_regex(suspects, _LONG_INTEGER).to_numpy(zero_copy_only=False)
    # Record by record from here on: such integers in a column that holds floats too are rare, and mostly wrong.
    for row in rows[is_long].tolist():
        for number in _integers_at(json.loads(lines[row].as_py(), strict=False), path):
            if int(float(number)) != number:
                problem = f"holds the integer {shorten(str(number))}, which float64 cannot hold exactly"
                raise BadRecord(problem, remedy=TYPE_REMEDY, path=path, row=row)


def _integers_at(value: Any, path: Path) -> Iterator[int]:
    if not path:
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
    elif isinstance(value, list):
        for element in value:
            yield from _integers_at(element, path[1:])
    elif isinstance(value, dict):
        yield from _integers_at(value.get(path[0]), path[1:])


def find_inexact_integer(column: Column) -> int | None:
    """Return the row of an int64 that float64 cannot hold exactly; None when there is none."""
    values = _numbers(column.values)
    # One unsigned comparison finds what is above 2**53 or below -2**53.
    large = np.flatnonzero((values.view(np.uint64) + np.uint64(_EXACT)) > np.uint64(2 * _EXACT))
    sizes = values[large].view(np.uint64)
    sizes = np.where(values[large] < 0, ~sizes + np.uint64(1), sizes)
    lowest_bits = sizes & (~sizes + np.uint64(1))
    inexact = large[sizes // lowest_bits >= np.uint64(_EXACT)]
    return int(column.rows(inexact[:1])[0]) if len(inexact) else None


def _numbers(values: pa.Array) -> np.ndarray:
    """Return the values with zeros for nulls; Arrow itself cannot fill half floats."""
    if pt.is_float16(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), numbers, 0)
    return np.asarray(pc.fill_null(values, 0).to_numpy())
