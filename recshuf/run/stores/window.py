"""The window of a store: which slices are too old or too many."""

from __future__ import annotations

import sys
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING

from recshuf.system.numbers import check_number
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.job.options import Size
    from recshuf.piles.store.snapshots import SetEntry


def find_expired(sets: Sequence[SetEntry], limits: dict[str, float]) -> set[str]:
    """Return the names of the sets that leave a window. Sets of one time leave together.

    >>> from recshuf.piles.store.snapshots import SetEntry
    >>> sets = [SetEntry("a", 5, 50, 0, "", 1.0), SetEntry("b", 5, 50, 0, "", 2.0), SetEntry("c", 5, 50, 0)]
    >>> sorted(find_expired(sets, {"records": 9})), sorted(find_expired(sets, {"before": 2.0}))
    (['a', 'c'], ['a', 'c'])
    """
    newest_first = sorted(sets, key=lambda one: (one.age_key, one.name), reverse=True)
    expired: set[str] = set()
    records, byte_count = 0, 0
    for _, same_time in groupby(newest_first, lambda one: one.name if one.time is None else one.time):
        members = list(same_time)
        records += sum(one.records for one in members)
        byte_count += sum(one.byte_count for one in members)
        time = members[0].age_key
        is_old = time < limits.get("before", time)
        if is_old or records > limits.get("records", records) or byte_count > limits.get("bytes", byte_count):
            expired.update(one.name for one in members)
    return expired


def parse_bytes(size: Size) -> int:
    """Return a number of bytes, given as one or as text such as ``"300MB"``."""
    number = parse_size(size) if isinstance(size, str) else size
    is_whole = not isinstance(number, float) or not isfinite(number)
    return check_number("bytes", number if is_whole else int(number), sys.maxsize)
