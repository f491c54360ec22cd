"""Times of slices, as users give them."""

from __future__ import annotations

import time as clock
from contextlib import suppress
from datetime import UTC, date, datetime
from numbers import Real
from typing import Any, cast

from recshuf.errors import UsageError


def parse_time(given: Any) -> float:
    """Return seconds since 1970; None means now.

    >>> parse_time("1970-01-02"), parse_time(5), parse_time("1970-01-01T00:00:01+00:00")
    (86400.0, 5.0, 1.0)
    """
    if given is None:
        return clock.time()
    found: Any = _parse_text(given) if isinstance(given, str) else given
    if isinstance(found, date) and not isinstance(found, datetime):
        found = datetime(found.year, found.month, found.day, tzinfo=UTC)
    is_number = isinstance(found, Real) and not isinstance(found, bool)
    if not is_number and not isinstance(found, datetime):
        raise UsageError(
            f"{given!r} is no time; give seconds since 1970, a datetime, or text such as 2026-01-31"
        )
    try:
        seconds = float(found) if is_number else _count_seconds(found)
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        shown = str(given) if isinstance(given, datetime) else f"{given!r:.80}"
        raise UsageError(
            f"{shown} is no time; give seconds since 1970, or a time, in the years 1 to 9999 of UTC"
        ) from None
    return seconds


def _count_seconds(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _parse_text(text: str) -> float | datetime:
    """Return seconds since 1970, or a time."""
    seconds: float | None = None
    day: datetime | None = None
    with suppress(ValueError):
        seconds = float(text)
    with suppress(ValueError):
        is_year = text.strip().isdecimal() and len(text.strip()) == 4
        day = datetime(int(text), 1, 1, tzinfo=UTC) if is_year else datetime.fromisoformat(text)
    if seconds is not None and day is not None:
        raise UsageError(f"{text!r} may be a date or seconds since 1970; write {day:%Y-%m-%d}, or {text}.0")
    if seconds is None and day is None:
        raise UsageError(
            f"{text!r} is no time; write 2026-01-31, 2026-01-31T12:00:00Z, or seconds since 1970"
        )
    return cast("float | datetime", seconds if day is None else day)
