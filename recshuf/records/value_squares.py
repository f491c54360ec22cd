"""How uneven the values of records are: the sum over all values of the square of their numbers of records, about.

Values are counted in few counters, each with a sign that is random for each value, so that in the mean of the squares of the
counters all products of two values cancel (AMS sketch). The standard error is `sqrt(2 / COUNTERS)`, 4.4 %.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


COUNTERS = 1024
_SHIFT = np.uint64(64 - 10)


def count_values(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the counters of records, given the word of the value of each; those of several batches are added up.

    >>> estimate_squares(count_values(np.array([5, 5, 5], np.uint64)))
    9.0
    """
    signs = 1.0 - 2.0 * (words & np.uint64(1))
    counters = np.bincount((words >> _SHIFT).astype(np.intp), signs, COUNTERS)
    return counters.astype(np.int64)


def estimate_squares(counters: NDArray[np.int64]) -> float:
    """Return the sum over all values of the square of the number of their records, about."""
    return float((counters.astype(np.float64) ** 2).sum())


def find_deviation(share: float, counters: NDArray[np.int64]) -> int:
    """Return the standard deviation of the size of a part, over all split seeds, about.

    >>> find_deviation(0.5, count_values(np.array([5, 5, 5, 5], np.uint64)))
    2
    """
    return round(math.sqrt(share * (1 - share) * estimate_squares(counters)))


def pack_counters(counters: NDArray[np.int64]) -> str:
    """Return counters as text, for JSON."""
    return base64.b64encode(zlib.compress(counters.astype("<i8").tobytes())).decode()


def unpack_counters(text: str) -> NDArray[np.int64]:
    """Return the counters that `pack_counters` has packed."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").astype(np.int64)
