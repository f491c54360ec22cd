"""Times of slices: seconds, dates and text, in UTC."""

from __future__ import annotations

from datetime import date, datetime
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from recshuf.errors import UsageError
from recshuf.run.stores.pile_store import parse_time


def test_times_are_utc() -> None:
    for given in (np.int64(60), np.float32(60), Fraction(60)):
        assert parse_time(given) == 60
    assert parse_time(date(1970, 1, 2)) == 86_400
    assert parse_time("1970-01-01T00:01") == parse_time("1970-01-01T01:01+01:00") == parse_time("60") == 60


def test_a_time_that_may_be_a_date_or_seconds_is_refused() -> None:
    for given in ["20260131", "19700101", "2026", "1970"]:
        day = f"{given[:4]}-{given[4:6] or '01'}-{given[6:] or '01'}"
        with pytest.raises(
            UsageError, match=f"may be a date or seconds since 1970; write {day}, or {given}.0$"
        ):
            parse_time(given)
        assert parse_time(f"{given}.0") == parse_time(int(given)) == int(given)


def test_times_outside_the_calendar_of_utc_are_refused() -> None:
    for given in [
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00+14:00",
        datetime.max,
        pd.NaT,
        10**400,
        -(10**400),
    ]:
        with pytest.raises(UsageError, match=r"is no time; give .* in the years 1 to 9999 of UTC$"):
            parse_time(given)
