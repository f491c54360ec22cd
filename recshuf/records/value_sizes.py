"""How many records each value of a pile has, and the largest of them, without holding all keys; and how uneven values are.

This is the sum over all values of the square of their numbers of records, about. Values are counted in few counters, each
with a sign that is random for each value, so that in the mean of the squares of the counters all products of two values cancel
(AMS sketch). The standard error is `sqrt(2 / COUNTERS)`, 4.4 %.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.records.key_makers import VALUE_WORDS, find_starts, find_words
from recshuf.records.keys import sort_by_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from recshuf.records.batch import Records


_MOST_VALUES = 1 << 16
"""Values that are kept at once, those of the most bytes: a value that comes to matter has many of each part."""
COUNTERS = 1024
_SHIFT = np.uint64(64 - 10)


class ValueSize(NamedTuple):
    """The records of one value."""

    records: int
    byte_count: int
    """Bytes of these, with their keys."""


def find_largest(parts: Iterable[Records], word_count: int) -> ValueSize:
    """Return the size of the largest value in records that are given in parts, each in any order.

    With more values than are kept at once, it is too small by what fell among the smallest of some parts.
    """
    words, sizes = np.zeros((VALUE_WORDS, 0), np.uint64), np.zeros((len(ValueSize._fields), 0), np.int64)
    for records in parts:
        own = np.array(find_words(records, word_count)[:VALUE_WORDS])
        index = sort_by_words(list(own))
        ordered = records.take(index)
        starts = find_starts(list(own[:, index]))
        edges = np.append(starts, len(records))
        counted = np.array([np.diff(edges), np.diff(ordered.bytes_before(edges))])
        words, sizes = _merge(np.hstack([words, own[:, index[starts]]]), np.hstack([sizes, counted]))
    largest = int(np.argmax(sizes[1]))
    return ValueSize(*sizes[:, largest].tolist())


def count_distinct_bytes(parts: Iterable[Records]) -> int:
    """Return the bytes of one record of each value, the largest, of records that are given in parts, each in any order."""
    keys, sizes = [np.zeros((VALUE_WORDS, 0), np.uint64)], [np.zeros(0, np.int64)]
    for records in parts:
        keys.append(np.array(find_words(records, VALUE_WORDS)))
        sizes.append(np.diff(records.bytes_before(np.arange(len(records) + 1))))
    words = list(np.hstack(keys))
    index = sort_by_words(words)
    starts = find_starts([word[index] for word in words])
    return int(np.maximum.reduceat(np.concatenate(sizes)[index], starts).sum())


def _merge(
    words: NDArray[np.uint64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return values with the sum of their sizes, the largest ones if there are too many."""
    index = sort_by_words(list(words))
    words, sizes = words[:, index], sizes[:, index]
    starts = find_starts(list(words))
    words, sizes = words[:, starts], np.add.reduceat(sizes, starts, axis=1)
    if len(starts) > _MOST_VALUES:
        kept = np.sort(np.argpartition(sizes[1], -_MOST_VALUES // 2)[-_MOST_VALUES // 2 :])
        words, sizes = words[:, kept], sizes[:, kept]
    return words, sizes


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
    return base64.b64encode(zlib.compress(counters.astype("<i8").tobytes())).decode()


def unpack_counters(text: str) -> NDArray[np.int64]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").astype(np.int64)
