"""How often each record is taken: whole copies of all records of a source, and once more those of a sample.

A source is the inputs of one argument, of n records in all. Of c records to take, each is taken ``c // n`` times, and the
``c % n`` records of the smallest (key, input, row) once more, by the keys of the stream "sample". Copy 0 of a record has
its own key. Copy e has output ``r`` of ``Philox(SeedSequence(seed, spawn_key=(*stream_of("copy"), e, i)))`` for row ``r`` of
input ``i``. So given the counts, sample and order are uniform and independent of each other.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.records.key_makers import KeyedRows, KeyMaker
from recshuf.records.keys import RowRange, draw_keys, stream_of
from recshuf.records.split import Split, apportion

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


_SAMPLE, _COPY = stream_of("sample"), stream_of("copy")
_HALF = Fraction(1, 2)


class Quota(NamedTuple):
    """How many records of a source are taken."""

    inputs: range
    records: int
    taken: int

    @property
    def most_copies(self) -> int:
        return -(-self.taken // self.records) if self.records else 0


def count_copies(records: Sequence[int], copies: Sequence[Fraction]) -> list[int]:
    """Return how many records to take of sources of so many records.

    >>> count_copies([10, 3], [Fraction(3), Fraction("0.5")])
    [30, 2]
    """
    return [floor(count * number + _HALF) for count, number in zip(records, copies, strict=True)]


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
    """
    edges = np.searchsorted(arguments, np.arange(len(copies or weights) + 1)).tolist()
    sources = [range(start, stop) for start, stop in pairwise(edges)]
    sizes = [sum(counts[own.start : own.stop]) for own in sources]
    taken = count_copies(sizes, copies) if copies else apportion(total, weights)
    return [Quota(*one) for one in zip(sources, sizes, taken, strict=True)]


class CopyKeys(KeyMaker):
    """Keys of records that are taken several times, or not at all.

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
