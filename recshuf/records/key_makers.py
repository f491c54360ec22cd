"""What gives rows their keys: by place, each once or several times, or by a value; and how many records values have.

Keys of more than one word have the others in columns of the batch. Records are in the order of their words, and where all of
these are equal, of input and row. The first word chooses the pile.

How uneven values are is the sum over all values of the square of their numbers of records, about. Values are counted in few
counters, each with a sign that is random for each value, so that in the mean of the squares of the counters all products of
two values cancel (AMS sketch). The standard error is `sqrt(2 / COUNTERS)`, 4.4 %.
"""

from __future__ import annotations

import base64
import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.records.arrays import take_rows, view_bytes, wrap_values
from recshuf.records.batch import Records
from recshuf.records.keys import KEY_BYTES, RowRange, Split, apportion, draw_keys, sort_by_words, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


VALUE_WORDS = 2
"""Words of the key of a value. A further one orders the records of a value."""
_WORD_NAMES = ("second", "third")
"""Names of the columns of further words, which are the last of a batch in piles."""
_MOST_VALUES = 1 << 16
"""Values that are kept at once, those of the most bytes: a value that comes to matter has many of each part."""
COUNTERS = 1024
_SHIFT = np.uint64(64 - 10)
_SAMPLE, _COPY = stream_of("sample"), stream_of("copy")
_HALF = Fraction(1, 2)


class KeyedRows(NamedTuple):
    """Rows of a batch with their keys."""

    words: tuple[NDArray[np.uint64], ...]
    """Each word of the keys, shape ``(n,)``."""
    rows: NDArray[np.intp] | None = None
    """Which rows they are, ascending; one may occur more than once. None if each row occurs once."""
    repeats: NDArray[np.intp] | None = None
    """Ascending places in `words` of records that equal earlier ones, and are to be dropped. Not beside `rows`."""
    missing: NDArray[np.bool_] | None = None
    """Which rows of the batch have no value of each field that gives keys, shape ``(F, n)``; None if none lack one."""
    values: NDArray[np.uint64] | None = None
    """A word of the value of each row of the batch, to count values; None if they are not counted."""

    def join(self, batch: pa.RecordBatch) -> Records:
        """Return the rows of the batch as records in piles. Its columns are copied if rows are left out or repeated."""
        first, *others = self.words
        if self.rows is not None:
            batch = take_rows(batch, self.rows)
        if not others:
            return Records(first, batch)
        columns = [wrap_values(word, pa.binary(KEY_BYTES)) for word in others]
        schema = extend_schema(batch.schema, len(self.words))
        return Records(first, pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema))


class KeyMaker(ABC):
    """Gives rows their keys; used by many threads."""

    most_copies = 1
    """How often a row occurs at most."""

    @abstractmethod
    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        """Return the keys of the rows of a native batch, which are those of some ranges in turn."""


