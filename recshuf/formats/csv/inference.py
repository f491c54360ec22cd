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

Codes are found among bytes, by a few passes that most inputs end without a find.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.values import exact_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.csv.quotes import Dialect
    from recshuf.formats.lines.cutting import Bytes, Positions

    Texts = Callable[[], pa.ChunkedArray]
    """Returns the values of a column as bytes."""
    Mask = NDArray[np.bool_]


_WHOLE = r"^\s*[+-]?\d+\s*$"
"""A number without a point and an exponent."""
_PLAIN = r"^\s*[+-]?\d+(?:\.\d*)?\s*$"
"""A number without an exponent."""
_SHOWN = 40
_INFINITE = r"(?i)inf"
_WHOLE_PART = r"^\s*\+?(-?)0*(\d{1,76})(?:\.\d*)?\s*$"  # with as many digits as a decimal256
_DECIMAL = pa.decimal256(76, 0)
_CHAINS = (
    (pa.int64(), pa.float64()),
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
_ODD_NUMBERS = (
    ((b"0x", b"0X"), r"^\s*[+-]?0[xX]"),
    ((b"e-", b"E-"), r"^\s*[+-]?[0.]*[1-9]"),
    ((b"(",), r"\("),
)
"""Bytes that batches with such spellings hold, and the pattern of the spelling: hexadecimal, any number but zero, NaN."""
_CODE = r"^\s*(?:\+|-?0\d)"
_ZERO, _PLUS, _MINUS = b"0+-"
_BLANKS = b" \t"
_LAST_MARK = ord(",")
"""The bytes up to this one are marks; those that begin most fields are among them."""
_PIECE_BYTES = 1 << 16
_MANY = 64
"""Places from which on it pays to count the fields before them."""


class ColumnType:
    """The type of one column, as far as it has been observed."""

    def __init__(self) -> None:
        self._kind: pa.DataType = pa.null()
        self._fits_nanoseconds = True
        self._fits_double = True
        self._is_plain = True

    def observe(self, values: pa.ChunkedArray, texts: Texts, marks: frozenset[bytes]) -> None:
        """Take the type of further values into account; `marks` are those of `find_marks` for their records."""
        self._kind = _join(self._kind, values.type)
        if self._fits_double and values.type in _CHAINS[0]:
            self._fits_double = _fits_double(values, texts)
        if self._is_plain and values.type in _CHAINS[0]:
            self._is_plain = _are_plain(values, texts, marks)
        if self._fits_nanoseconds and pa.types.is_temporal(values.type):
            self._fits_nanoseconds = _fits_nanoseconds(values)

    @property
    def is_null(self) -> bool:
        """Whether no value has been observed."""
        return bool(self._kind == pa.null())

    @property
    def is_number(self) -> bool:
        return self._is_plain and self._kind in _CHAINS[0]

    def observe_codes(self, texts: pa.ChunkedArray) -> None:
        """Take into account how numbers are written, in records of `find_codes`."""
        self._is_plain = not pc.any(pc.match_substring_regex(texts, _CODE), min_count=0).as_py()

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
            self._kind in _CHAINS[0] and not self._is_plain
        ):
            return pa.string()
        return self._kind


def find_marks(data: Bytes) -> frozenset[bytes]:
    """Return those bytes of odd numbers that occur in records."""
    content = data.tobytes()
    # A single byte is found ten times as fast as two, and most inputs lack one of them.
    known = [mark for marks, _ in _ODD_NUMBERS for mark in marks if all(byte in content for byte in mark)]
    return frozenset(mark for mark in known if len(mark) == 1 or _has_pair(data, mark))


def _has_pair(data: Bytes, pair: bytes) -> bool:
    pieces = (data[at : at + _PIECE_BYTES + 1] for at in range(0, data.size, _PIECE_BYTES))
    return any(((piece[:-1] == pair[0]) & (piece[1:] == pair[1])).any() for piece in pieces)


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
    if pc.any(pc.match_substring_regex(large["text"], _WHOLE), min_count=0).as_py():
        return False
    return not (_keep_overflown(large).num_rows or _keep_altered(large, _PLAIN).num_rows)


