"""What whole arrays of values hold, for all formats of text: exact floats, times that ISO 8601 can say, UTF-8.

Functions import `pyarrow.compute` late: it takes long, and HDF5 imports this without need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SIGNIFICANT_BITS = {16: 11, 32: 24, 64: 53}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
# 0000-01-01 and 9999-12-31: dates beyond need a convention that ISO 8601 leaves open.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896
_FIRST_READ = -(2**63 // 10**9) * 10**9  # the first whole second of int64, in nanoseconds
_UNSAID = "a date or time lies outside of what ISO 8601 text can say (years 0000 to 9999, times of one day)"
_UNREAD = "a date or time lies before 1677-09-21T00:12:44, the first whole second of timestamp[ns]; its text cannot be read back"
# The well-formed byte sequences of the Unicode standard: no surrogates, nothing overlong, nothing beyond U+10FFFF.
_UTF8 = (
    r"\A(?s:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def exact_limit(kind: pa.DataType) -> int:
    """Return the number up to which floats of this type hold every whole number.

    >>> import pyarrow as pa
    >>> exact_limit(pa.float16()), exact_limit(pa.float32())
    (2048, 16777216)
    """
    return 1 << _SIGNIFICANT_BITS[kind.bit_width]


def check_times(array: pa.Array, field: str) -> None:
    """Raise `ConversionError` unless text can say all values of dates, times of day, or time stamps, these in UTC.

    Arrow would write an error in place of such a value. It reads no text within the first second of timestamp[ns], which is not a whole one.
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
    import pyarrow.compute as pc

    multiples = pc.multiply(pc.divide(values, factor), factor)
    return bool(pc.all(pc.equal(multiples, values), min_count=0).as_py())


def _check_range(values: pa.Array, low: int, high: int, field: str, problem: str = _UNSAID) -> None:
    import pyarrow.compute as pc

    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] <= high:
        raise ConversionError(field, problem, remedy="convert the column to integers first")


def find_invalid(values: pa.Array) -> NDArray[np.int64]:
    r"""Return the ascending positions of the values of a large_binary array that are not UTF-8.

    >>> import pyarrow as pa
    >>> find_invalid(pa.array([b"a", b"\xff", b"", b"\xed\xa0\x80"], pa.large_binary()))
    array([1, 3])
    """
    import pyarrow.compute as pc

    return np.flatnonzero(~pc.match_substring_regex(values, _UTF8).to_numpy(zero_copy_only=False))