@dataclass(frozen=True)
class PositionKeys(KeyMaker):
    """Keys of input and row; see `draw_keys`."""

    seed: int
    stream: tuple[int, ...] = ()

    def draw(self, _: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        return KeyedRows((draw_keys(self.seed, ranges, self.stream),))


class Quota(NamedTuple):
    """How many records of a source are taken."""

    inputs: range
    records: int
    taken: int

    @property
    def least_copies(self) -> int:
        return self.taken // self.records if self.records else 0

    @property
    def most_copies(self) -> int:
        return -(-self.taken // self.records) if self.records else 0


def list_quotas(
    counts: Sequence[int],
    arguments: Sequence[int],
    *,
    copies: Sequence[Fraction] = (),
    weights: Sequence[Fraction] = (),
    total: int = 0,
) -> list[Quota]:
    """Return the quota of each source: `copies` of it, or its share of the `total` by `weights`.

    Given are the number of records of each input, and the number of its source, which never falls.

    >>> [one.taken for one in list_quotas([4, 6, 3], [0, 0, 1], copies=[Fraction(3), Fraction("0.5")])]
    [30, 2]
    """
    edges = np.searchsorted(arguments, np.arange(len(copies or weights) + 1)).tolist()
    sources = [range(start, stop) for start, stop in pairwise(edges)]
    sizes = [sum(counts[own.start : own.stop]) for own in sources]
    if copies:
        taken = [math.floor(count * size + _HALF) for count, size in zip(copies, sizes, strict=True)]
    else:
        taken = apportion(total, weights)
    return [Quota(*one) for one in zip(sources, sizes, taken, strict=True)]


class CopyKeys(KeyMaker):
    """Keys of records that are taken several times, or not at all: whole copies of all records of a source, and a sample.

    A source is the inputs of one argument, of n records in all. Of c records to take, each is taken ``c // n`` times, and the
    ``c % n`` records of the smallest (key, input, row) once more, by the keys of the stream "sample". Copy 0 of a record has
    its own key. Copy e has output ``r`` of ``Philox(SeedSequence(seed, spawn_key=(*stream_of("copy"), e, i)))`` for row ``r`` of
    input ``i``. So given the counts, sample and order are uniform and independent of each other.

    `counts` are the numbers of records of the inputs; None if all quotas are in whole copies.
    """

    def __init__(self, seed: int, quotas: Sequence[Quota], counts: Sequence[int] | None) -> None:
        self._seed = seed
        self._samples: list[tuple[int, Split | None]] = []
        """By input: the copies of each record, and the split whose first part is taken once more; None if no record is."""
        for own, records, taken in quotas:
            whole, more = divmod(taken, records) if records else (0, 0)
            split = None
            if more and counts is not None:
                sizes, inputs = (more, records - more), counts[own.start : own.stop]
                split = Split.find(seed, inputs, sizes, _SAMPLE, own.start)
            self._samples += [(whole, split)] * len(own)
        self.most_copies = max((one.most_copies for one in quotas), default=1)

    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        keys = draw_keys(self._seed, ranges)
        counts = np.concatenate([self._count(span) for span in ranges])
        if (counts == 1).all():
            return KeyedRows((keys,))
        rows = np.repeat(np.arange(batch.num_rows), counts)
        keys, starts = keys[rows], np.cumsum(counts) - counts
        for number in range(1, int(counts.max(initial=0))):
            again = np.flatnonzero(counts > number)
            keys[starts[again] + number] = draw_keys(self._seed, ranges, (*_COPY, number))[again]
        return KeyedRows((keys,), rows)

    def _count(self, span: RowRange) -> NDArray[np.int64]:
        whole, split = self._samples[span.input_index]
        counts = np.full(span.rows, whole, np.int64)
        if split is not None:
            counts += split.find_parts([span]) == 0
        return counts


def extend_schema(schema: pa.Schema, word_count: int) -> pa.Schema:
    """Return the schema of native batches with the words of keys of `word_count` words, apart from the first."""
    for name in _WORD_NAMES[: word_count - 1]:
        schema = schema.append(pa.field(name, pa.binary(KEY_BYTES)))
    return schema


def find_words(records: Records, word_count: int) -> list[NDArray[np.uint64]]:
    batch = records.batch
    columns = range(batch.num_columns - word_count + 1, batch.num_columns)
    return [records.keys, *(view_bytes(batch.column(index)).view(np.uint64) for index in columns)]


def find_starts(words: Sequence[NDArray[np.uint64]]) -> NDArray[np.intp]:
    """Return where the key differs from that before, from 0, given the words of ordered keys.

    >>> find_starts([np.array([1, 1, 1, 2], np.uint64), np.array([3, 3, 4, 4], np.uint64)]).tolist()
    [0, 2, 3]
    """
    differs = np.zeros(len(words[0]), np.bool_)
    differs[:1] = True
    for word in words:
        differs[1:] |= word[1:] != word[:-1]
    return np.flatnonzero(differs)


def cut_rows(
    batch: pa.RecordBatch, ranges: Sequence[RowRange], count: int
) -> Iterator[tuple[pa.RecordBatch, list[RowRange]]]:
    """Yield a batch and its row ranges in so many pieces, views, apart from those without rows."""
    edges = [batch.num_rows * piece // count for piece in range(count + 1)]
    starts = np.cumsum([0, *(span.rows for span in ranges)]).tolist()
    for first, stop in pairwise(edges):
        own = []
        for span, start in zip(ranges, starts, strict=False):
            begin, end = max(first, start), min(stop, start + span.rows)
            if begin < end:
                own.append(span._replace(first_row=span.first_row + begin - start, rows=end - begin))
        if own:
            yield batch.slice(first, stop - first), own


def remove_rows(ranges: Sequence[RowRange], rows: NDArray[np.intp]) -> list[RowRange]:
    """Return row ranges without some ascending rows, which are numbered through all ranges.

    >>> from recshuf.records.keys import RowRange
    >>> remove_rows([RowRange(0, 5, 4), RowRange(1, 0, 2)], np.array([1, 3, 4]))
    [RowRange(input_index=0, first_row=5, rows=1), RowRange(input_index=0, first_row=7, rows=1), RowRange(input_index=1, first_row=1, rows=1)]
    """
    left, start = [], 0
    for span in ranges:
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + span.rows)] - start
        edges = [-1, *inside.tolist(), span.rows]
        left += [
            span._replace(first_row=span.first_row + before + 1, rows=after - before - 1)
            for before, after in pairwise(edges)
            if after - before > 1
        ]
        start += span.rows
    return left


class ValueSize(NamedTuple):
    """The records of one value."""

    records: int
    byte_count: int


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