def _are_plain(values: pa.ChunkedArray, texts: Texts, marks: frozenset[bytes]) -> bool:
    """Tell whether no number is spelled in a way that other readers take for text, or stands for one that is not zero."""
    is_whole = values.type == pa.int64()
    suspects = (values, pc.equal(values, 0), None if is_whole else pc.is_nan(values))
    for (needed, pattern), suspect in zip(_ODD_NUMBERS, suspects, strict=True):
        if suspect is None or marks.isdisjoint(needed):
            continue
        if suspect is not values and not pc.any(suspect, min_count=0).as_py():
            continue
        is_odd = pc.match_substring_regex(texts(), pattern)
        if pc.any(is_odd if suspect is values else pc.and_(suspect, is_odd), min_count=0).as_py():
            return False
    return True


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


def find_codes(data: Bytes, offsets: Positions, dialect: Dialect, fields: Sequence[int] | None) -> Positions:
    """Return the rows of records that may hold a number with a zero before other digits, or with a plus sign."""
    edges, signs = _table(_BLANKS + b"\r\n" + dialect.delimiter + dialect.quote), _table(b"+-")
    blanks = _table(_BLANKS.replace(dialect.delimiter, b""))
    places = np.concatenate([np.arange(min(2, data.size)), *_find_signs(data, dialect.delimiter[0])])
    # Those before which a field begins, but for a sign, a quote, and blanks.
    begins = places - (signs[data[places - 1]] & (places > 0))
    before = data[begins - 1]
    is_begin = edges[before] & (~blanks[before] | (begins == 1) | edges[data[begins - 2]])
    places = places[(begins == 0) | is_begin]
    if (
        places.size > _MANY
        and fields is not None
        and not (dialect.quote and (data == dialect.quote[0]).any())
    ):
        counts = np.cumsum(data == dialect.delimiter[0], dtype=np.int32)
        begins = offsets[np.searchsorted(offsets, places, "right") - 1]
        before = np.where(begins > 0, counts[begins - 1], 0)
        places = places[np.isin(counts[places] - before, fields)]
    places = _keep_numbers(data, places, edges | _table(b"eE"))
    return np.unique(np.searchsorted(offsets, places, "right") - 1)


def _table(members: bytes) -> Mask:
    table = np.zeros(256, np.bool_)
    table[list(members)] = True
    return table


def _find_signs(data: Bytes, delimiter: int) -> Iterator[Positions]:
    """Yield the places of zeros that stand between a mark and a digit, and of plus signs behind a mark."""
    for at in range(0, max(0, data.size - 2), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES + 2]
        before, there, behind = piece[:-2], piece[1:-1], piece[2:]
        marked = before <= _LAST_MARK
        if delimiter > _LAST_MARK:
            marked |= before == delimiter
        yield np.flatnonzero(marked & (there == _ZERO) & (behind - np.uint8(_ZERO) < 10)) + (at + 1)
        if b"+" in piece.tobytes():
            yield np.flatnonzero(marked & (there == _PLUS)) + (at + 1)
        yield np.flatnonzero(marked & (there == _MINUS) & (behind == _ZERO)) + (at + 2)


def _keep_numbers(data: Bytes, places: Positions, stops: Mask) -> Positions:
    """Return those of the places behind which digits and points go on to one of the stops, or to the end.

    One byte more must be there behind a zero: no digit makes it a number.
    """
    goes_on, is_digit = _table(b"0123456789."), _table(b"0123456789")
    following = data[np.minimum(places + 1, data.size - 1)]
    is_code = (data[places] == _PLUS) | ((data[places] == _ZERO) & is_digit[following])
    places = places[is_code & goes_on[following] & (places + 1 < data.size)]
    kept, at = [places[:0]], places + 2
    while at.size:
        there = data[np.minimum(at, data.size - 1)]
        is_end = (at >= data.size) | stops[there]
        kept.append(places[is_end])
        on = ~is_end & goes_on[there]
        places, at = places[on], at[on] + 1
    return np.concatenate(kept)
