"""Finds numbers that are codes, as their first bytes show: a zero before other digits, or a plus sign.

pyarrow reads such fields as numbers. They are found among bytes, by a few passes that most inputs end without a find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.csv.quotes import Dialect
    from recshuf.formats.lines.cutting import Bytes, Positions

    Mask = NDArray[np.bool_]


_ZERO, _PLUS, _MINUS = b"0+-"
_LAST_MARK = ord(",")
"""The bytes up to this one are marks; those that begin most fields are among them."""
_PIECE_BYTES = 1 << 19
_MANY = 64
"""Places from which on it pays to count the fields before them."""


def find_codes(data: Bytes, offsets: Positions, dialect: Dialect, fields: Sequence[int] | None) -> Positions:
    """Return the rows of records that may hold a number with a zero before other digits, or with a plus sign.

    Parameters
    ----------
    fields
        Positions of the columns that matter; None for all.
    """
    places = np.concatenate([np.arange(min(2, data.size)), *_find_signs(data, dialect)])
    places = _keep_begins(data, places, dialect)
    if (
        places.size > _MANY
        and fields is not None
        and not (dialect.quote and (data == dialect.quote[0]).any())
    ):
        counts = np.cumsum(data == dialect.delimiter[0], dtype=np.int32)
        begins = offsets[np.searchsorted(offsets, places, "right") - 1]
        before = np.where(begins > 0, counts[begins - 1], 0)
        places = places[np.isin(counts[places] - before, fields)]
    places = _keep_numbers(data, places, dialect)
    return np.unique(np.searchsorted(offsets, places, "right") - 1)


def _keep_begins(data: Bytes, places: Positions, dialect: Dialect) -> Positions:
    """Return those of the places before which a field begins, but for a sign, a quote, and blanks."""
    edges, blanks, signs = _edges(dialect), _table(b" \t"), _table(b"+-")
    begins = places - (signs[data[places - 1]] & (places > 0))
    before = data[begins - 1]
    is_begin = edges[before] & (~blanks[before] | (begins == 1) | edges[data[begins - 2]])
    kept: Positions = places[(begins == 0) | is_begin]
    return kept


def _edges(dialect: Dialect) -> Mask:
    return _table(b" \t\r\n" + dialect.delimiter + dialect.quote)


def _table(members: bytes) -> Mask:
    table = np.zeros(256, np.bool_)
    table[list(members)] = True
    return table


def _find_signs(data: Bytes, dialect: Dialect) -> Iterator[Positions]:
    """Yield the places of zeros that stand between a mark and a digit, and of plus signs behind a mark."""
    marked, found, other = (np.empty(_PIECE_BYTES, np.bool_) for _ in range(3))
    digits = np.empty(_PIECE_BYTES, np.uint8)
    for at in range(0, max(0, data.size - 2), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES + 2]
        size = piece.size - 2
        mark, mask, part, digit = marked[:size], found[:size], other[:size], digits[:size]
        np.less_equal(piece[:-2], _LAST_MARK, out=mark)
        if dialect.delimiter[0] > _LAST_MARK:
            mark |= piece[:-2] == dialect.delimiter[0]
        np.equal(piece[1:-1], _ZERO, out=mask)
        mask &= mark
        np.subtract(piece[2:], np.uint8(_ZERO), out=digit)
        np.less(digit, 10, out=part)
        mask &= part
        if mask.any():
            yield np.flatnonzero(mask) + (at + 1)
        if b"+" in piece.tobytes():
            np.equal(piece[1:-1], _PLUS, out=mask)
            mask &= mark
            yield np.flatnonzero(mask) + (at + 1)
        np.equal(piece[1:-1], _MINUS, out=mask)
        mask &= mark
        if mask.any():
            mask &= piece[2:] == _ZERO
            yield np.flatnonzero(mask) + (at + 2)


def _keep_numbers(data: Bytes, places: Positions, dialect: Dialect) -> Positions:
    """Return those of the places behind which digits and points go on to the end of a field, or to an exponent.

    One byte more must be there behind a zero: no digit makes it a number.
    """
    goes_on, stops = _table(b"0123456789."), _edges(dialect) | _table(b"eE")
    is_digit = _table(b"0123456789")
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
