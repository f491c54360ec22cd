"""Dates and times as text: ISO 8601 has four digits for the year and 24 hours for a day."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks of each unit."""
_SECONDS_PER_DAY = 86_400
_FIRST_DAY = (
    -719_528
)  # 0000-01-01; earlier dates, and those after 9999-12-31, need a convention beyond ISO 8601
_LAST_DAY = 2_932_896
_FIRST_READ = -(2**63 // 10**9) * 10**9  # the first whole second of int64, in nanoseconds
_UNSAID = "a date or time lies outside of what ISO 8601 text can say (years 0000 to 9999, times of one day)"
_UNREAD = "a date or time lies before 1677-09-21T00:12:44, the first whole second of timestamp[ns]; its text cannot be read back"


def check_times(array: pa.Array, field: str) -> None:
    """Check that text can say all values of an array of dates, times of day, or time stamps, these in UTC.

    Arrow reads no text within the first second of timestamp[ns], which is not a whole one.

    Raises
    ------
    ConversionError
        When it cannot; Arrow would write an error in place of the value.
    """
    kind = array.type
    ticks = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pt.is_date32(kind):
        _check_range(ticks, _FIRST_DAY, _LAST_DAY, field)
        return
    per_day = _SECONDS_PER_DAY * PER_SECOND["ms" if pt.is_date64(kind) else kind.unit]
    if pt.is_time(kind):
        _check_range(ticks, 0, per_day - 1, field)
        return
    if pt.is_date64(kind) and not has_factor(ticks, per_day):
        raise ConversionError(field, "a date64 holds a time of day", remedy="make it a timestamp")
    if pt.is_timestamp(kind) and kind.unit == "ns":
        _check_range(ticks, _FIRST_READ, 2**63 - 1, field, _UNREAD)
        return
    _check_range(ticks, _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1, field)


def has_factor(values: pa.Array, factor: int) -> bool:
    """Return whether all integers of an array are multiples of a number."""
    multiples = pc.multiply(pc.divide(values, factor), factor)
    return bool(pc.all(pc.equal(multiples, values), min_count=0).as_py())


def _check_range(values: pa.Array, low: int, high: int, field: str, problem: str = _UNSAID) -> None:
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] <= high:
        raise ConversionError(
            field,
            problem,
            remedy="convert the column to integers first",
        )
