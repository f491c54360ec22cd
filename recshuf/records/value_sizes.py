"""How many records each value of a pile has, and the largest of them, without holding all keys."""

from __future__ import annotations

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
