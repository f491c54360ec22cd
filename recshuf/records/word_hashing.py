"""Keyed hashes of values given as 8-byte words: two sums of products, then a nonlinear bijection.

Word w at index j of a value adds, to each of two sums (mod 2^64),

    (low half of w + key) * (high half of w + key')

with random keys of index and sum. Two different values have equal sums with probability 2^-33 or less, in both sums
2^-66. A value longer than a block is hashed block by block; then the hashes of its blocks are hashed as one value.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Philox, SeedSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_BLOCK_WORDS = 64
BLOCK_BYTES = 8 * _BLOCK_WORDS
HASH_BYTES = 16
_ROWS = 12288
"""Values hashed at once: their sums and halves fit the L2 cache."""
_KEYS = 4
"""Keys of an index: for low and high half, for both sums."""
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_SHIFTS = (np.uint64(32), np.uint64(29), np.uint64(32))
_TAIL_MASKS = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)
_MIXERS = 2**20


class HashKey:
    """The key of a family of hashes: random without a seed, so that nobody can prepare collisions."""

    def __init__(self, seed: int | None = None) -> None:
        self._seed = secrets.randbits(128) if seed is None else seed
        self._tables: dict[int, NDArray[np.uint64]] = {}
        self.mixers = self._draw(_MIXERS, 2)[:, :3] | np.uint64(1)
        """Odd factors of `mix`, shape ``(2, 3)``."""

    def table(self, domain: int, count: int) -> NDArray[np.uint64]:
        """Return the keys of at least `count` indices, shape ``(>= count, 4)``; each domain has its own keys."""
        table = self._tables.get(domain)
        if table is None or len(table) < count:
            # A longer table begins like a shorter one.
            table = self._draw(domain, max(count, _BLOCK_WORDS))
            self._tables[domain] = table
        return table

    def _draw(self, domain: int, rows: int) -> NDArray[np.uint64]:
        stream = Philox(SeedSequence(self._seed, spawn_key=(domain,)))
        return stream.random_raw(rows * _KEYS).reshape(rows, _KEYS)


class WordSums:
    """The two sums of n values, to which words are added index by index."""

    def __init__(self, count: int) -> None:
        self.sums: NDArray[np.uint64] = np.zeros((2, count), np.uint64)
        self._scratch: NDArray[np.uint64] = np.empty((4, count), np.uint64)

    def add(
        self,
        words: NDArray[np.uint64],
        keys: NDArray[np.uint64],
        nulls: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the words of one index to the first ``len(words)`` values; nulls add nothing."""
        count = len(words)
        low, high, first, second = self._scratch[:, :count]
        np.bitwise_and(words, _LOW, out=low)
        np.right_shift(words, _HALF, out=high)
        for lane in range(2):
            np.add(low, keys[2 * lane], out=first)
            np.add(high, keys[2 * lane + 1], out=second)
            np.multiply(first, second, out=first)
            if nulls is not None:
                first[nulls] = 0
            self.sums[lane, :count] += first


def mix(sums: NDArray[np.uint64], key: HashKey) -> NDArray[np.uint64]:
    """Turn sums into hashes by a nonlinear bijection; overwrites and returns `sums`, shape ``(2, n)``.

    Without it, the sum over all records would stay the same if two records swapped words.
    """
    first, second = sums
    _scramble(first, key.mixers[0])
    second += first
    _scramble(second, key.mixers[1])
    return sums


def _scramble(values: NDArray[np.uint64], factors: NDArray[np.uint64]) -> None:
    for shift, factor in zip(_SHIFTS, factors, strict=True):
        values ^= values >> shift
        values *= factor
    values ^= values >> _HALF


class ByteStrings(NamedTuple):
    """N byte strings in one buffer."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Byte offset of each, shape ``(n,)``."""
    lengths: NDArray[np.int64]

    def take(self, index: NDArray[Any] | slice) -> ByteStrings:
        """Return some of the strings, in the same buffer."""
        return ByteStrings(self.data, self.starts[index], self.lengths[index])


def hash_bytes(strings: ByteStrings, key: HashKey, domain: int) -> NDArray[np.uint64]:
    """Return the hashes of n byte strings, shape ``(2, n)``; long ones use up to 15 domains of keys that follow."""
    lengths = strings.lengths
    if not lengths.size or int(lengths.max()) <= BLOCK_BYTES:
        return _hash_blocks(strings, key, domain)
    hashes = np.empty((2, len(lengths)), np.uint64)
    long = lengths > BLOCK_BYTES
    hashes[:, ~long] = _hash_blocks(strings.take(~long), key, domain)
    hashes[:, long] = _hash_long(strings.take(long), key, domain)
    return hashes


