"""The types of CSV columns over any number of batches.

pyarrow finds the type of a column in each batch. The types of a chain hold each other's values::

    null < int64 < double               < string < binary
    null < bool                         < string
    null < date32 < timestamp[s] < [ns] < string
    null < timestamp[s, UTC] < [ns, UTC] < string
    null < time32[s]                    < string

The type of two batches is the first that holds both, so that it does not depend on how records are cut.
A column of numbers stays text if one would be altered: in doubles a whole number from 2^53 on, one whose whole part
changes and that has no exponent, one that is too large or too small, and spellings that pyarrow takes for numbers and
other readers do not: ``0x10``, ``nan(5)``. So does one with a number that begins with a zero before a digit or a plus
sign, as codes do: ``01234``, ``+49123``.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.texts import exact_limit
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    Texts = Callable[[], pa.ChunkedArray]
    """Returns the values of a column as they are written."""


_WHOLE = r"^\s*[+-]?\d+\s*$"
"""A number without a point and an exponent."""
_PLAIN = r"^\s*[+-]?\d+(?:\.\d*)?\s*$"
"""A number without an exponent."""
_SHOWN = 40
_INFINITE = r"(?i)inf"
_WHOLE_PART = r"^\s*\+?(-?)0*(\d{1,76})(?:\.\d*)?\s*$"  # with as many digits as a decimal256
_DECIMAL = pa.decimal256(76, 0)
NUMBERS = (pa.int64(), pa.float64())
_CHAINS = (
    NUMBERS,
    (pa.bool_(),),
    (pa.date32(), pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")),
    (pa.time32("s"),),
)
_KINDS = {
    str(kind): kind
    for kind in (pa.null(), pa.string(), pa.binary(), *(kind for chain in _CHAINS for kind in chain))
}
_NANOSECONDS = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
_EXACT = exact_limit(pa.float64())
_HEXADECIMAL = r"^\s*[+-]?0[xX]"
_NOT_ZERO = r"^\s*[+-]?[0.]*[1-9]"
_CODE = r"^\s*(?:\+[0-9.]|-?0\d)"
_ZERO, _PLUS, _MINUS, _BLANK = b"0+- "


class ColumnType:
    """The type of one column, as far as it has been observed."""

    def __init__(self) -> None:
        self._kind: pa.DataType = pa.null()
        self._fits_nanoseconds = True
        self._fits_double = True
        self._is_plain = True

    def observe(self, values: pa.ChunkedArray, texts: Texts, *, is_ordinary: bool) -> None:
        """Take the type of further values into account; `is_ordinary` says what `are_ordinary` says of them."""
        self._kind = _join(self._kind, values.type)
        if values.type in NUMBERS and not is_ordinary:
            self._fits_double = self._fits_double and _fits_double(values, texts)
            self._is_plain = self._is_plain and _are_plain(values, texts())
        if self._fits_nanoseconds and pa.types.is_temporal(values.type):
            self._fits_nanoseconds = _fits_nanoseconds(values)

    @property
    def known(self) -> pa.DataType:
        """What `kind` returns, but null if there are no values so far."""
        return self._kind if self._kind == pa.null() else self.kind

    def pack(self) -> list[Any]:
        return [str(self._kind), self._fits_nanoseconds, self._fits_double, self._is_plain]

    def merge(self, packed: list[Any]) -> None:
        """Take into account what another column type has observed, as `pack` says."""
        kind, fits_nanoseconds, fits_double, is_plain = packed
        self._kind = _join(self._kind, _KINDS[kind])
        self._fits_nanoseconds &= fits_nanoseconds
        self._fits_double &= fits_double
        self._is_plain &= is_plain

    @property
    def kind(self) -> pa.DataType:
        """The type that holds all values; strings if there are none."""
        if self._kind == pa.null() or (self._kind in _NANOSECONDS and not self._fits_nanoseconds):
            return pa.string()
        if (self._kind == pa.float64() and not self._fits_double) or (
            self._kind in NUMBERS and not self._is_plain
        ):
            return pa.string()
        return self._kind


def are_ordinary(numbers: pa.Array, texts: pa.Array) -> bool:
    """Tell whether doubles hold all numbers as they are written, and none is a code or oddly spelled."""
    whole = pa.chunked_array([texts])
    return _fits_double(pa.chunked_array([numbers]), lambda: whole) and _are_plain(numbers, whole)


def _join(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the first type that holds the values of both.

    >>> _join(pa.date32(), pa.timestamp("s")), _join(pa.bool_(), pa.int64())
    (TimestampType(timestamp[s]), DataType(string))
    """
    if kind == other or other == pa.null():
        return kind
    if kind == pa.null():
        return other
    for chain in _CHAINS:
        if kind in chain and other in chain:
            return chain[max(chain.index(kind), chain.index(other))]
    return pa.binary() if pa.binary() in (kind, other) else pa.string()


