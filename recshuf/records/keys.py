"""The order: keys of records, piles of keys, and sorting by key.

Order version 1. The key of record ``r`` of input ``i`` is output number ``r`` of
``Philox(SeedSequence(seed, spawn_key=(i,)))``; the output of a run is its records sorted by
``(key, i, r)``. Independent uniform keys make every order equally likely. The raw Philox stream is frozen by
NumPy's compatibility policy, so a seed always means the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.random import Philox, SeedSequence

from recshuf.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def part(self, piles: range, pile_count: int) -> KeyRange:
        """Return a slightly larger range around some of the `pile_count` piles in this range.

        >>> KeyRange().part(range(1, 2), 4) == KeyRange(low=2**62, shift=30)
        True
        """
        first = -(-(piles.start << 32) // pile_count)
        end = -(-(piles.stop << 32) // pile_count)
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
