"""Arguments that are integers in a range."""

from __future__ import annotations

import operator
from typing import Any

from recshuf.errors import UsageError


def check_number(name: str, value: Any, most: int, least: int = 0) -> int:
    """Return an argument that is an integer in a range, also one of NumPy or a tensor, as a number of Python.

    Raises
    ------
    UsageError
        When it is not; names the argument and the range.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise UsageError(f"{name}={value!r}: give an integer from {least:,} to {most:,}")
    return number