def _fits_double(values: pa.ChunkedArray, texts: Texts) -> bool:
    """Tell whether doubles hold all numbers as they are written, apart from decimal places."""
    if values.type == pa.int64():
        bounds = pc.min_max(values).as_py()
        return bounds["min"] is None or max(-bounds["min"], bounds["max"]) < _EXACT
    large = _take_large(values, texts)
    if large is None:
        return True
    # Also those that doubles hold: batches of integers alone are judged without their text.
    if _is_any(pc.match_substring_regex(large["text"], _WHOLE)):
        return False
    return not (_keep_overflown(large).num_rows or _keep_altered(large, _PLAIN).num_rows)


def _are_plain(values: pa.Array | pa.ChunkedArray, texts: pa.ChunkedArray) -> bool:
    """Tell whether no number is a code, or spelled in a way that other readers take for text, or stands for one that is not zero."""
    if _has_codes(texts):
        return False
    # Single bytes are found fast.
    content = b"".join(view_bytes(chunk).tobytes() for chunk in texts.chunks)

    def has_odd(marks: bytes, pattern: str, suspects: pa.Array | pa.ChunkedArray | None = None) -> bool:
        if not any(mark in content for mark in marks) or not (suspects is None or _is_any(suspects)):
            return False
        is_odd = pc.match_substring_regex(texts, pattern)
        return _is_any(is_odd if suspects is None else pc.and_(suspects, is_odd))

    if has_odd(b"xX", _HEXADECIMAL):
        return False
    if values.type == pa.int64():
        return True
    return not (has_odd(b"(", r"\(", pc.is_nan(values)) or has_odd(b"eE", _NOT_ZERO, pc.equal(values, 0)))


def _is_any(mask: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


def _has_codes(texts: pa.ChunkedArray) -> bool:
    """Tell whether a number begins with a zero before a digit, or with a plus sign."""
    for chunk in texts.chunks:
        data, offsets = view_bytes(chunk), view_offsets(chunk).astype(np.int64)
        begins, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        if chunk.null_count:
            begins, ends = begins[begins < ends], ends[begins < ends]
        suspects = np.flatnonzero(data[begins] <= _ZERO)
        begins, ends = begins[suspects], ends[suspects]
        first = data[begins]
        if (first == _PLUS).any() or (first <= _BLANK).any():
            return _is_any(pc.match_substring_regex(texts, _CODE))
        begins += first == _MINUS
        second = data[np.minimum(begins + 1, data.size - 1)]
        is_code = (data[begins] == _ZERO) & (second - np.uint8(_ZERO) < 10) & (begins + 1 < ends)
        if is_code.any():
            return True
    return False


def _fits_nanoseconds(values: pa.ChunkedArray) -> bool:
    if pa.types.is_time(values.type):
        return True
    try:
        values.cast(pa.timestamp("ns", getattr(values.type, "tz", None)))
    except pa.ArrowInvalid:
        return False
    return True


def _take_large(values: pa.ChunkedArray, texts: Texts) -> pa.Table | None:
    """Return row, value and text of the floats from the first whole number on that their type does not hold.

    None if there are none.
    """
    limit = float(exact_limit(values.type))
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None or max(-bounds["min"], bounds["max"]) < limit:
        return None
    rows = pc.indices_nonzero(pc.greater_equal(pc.abs(values), limit))
    return pa.table({"row": rows, "value": values.take(rows), "text": texts().take(rows)})


def find_altered(values: pa.ChunkedArray, texts: Texts) -> tuple[int, str] | None:
    """Return the row of the first number that is infinite, or another whole number, as a float, and the problem.

    None if there is none. Decimal places may be rounded.
    """
    large = _take_large(values, texts)
    if large is None:
        return None
    kind = f"float{values.type.bit_width}"
    problems = (
        (_keep_overflown(large), f"is too large for {kind}"),
        (_keep_altered(large, _WHOLE), f"is a whole number that {kind} cannot hold exactly"),
    )
    firsts = [(pc.min(part["row"]).as_py(), part, problem) for part, problem in problems if part.num_rows]
    if not firsts:
        return None
    row, part, problem = min(firsts, key=itemgetter(0))
    text = part.filter(pc.equal(part["row"], row))["text"][0].as_py().strip().decode()
    return row, f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} {problem}"


def _keep_overflown(large: pa.Table) -> pa.Table:
    is_number = pc.invert(pc.match_substring_regex(large["text"], _INFINITE))
    return large.filter(pc.and_(pc.is_inf(large["value"]), is_number))


def _keep_altered(large: pa.Table, spelling: str) -> pa.Table:
    """Return those finite numbers of a spelling, `_WHOLE` or `_PLAIN`, whose whole part is another as a float."""
    spelled = large.filter(
        pc.and_(pc.is_finite(large["value"]), pc.match_substring_regex(large["text"], spelling))
    )
    fits = pc.match_substring_regex(spelled["text"], _WHOLE_PART)
    fitting = spelled.filter(fits)
    texts = fitting["text"].cast(pa.string())
    written = pc.replace_substring_regex(texts, _WHOLE_PART, r"\1\2").cast(_DECIMAL)
    held = pc.trunc(fitting["value"]).cast(_DECIMAL)
    altered = fitting.filter(pc.not_equal(written, held))
    return pa.concat_tables([altered, spelled.filter(pc.invert(fits))])
