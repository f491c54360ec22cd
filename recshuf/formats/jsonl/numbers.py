"""Finds numbers that a column's type would alter: suspects in whole columns, confirmed in the text of their lines."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.dataclass import dataclass
from recshuf.formats.jsonl.line_checks import BadRecord, LineErrors, name_path, shorten
from recshuf.formats.texts import exact_limit
from recshuf.records.arrays import FLAT, dtype_of, is_variable_list, unpack_bits, view_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.jsonl.line_checks import Path

    Rows = Callable[[NDArray[np.int64]], NDArray[np.int64]]


_EXACT = exact_limit(pa.float64())
_NULL_REMEDY = "write it as null or as a string"
TYPE_REMEDY = (
    "give the field a type with --schema: string, or, if it has no fractions, one with room for it: uint64 or "
    "decimal128(38, 0)"
)


class BrokenFloat(BadRecord):
    """NaN, an infinity, or a number too large for its type."""


@dataclass(frozen=True, slots=True)
class Column:
    """All values at one path, flattened."""

    path: Path
    values: pa.Array
    """One value for each record, or for each element of the lists on the way."""
    rows: Rows
    """Maps positions in `values` to rows."""

    def first_row(self) -> int | None:
        if self.values.null_count == len(self.values):
            return None
        bits = self.values.buffers()[0] if self.values.null_count else None
        place = 0 if bits is None else np.argmax(unpack_bits(bits, self.values))
        return int(self.rows(np.array([place]))[0])


class ValidCounts:
    """How many records have a value in each field that lies in no list. Used by many threads."""

    def __init__(self) -> None:
        self._rows = 0
        self._valid: Counter[Path] = Counter()
        self._holes: set[str] = set()
        """Top-level fields with a null below them."""
        self._lock = threading.Lock()

    def add(self, columns: Iterable[Column], rows: int) -> None:
        with self._lock:
            self._rows += rows
            for column in columns:
                nulls = column.values.null_count
                if None not in column.path:
                    self._valid[column.path] += rows - nulls
                if nulls and len(column.path) > 1:
                    self._holes.add(column.path[0] or "")

    def find_nulls(self, names: Iterable[str]) -> frozenset[str]:
        """Return which fields some records lack: top-level ones, also if they hold a null, by name, others by path."""
        with self._lock:
            paths: set[Path] = {*self._valid, *((name,) for name in names)}
            lacking = {".".join(map(str, path)) for path in paths if self._valid[path] < self._rows}
            return frozenset(lacking | self._holes)


def walk_columns(columns: list[pa.Array], names: list[str]) -> Iterator[Column]:
    """Yield every column and its nested columns, parents first, without those of type null."""
    for name, column in zip(names, columns, strict=True):
        if column.type.id in FLAT:
            yield Column((name,), column, lambda positions: positions)
            continue
        yield from _walk((name,), column, lambda positions: positions)


def _walk(path: Path, values: pa.Array, rows: Rows) -> Iterator[Column]:
    if pt.is_null(values.type):
        return
    yield Column(path, values, rows)
    if pt.is_struct(values.type):
        for index, field in enumerate(values.type):
            yield from _walk((*path, field.name), values.field(index), rows)
    elif is_variable_list(values.type) or pt.is_map(values.type):
        offsets = values.offsets.to_numpy()
        yield from _walk(
            (*path, None),
            values.items if pt.is_map(values.type) else values.values,
            lambda at: rows(np.searchsorted(offsets, at, side="right") - 1),
        )
    elif pt.is_fixed_size_list(values.type):
        size = values.type.list_size
        yield from _walk((*path, None), values.values, lambda at: rows(at // size))


def check_floats(columns: Sequence[Column], lines: pa.Array, *, as_given: bool) -> None:
    """Check that every float of these columns is finite, and that no integer among them lost digits.

    Raises `BadRecord` for the first line where that is so, with its row and `line_errors`. Types `as_given` by a schema take NaN
    and infinities that are written as such, and such an integer makes its own line bad; else only where that line itself makes
    its field a float.
    """
    floats = [column for column in columns if pt.is_floating(column.values.type)]
    suspects = [(column, *_find_suspects(column)) for column in floats]
    suspects = sorted((item for item in suspects if len(item[1])), key=lambda item: name_path(item[0].path))
    problems = own_errors = LineErrors()
    for column, large, values in suspects:
        kind = column.values.type
        if as_given and pt.is_float64(kind):  # pyarrow refuses numbers above these itself
            continue
        for row in np.unique(column.rows(large[~np.isfinite(values)])).tolist():
            if not as_given or _overflows(lines[row].as_py(), column):
                problem = f"is NaN, infinite or too large for {kind}"
                error = BrokenFloat(problem, remedy=_NULL_REMEDY, path=column.path, row=row)
                problems.setdefault(row, error)
    if not problems:
        own_errors = LineErrors()
        for column, large, _ in suspects:
            _collect_inexact(column, large, lines, problems, own_errors, as_given=as_given)
    if problems:
        first = problems[min(problems)]
        first.line_errors = own_errors
        raise first


def _find_suspects(column: Column) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the positions and values of floats that are not finite or may have lost digits."""
    values = _numbers(column.values).astype(np.float64, copy=False)
    suspects = np.flatnonzero(~(np.abs(values) < exact_limit(column.values.type)))
    return suspects, values[suspects]


