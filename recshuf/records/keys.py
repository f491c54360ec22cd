"""The order: keys of records, piles of keys, and sorting by key. And a split: which part of a data set each record belongs to.

Order version 1. The key of record ``r`` of input ``i`` is output number ``r`` of
``Philox(SeedSequence(seed, spawn_key=(i,)))``; the output of a run is its records sorted by
``(key, i, r)``. Independent uniform keys make every order equally likely. The raw Philox stream is frozen by
NumPy's compatibility policy, so a seed always means the same order.

In a split, every record has a second key: output number ``r`` of
``Philox(SeedSequence(seed, spawn_key=(*stream_of("split"), i)))``, independent of the one that orders it. The records that come
first by (second key, i, r) are the first part, and so on. So any choice of so many records is equally likely.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.random import Philox, SeedSequence

from recshuf.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


ORDER_VERSION = 1
MAX_SEED = 2**128 - 1
MAX_PILES = 1 << 16
KEY_BYTES = 8
"""Of one key, an unsigned 64-bit integer."""
_OUTPUTS_PER_STEP = 4  # Philox counts blocks of four 64-bit outputs


class RowRange(NamedTuple):
    """Consecutive rows of one input."""

    input_index: int
    first_row: int
    rows: int


def draw_keys(
    seed: int, ranges: Sequence[tuple[int, int, int]], stream: tuple[int, ...] = ()
) -> NDArray[np.uint64]:
    """Return the keys of some row ranges in turn, at least one: input, first row, and number of rows. Shape ``(n,)``.

    The stream is the first numbers of the spawn key, before that of the input. Records of different streams have independent keys.

    >>> whole = draw_keys(7, [(0, 0, 10)])
    >>> bool((draw_keys(7, [(0, 6, 3), (0, 1, 2)]) == whole[[6, 7, 8, 1, 2]]).all())
    True
    """
    keys = []
    for input_index, first_row, count in ranges:
        outputs = Philox(SeedSequence(seed, spawn_key=(*stream, input_index)))
        steps, skipped = divmod(first_row, _OUTPUTS_PER_STEP)
        outputs.advance(steps)
        keys.append(outputs.random_raw(skipped + count)[skipped:])
    return keys[0] if len(keys) == 1 else np.concatenate(keys)


def stream_of(name: str) -> tuple[int, ...]:
    """Return the first numbers of the spawn keys of a named stream: the xxh3 of the name, 128 bits, lowest word first.

    >>> len(stream_of("worker-07"))
    4
    """
    digest = xxhash.xxh3_128_intdigest(name.encode("utf-8", "surrogateescape"))
    return tuple(digest >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys ``low`` to ``low + 2**(32 + shift)``, which `find_piles` divides into piles.

    Default: all keys. A pile's own range divides it further.
    """

    low: int = 0
    shift: int = 32

    def part(self, pile: int, pile_count: int) -> KeyRange:
        """Return a slightly larger range around one of the `pile_count` piles in this range.

        >>> KeyRange().part(1, 4) == KeyRange(low=2**62, shift=30)
        True
        """
        first, end = (-(-(edge << 32) // pile_count) for edge in (pile, pile + 1))
        units = (end - first) << self.shift
        return KeyRange(self.low + (first << self.shift), max(0, (units - 1).bit_length() - 32))


def find_piles(
    keys: NDArray[np.uint64], pile_count: int, key_range: KeyRange = KeyRange()
) -> NDArray[np.uint16]:
    """Return the pile of each key, all of which lie in `key_range`.

    That is ``(key - low) / 2**(32 + shift) * pile_count``, rounded down: piles are ranges of keys in
    ascending order, so that sorting each pile and concatenating them sorts everything, whatever their number
    (at most `MAX_PILES`).

    >>> find_piles(np.array([0, 2**63, 2**64 - 1], np.uint64), 4).tolist()
    [0, 2, 3]
    """
    high = keys - np.uint64(key_range.low)
    high >>= np.uint64(key_range.shift)
    high *= np.uint64(pile_count)
    high >>= np.uint64(32)
    return high.astype(np.uint16)


def sort_by_pile(piles: NDArray[np.uint16], pile_count: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return the index array that groups records by pile, rows of a pile in their old order, and the bounds.

    Pile ``j`` is at ``bounds[j]:bounds[j + 1]`` of the grouped records; `bounds` has shape
    ``(pile_count + 1,)``.
    """
    bounds = np.zeros(pile_count + 1, np.int64)
    np.cumsum(np.bincount(piles, minlength=pile_count), out=bounds[1:])
    return np.argsort(piles, kind="stable"), bounds


def sort_by_key(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the index array that sorts by key, equal keys in their old order.

    Sorts 64-bit numbers that hold the row in the low bits and as many bits of the key as fit above it. Rows whose
    packed key bits are equal are sorted afterwards.

    >>> sort_by_key(np.array([5, 1, 5, 0], np.uint64)).tolist()
    [3, 1, 0, 2]
    """
    if not keys.size:
        return np.zeros(0, np.intp)
    row_bits = (keys.size - 1).bit_length()
    low = keys.min()
    key_bits = int(keys.max() - low).bit_length()
    packed = keys - low
    packed <<= np.uint64(64 - key_bits if key_bits else 0)
    packed >>= np.uint64(row_bits)
    packed <<= np.uint64(row_bits)
    packed |= np.arange(keys.size, dtype=np.uint64)
    packed.sort()
    index: NDArray[np.intp] = (packed & np.uint64((1 << row_bits) - 1)).view(np.intp)
    if key_bits + row_bits > 64:
        packed >>= np.uint64(row_bits)
        _mend_ties(index, packed, [keys])
    return index


def sort_by_words(words: Sequence[NDArray[np.uint64]]) -> NDArray[np.intp]:
    """Return the index array that sorts by the first word, then by the second, and so on, equal keys in their old order.

    >>> sort_by_words([np.array([5, 1, 5], np.uint64), np.array([9, 0, 2], np.uint64)]).tolist()
    [1, 2, 0]
    """
    index = sort_by_key(words[0])
    if len(words) > 1:
        _mend_ties(index, words[0][index], words)
    return index


_TIED_ROWS = 1 << 16
"""Rows whose ties are mended at once, unless more have one value."""


def _mend_ties(
    index: NDArray[np.intp], ordered: NDArray[np.uint64], words: Sequence[NDArray[np.uint64]]
) -> None:
    """Sort rows with equal values in `ordered`, which rise with the first of the words, by all words, in place."""
    tied = np.zeros(len(index) + 1, np.bool_)
    """Whether a row has the value of that before; the row behind the last has not."""
    np.equal(ordered[1:], ordered[:-1], out=tied[1:-1])
    start = 0
    while start < len(index):
        stop = min(start + _TIED_ROWS, len(index))
        while tied[stop]:
            rest = tied[stop : stop + _TIED_ROWS]
            stop += len(rest) if rest.all() else int(np.argmin(rest))
        places = start + np.flatnonzero(tied[start:stop] | tied[start + 1 : stop + 1])
        rows = index[places]
        for word in words[::-1]:
            rows = rows[np.argsort(word[rows], kind="stable")]
        index[places] = rows
        start = stop


_SPLIT = stream_of("split")
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
    stream: tuple[int, ...] = _SPLIT
    """First numbers of the spawn keys of the keys that choose the part; see `draw_keys`."""

    @classmethod
    def find(
        cls,
        seed: int,
        counts: Sequence[int],
        sizes: Sequence[int],
        stream: tuple[int, ...] = _SPLIT,
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
