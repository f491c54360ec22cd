"""A split: which part of a data set each record belongs to, exact in count.

Every record has a second key: output number ``r`` of ``Philox(SeedSequence(seed, spawn_key=(*stream_of("split"), i)))``
for row ``r`` of input ``i``, independent of the one that orders it. The records that come first by (second key, input, row)
are the first part, and so on. So any choice of so many records is equally likely.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.records.keys import RowRange, draw_keys, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


_STREAM = stream_of("split")
_CHUNK_ROWS = 1 << 20
_BUCKET_BITS = 16


def apportion(total: int, weights: Sequence[float | Fraction]) -> list[int]:
    """Return whole numbers in proportion to weights, whose sum is the total: those of the largest remainders.

    >>> apportion(10, [2, 1, 1])
    [5, 3, 2]
    """
    parts = [Fraction(weight) for weight in weights]
    whole = sum(parts)
    exact = [total * part / whole for part in parts]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def count_before(done: int, counts: Sequence[int], lane: int = 0, lanes: int = 1) -> list[int]:
    """Return how many of the first `done` records are of each part, if these have `counts` records in all.

    The first part gets its share rounded down, the second its share of what is left, and so on. No number falls when
    `done` rises, the sum is `done`, and at the end the numbers are `counts`. With n > 1 parts, a number, and what is
    added to it from one `done` to another, is off the exact share by less than n - 1; remainders add up from part to part.
    Lane l of L is ahead by l / L of a record, so that lanes with the same counts take turns: of two parts, all lanes
    together have the share of the first of all their records, rounded down.

    >>> [count_before(done, [2, 1, 1]) for done in range(5)]
    [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [2, 1, 1]]
    >>> [count_before(1, [2, 2], lane, 2) for lane in range(2)]
    [[0, 1], [1, 0]]
    """
    shares, left = [], sum(counts)
    for count in counts:
        share = (done * count * lanes + lane * left) // (left * lanes) if left else 0
        shares.append(share)
        done, left = done - share, left - count
    return shares


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a data set."""

    seed: int
    bounds: tuple[tuple[int, int, int] | None, ...]
    stream: tuple[int, ...] = _STREAM
    """First numbers of the spawn keys of the keys that choose the part; see `draw_keys`."""

    @classmethod
    def find(
        cls,
        seed: int,
        counts: Sequence[int],
        sizes: Sequence[int],
        stream: tuple[int, ...] = _STREAM,
        first_input: int = 0,
    ) -> Split:
        """Return the split of inputs of so many records, numbered from `first_input`, into parts of these `sizes`.

        No record is read: keys are drawn twice, to count them and to find those at the bounds.
        """
        ranks, total = list(accumulate(sizes[:-1])), int(sum(counts))
        ranges = partial(_cut, counts, first_input)
        inside = sorted({rank for rank in ranks if rank < total})
        bounds = _find_ranks(seed, stream, ranges, inside, min(_BUCKET_BITS, max(1, total.bit_length())))
        return cls(seed, tuple(bounds.get(rank) for rank in ranks), stream)

    def to_json(self) -> list[tuple[int, int, int] | None]:
        return [*self.bounds]

    @classmethod
    def from_json(cls, seed: int, bounds: Iterable[Sequence[int] | None]) -> Split:
        return cls(seed, tuple(None if one is None else (one[0], one[1], one[2]) for one in bounds))

    def find_parts(self, ranges: Sequence[RowRange]) -> NDArray[np.uint8]:
        """Return the part of each record of some row ranges in turn, shape ``(n,)``."""
        keys = draw_keys(self.seed, ranges, self.stream)
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
    for span in ranges:
        if index < span.rows:
            return span.input_index, span.first_row + index
        index -= span.rows
    raise IndexError(index)


def _cut(counts: Sequence[int], first_input: int) -> Iterator[RowRange]:
    for index, count in enumerate(counts, first_input):
        for first in range(0, count, _CHUNK_ROWS):
            yield RowRange(index, first, min(_CHUNK_ROWS, count - first))


def _find_ranks(
    seed: int, stream: tuple[int, ...], cut: Callable[[], Iterator[RowRange]], ranks: Sequence[int], bits: int
) -> dict[int, tuple[int, int, int]]:
    """Return key, input and row of the records of some ascending ranks, from 0, by the keys of a stream.

    Keys are counted by their first bits: many samples of few records take fewer.
    """
    shift = np.uint64(64 - bits)
    sizes = np.zeros(1 << bits, np.int64)
    for span in cut():
        buckets = (draw_keys(seed, [span], stream) >> shift).astype(np.intp)
        sizes += np.bincount(buckets, minlength=len(sizes))
    ends = np.cumsum(sizes)
    wanted = np.zeros(len(sizes), np.bool_)
    wanted[np.searchsorted(ends, ranks, side="right")] = True
    chosen: list[tuple[int, int, int]] = []
    for span in cut():
        keys = draw_keys(seed, [span], stream)
        rows = np.flatnonzero(wanted[(keys >> shift).astype(np.intp)])
        chosen += [
            (key, span.input_index, span.first_row + row)
            for key, row in zip(keys[rows].tolist(), rows.tolist(), strict=True)
        ]
    chosen.sort()
    # Records in buckets that are not wanted come before or after all in those that are.
    skipped = np.cumsum(np.where(wanted, 0, sizes))
    return {rank: chosen[rank - int(skipped[np.searchsorted(ends, rank, side="right")])] for rank in ranks}