def _overflows(line: str, column: Column) -> bool:
    """Tell whether a number of a line, and not an infinity, is too large for the type of its column."""
    width = dtype_of(column.values.type).type
    with np.errstate(over="ignore"):
        return any(
            math.isfinite(number) and not np.isfinite(width(number))
            for number in _numbers_at(line, column.path)
        )


def _collect_inexact(
    column: Column,
    suspects: NDArray[np.int64],
    lines: pa.Array,
    problems: LineErrors,
    own_errors: LineErrors,
    *,
    as_given: bool,
) -> None:
    """Compare large floats with their text: integers with as many digits that the type cannot hold are errors."""
    dtype = dtype_of(column.values.type)
    rows = np.unique(column.rows(suspects))
    is_long = pc.match_substring_regex(lines.take(pa.array(rows)), _long_integer(column))
    # Record by record from here on: such integers in a column that holds floats too are rare, and mostly wrong.
    for row in rows[is_long.to_numpy(zero_copy_only=False)].tolist():
        numbers = _numbers_at(lines[row].as_py(), column.path)
        inexact = next((one for one in numbers if isinstance(one, int) and not _holds(dtype, one)), None)
        if inexact is None:
            continue
        problem = f"holds the integer {shorten(str(inexact))}, which {dtype.name} cannot hold exactly"
        error = BadRecord(problem, remedy=TYPE_REMEDY, path=column.path, row=row)
        problems.setdefault(row, error)
        if as_given or any(
            isinstance(number, float) or not -(1 << 63) <= number < 1 << 63 for number in numbers
        ):
            own_errors.setdefault(row, error)


def _holds(dtype: np.dtype[Any], number: int) -> bool:
    with np.errstate(over="ignore"):
        held = float(dtype.type(number))  # Arrow may have read a finite one
    return math.isfinite(held) and int(held) == number


def _long_integer(column: Column) -> str:
    """Return a pattern that occurs in each line with an integer in this column that floats may not hold.

    A name may be spelled with escapes in place of its letters.
    """
    digits, name = len(str(exact_limit(column.values.type))), column.path[-1]
    begin = r"[:,\[]" if name is None else rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:"
    return rf"{begin}\s*-?[0-9]{{{digits},}}\s*[,\]}}]" + ("" if name is None else r"|\\[u/]")


def _walk_numbers(value: Any, path: Path) -> Iterator[tuple[Path, int | float]]:
    """Yield all numbers of a value of JSON with their paths."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
    inner: Iterable[tuple[str | None, Any]] = ()
    if isinstance(value, list):
        inner = ((None, element) for element in value)
    elif isinstance(value, dict):
        inner = value.items()
    for name, element in inner:
        yield from _walk_numbers(element, (*path, name))


def _numbers_at(line: str, path: Path) -> list[int | float]:
    """Return the numbers at a path, in which None stands for the names of a map, too."""
    return [
        number
        for place, number in _walk_numbers(json.loads(line, strict=False), ())
        if len(place) == len(path)
        and all(part in (None, name) for part, name in zip(path, place, strict=True))
    ]


def explain_too_large(line: str) -> BadRecord:
    """Return the error for a line with a number above those of float64, which names its field, or with a zero like `0e400`."""
    try:
        numbers = _walk_numbers(json.loads(line, strict=False), ())
        path = next((path for path, number in numbers if abs(number) > sys.float_info.max), None)
    except (ValueError, RecursionError):  # thousands of digits, or too deep
        path = None
    else:
        if path is None:
            return BadRecord("holds a zero with an exponent too large for float64", remedy="write it as 0")
    is_listed = path is None or path[-1] is None
    remedy = _NULL_REMEDY if is_listed else "give its field the type string with --schema"
    return BadRecord("holds a number too large for float64", remedy=remedy, path=path)


def find_inexact_integer(column: Column) -> int | None:
    """Return the row of an int64 that float64 cannot hold exactly; None when there is none."""
    values = _numbers(column.values)
    # One unsigned comparison finds what is above 2**53 or below -2**53.
    large = np.flatnonzero((values.view(np.uint64) + np.uint64(_EXACT)) > np.uint64(2 * _EXACT))
    sizes = np.abs(values[large]).view(np.uint64)  # that of the lowest number is its own
    inexact = large[sizes.astype(np.float64).astype(np.uint64) != sizes]
    return int(column.rows(inexact[:1])[0]) if len(inexact) else None


def find_fraction(column: Column) -> int | None:
    """Return the row of a float that is no whole number; None when there is none."""
    values = _numbers(column.values)
    fractions = np.flatnonzero(values != np.trunc(values))
    return int(column.rows(fractions[:1])[0]) if len(fractions) else None


def _numbers(values: pa.Array) -> np.ndarray:
    """Return the values with zeros for nulls."""
    # Not by `to_numpy`, which imports pandas where there is one.
    filled = pc.fill_null(values, 0) if values.null_count else values
    width = values.type.bit_width // 8
    return view_bytes(filled).view(f"{'f' if pt.is_floating(values.type) else 'i'}{width}")
