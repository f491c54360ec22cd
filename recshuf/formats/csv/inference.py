"""The types of CSV columns over any number of batches.

pyarrow finds the type of a column in each batch. The types of a chain hold each other's values::

    null < int64 < double               < string < binary
    null < bool                         < string
    null < date32 < timestamp[s] < [ns] < string
    null < timestamp[s, UTC] < [ns, UTC] < string
    null < time32[s]                    < string

The type of two batches is the first that holds both, so that it does not depend on how records are cut.
A column of doubles stays text if one of its numbers would be altered: a whole number from 2^53 on, or one that is too
large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

_CHAINS = (
    (pa.int64(), pa.float64()),
    (pa.bool_(),),
    (pa.date32(), pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")),
    (pa.time32("s"),),
)
_NANOSECONDS = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
_EXACT = 2.0**53  # doubles hold every whole number up to it
_WHOLE = r"^\s*[+-]?\d+\s*$"
_INFINITE = r"(?i)inf"


class ColumnType:
    """The type of one column, as far as it has been observed."""

    def __init__(self) -> None:
        self._kind: pa.DataType = pa.null()
        self._fits_nanoseconds = True
        self._fits_double = True

    def observe(self, values: pa.ChunkedArray, texts: Callable[[], pa.ChunkedArray]) -> None:
        """Take the type of further values into account.

        Parameters
        ----------
        texts
            Returns the values as bytes.
        """
        self._kind = _join(self._kind, values.type)
        if self._fits_double and values.type in _CHAINS[0]:
            self._fits_double = _fits_double(values, texts)
        if self._fits_nanoseconds and pa.types.is_temporal(values.type):
            self._fits_nanoseconds = _fits_nanoseconds(values)

    @property
    def kind(self) -> pa.DataType:
        """The type that holds all values; strings if there are none."""
        if self._kind == pa.null() or (self._kind in _NANOSECONDS and not self._fits_nanoseconds):
            return pa.string()
        if self._kind == pa.float64() and not self._fits_double:
            return pa.string()
        return self._kind


def _join(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the first type that holds the values of both.

    >>> _join(pa.date32(), pa.timestamp("s")), _join(pa.bool_(), pa.int64())
    (TimestampType(timestamp[s]), DataType(string))
    """
    if one == other or other == pa.null():
        return one
    if one == pa.null():
        return other
    for chain in _CHAINS:
        if one in chain and other in chain:
            return chain[max(chain.index(one), chain.index(other))]
    return pa.binary() if pa.binary() in (one, other) else pa.string()


def _fits_double(values: pa.ChunkedArray, texts: Callable[[], pa.ChunkedArray]) -> bool:
    """Tell whether doubles hold all numbers as they are written, apart from decimal places."""
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None or max(-bounds["min"], bounds["max"]) < _EXACT:
        return True
    if values.type == pa.int64():
        return False
    large = pc.filter(
        pa.table([values, texts()], ["value", "text"]), pc.greater_equal(pc.abs(values), _EXACT)
    )
    text = large["text"]
    too_large = pc.and_(pc.is_inf(large["value"]), pc.invert(pc.match_substring_regex(text, _INFINITE)))
    altered = pc.or_(pc.match_substring_regex(text, _WHOLE), too_large)
    return not pc.any(altered, min_count=0).as_py()


def _fits_nanoseconds(values: pa.ChunkedArray) -> bool:
    if pa.types.is_time(values.type):
        return True
    try:
        values.cast(pa.timestamp("ns", getattr(values.type, "tz", None)))
    except pa.ArrowInvalid:
        return False
    return True
