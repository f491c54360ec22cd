"""A split: which part of a data set each record belongs to, exact in count.

Every record has a second key: output number ``r`` of ``Philox(SeedSequence(seed, spawn_key=(*stream_of("split"), i)))``
for row ``r`` of input ``i``, independent of the one that orders it. The records that come first by (second key, input, row)
are the first part, and so on. So any choice of so many records is equally likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from recshuf.records.keys import draw_keys, stream_of
from recshuf.records.rows import RowRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_STREAM = stream_of("split")
_CHUNK_ROWS = 1 << 20
_BUCKET_BITS = 16


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a data set.

    Parameters
    ----------
    bounds
        Second key, input and row of the first record of each part but the first; None for a part without records.
    """

    seed: int
    bounds: tuple[tuple[int, int, int] | None, ...]

    @classmethod
    def find(cls, seed: int, counts: Sequence[int], sizes: Sequence[int]) -> Split:
        """Return the split of inputs of so many records into parts of these `sizes`.

        No record is read: keys are drawn twice, to count them and to find those at the bounds.
        """
        ranks = list(accumulate(sizes[:-1]))
        found = _find_ranks(seed, counts, sorted({rank for rank in ranks if rank < sum(counts)}))
        return cls(seed, tuple(found.get(rank) for rank in ranks))

    def find_parts(self, ranges: Sequence[RowRange]) -> NDArray[np.uint8]:
        """Return the part of each record of some row ranges in turn, shape ``(n,)``."""
        keys = draw_keys(self.seed, ranges, _STREAM)
        parts = np.zeros(len(keys), np.uint8)
        for bound in self.bounds:
            if bound is not None:
                key, *place = bound
                after = keys > np.uint64(key)
                for index in np.flatnonzero(keys == np.uint64(key)).tolist():
                    after[index] = list(_find_place(ranges, index)) >= place
                parts += after
        return parts


def _find_place(ranges: Sequence[RowRange], index: int) -> tuple[int, int]:
    """Return input and row of a record of some row ranges."""
    for one in ranges:
        if index < one.rows:
            return one.input_index, one.first_row + index
        index -= one.rows
    raise IndexError(index)


def _cut(counts: Sequence[int]) -> Iterator[RowRange]:
    for index, count in enumerate(counts):
        for first in range(0, count, _CHUNK_ROWS):
            yield RowRange(index, first, min(_CHUNK_ROWS, count - first))


def _find_ranks(seed: int, counts: Sequence[int], ranks: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Return second key, input and row of the records of some ascending ranks, from 0."""
    shift = np.uint64(64 - _BUCKET_BITS)
    sizes = np.zeros(1 << _BUCKET_BITS, np.int64)
    for one in _cut(counts):
        buckets = (draw_keys(seed, [one], _STREAM) >> shift).astype(np.intp)
        sizes += np.bincount(buckets, minlength=len(sizes))
    ends = np.cumsum(sizes)
    wanted = np.zeros(len(sizes), np.bool_)
    wanted[np.searchsorted(ends, ranks, side="right")] = True
    chosen: list[tuple[int, int, int]] = []
    for one in _cut(counts):
        keys = draw_keys(seed, [one], _STREAM)
        rows = np.flatnonzero(wanted[(keys >> shift).astype(np.intp)])
        chosen += [
            (key, one.input_index, one.first_row + row)
            for key, row in zip(keys[rows].tolist(), rows.tolist(), strict=True)
        ]
    chosen.sort()
    # Records in buckets that are not wanted come before or after all in those that are.
    skipped = np.cumsum(np.where(wanted, 0, sizes))
    return {rank: chosen[rank - int(skipped[np.searchsorted(ends, rank, side="right")])] for rank in ranks}