def _hash_long(strings: ByteStrings, key: HashKey, domain: int) -> NDArray[np.uint64]:
    data, starts, lengths = strings
    counts = -(-lengths // BLOCK_BYTES)
    firsts = np.cumsum(counts) - counts
    offsets = (np.arange(int(counts.sum())) - np.repeat(firsts, counts)) * BLOCK_BYTES
    sizes = np.minimum(np.repeat(lengths, counts) - offsets, BLOCK_BYTES)
    offsets += np.repeat(starts, counts)
    blocks = np.ascontiguousarray(_hash_blocks(ByteStrings(data, offsets, sizes), key, domain).T)
    words = ByteStrings(blocks.reshape(-1).view(np.uint8), firsts * HASH_BYTES, counts * HASH_BYTES)
    return hash_bytes(words, key, domain + 1)


def _hash_blocks(strings: ByteStrings, key: HashKey, domain: int) -> NDArray[np.uint64]:
    """Return the hashes of byte strings of at most one block."""
    count = len(strings.starts)
    hashes = np.empty((2, count), np.uint64)
    if strings.data.size < 8:
        strings = strings._replace(data=np.concatenate([strings.data, np.zeros(8, np.uint8)]))
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        hashes[:, rows] = _hash_some_blocks(strings.take(rows), key, domain)
    return hashes


def _hash_some_blocks(strings: ByteStrings, key: HashKey, domain: int) -> NDArray[np.uint64]:
    data, starts, lengths = strings
    # Longest first: the values that have a word at an index are the first ones.
    words = ((lengths + 7) >> 3).astype(np.uint8)
    order = np.argsort(words, kind="stable")[::-1]
    reaching = len(words) - np.cumsum(np.bincount(words, minlength=_BLOCK_WORDS + 1))
    starts, lengths = starts[order], lengths[order]
    keys = key.table(domain, _BLOCK_WORDS + 1)
    unaligned = np.ndarray((data.size - 7,), np.uint64, data.data, 0, (1,))
    sums = WordSums(len(words))
    for index, count in enumerate(reaching.tolist()):
        if not count:
            break
        whole = int(reaching[index + 1])
        read = np.empty(count, np.uint64)
        read[:whole] = unaligned[starts[:whole] + 8 * index]
        read[whole:] = _read_tails(
            unaligned, starts[whole:count] + 8 * index, lengths[whole:count] - 8 * index
        )
        sums.add(read, keys[index])
    sums.add(lengths.view(np.uint64), keys[_BLOCK_WORDS])
    hashes = np.empty_like(sums.sums)
    hashes[:, order] = mix(sums.sums, key)
    return hashes


def _read_tails(
    unaligned: NDArray[np.uint64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the words at byte offsets of which the first `sizes` bytes, 1 to 8, count; the others become zero."""
    readable = np.minimum(offsets, len(unaligned) - 1)
    words: NDArray[np.uint64] = unaligned[readable]
    words >>= ((offsets - readable) * 8).view(np.uint64)
    words &= _TAIL_MASKS[sizes]
    return words


def combine(
    columns: Sequence[tuple[Sequence[NDArray[np.uint64]], NDArray[np.bool_] | None]],
    count: int,
    key: HashKey,
    domain: int,
) -> NDArray[np.uint64]:
    """Return the hashes of n values that consist of several parts, shape ``(2, n)``.

    A part has its words, arrays of shape ``(n,)``, and its mask of nulls.
    """
    parts = [(word, nulls) for words, nulls in columns for word in words]
    keys = key.table(domain, len(parts))
    hashes = np.empty((2, count), np.uint64)
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        sums = WordSums(min(_ROWS, count - start))
        for index, (word, nulls) in enumerate(parts):
            sums.add(word[rows], keys[index], None if nulls is None else nulls[rows])
        hashes[:, rows] = mix(sums.sums, key)
    return hashes


def add_nulls(
    hashes: NDArray[np.uint64],
    owners: NDArray[np.int64],
    positions: NDArray[np.int64],
    key: HashKey,
    domain: int,
) -> None:
    """Change `hashes` of lists that hold nulls: null i is item ``positions[i]`` of list ``owners[i]``, ascending."""
    sums = WordSums(len(owners))
    sums.add(positions.view(np.uint64), key.table(domain, 1)[0])
    words: NDArray[Any] = mix(sums.sums, key)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    hashes[:, owners[first]] += np.add.reduceat(words, first, axis=1)
