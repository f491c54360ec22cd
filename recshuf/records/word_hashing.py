"""Keyed hashes of values given as bytes or words: two sums of products, exact in floats, and a nonlinear bijection.

Item j of a value, a signed integer of 16 bits, adds to each of two sums

    item * key

where keys are random integers of 33 bits, one for each index and sum. Two different values have equal sums with
probability 2^-33 or less, in both sums 2^-66. A tile of 32 items has sums below 2^53, which a product of matrices of
floats finds exactly, whatever the order of its additions. Sums of tiles are added as integers.

Byte strings longer than `BLOCK_BYTES` have a seeded XXH3 of 128 bits in place of sums: one call each then costs less.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.random import Philox, SeedSequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    Mask = NDArray[np.bool_]


_TILE_BYTES = 64
_TILE_ITEMS = _TILE_BYTES // 2
_TILE_WORDS = _TILE_BYTES // 8
_WORD_ITEMS = 4
_BLOCK_TILES = 8
BLOCK_BYTES = _TILE_BYTES * _BLOCK_TILES
_KEY_SHIFT = np.uint64(64 - 33)
_ROWS = 16384
"""Values hashed at once: their starts, lengths and sums fit the L2 cache."""
_TILES = 2048
"""Tiles multiplied at once. They fit the L2 cache as floats, and OpenBLAS starts no threads for products of up to 2^18."""
_LEAST_KEYS = 256
_HALF = np.uint64(32)
_SHIFTS = (np.uint64(32), np.uint64(29), np.uint64(32))
_MIXERS = 2**20
_MASKS = {width: np.tri(width + 1, width, -1, np.uint8) * np.uint8(255) for width in (_TILE_BYTES, 32, 16, 8)}
"""By width: row k keeps the first k bytes."""


class HashKey:
    """The key of a family of hashes: random without a seed, so that nobody can prepare collisions."""

    def __init__(self, seed: int | None = None) -> None:
        self._seed = secrets.randbits(128) if seed is None else seed
        self._tables: dict[int, NDArray[np.float64]] = {}
        drawn = self._draw(_MIXERS, 5)
        self.long_seed = int(drawn[0, 0])
        """That of the XXH3 of long byte strings."""
        self.offsets = drawn[:, 1:2]
        """Added by `mix` first, shape ``(2, 1)``: zeros of two keys have two hashes."""
        self.mixers = drawn[:, 2:] | np.uint64(1)
        """Odd factors of `mix`, shape ``(2, 3)``."""

    def table(self, domain: int, count: int) -> NDArray[np.float64]:
        """Return the keys of `count` items, shape ``(2, count)``; each domain has its own keys."""
        table = self._tables.get(domain)
        if table is None or table.shape[1] < count:
            # A longer table begins like a shorter one.
            drawn = self._draw(domain, max(2 * count, _LEAST_KEYS)) >> _KEY_SHIFT
            self._tables[domain] = table = drawn.astype(np.float64)
        return table[:, :count]

    def _draw(self, domain: int, count: int) -> Words:
        stream = Philox(SeedSequence(self._seed, spawn_key=(domain,)))
        return np.ascontiguousarray(stream.random_raw(2 * count).reshape(count, 2).T)


def mix(sums: Words, key: HashKey) -> Words:
    """Turn sums into hashes by a nonlinear bijection; overwrites and returns `sums`, shape ``(2, n)``.

    Without it, the sum over all records would stay the same if two records swapped words.
    """
    sums += key.offsets
    first, second = sums
    _scramble(first, key.mixers[0])
    second += first
    _scramble(second, key.mixers[1])
    return sums


def _scramble(values: Words, factors: Words) -> None:
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
        return ByteStrings(self.data, self.starts[index], self.lengths[index])


def hash_bytes(strings: ByteStrings, key: HashKey, domain: int) -> Words:
    """Return two words of n byte strings, shape ``(2, n)``."""
    lengths = strings.lengths
    if not lengths.size or int(lengths.max()) <= BLOCK_BYTES:
        return _hash_blocks(strings, key, domain)
    hashes = np.empty((2, len(lengths)), np.uint64)
    long = lengths > BLOCK_BYTES
    hashes[:, ~long] = _hash_blocks(strings.take(~long), key, domain)
    hashes[:, long] = _hash_long(strings.take(long), (key.long_seed + domain) % 2**64)
    return hashes


def _hash_long(strings: ByteStrings, seed: int) -> Words:
    view, find = strings.data.data, xxhash.xxh3_128_digest
    edges = zip(strings.starts.tolist(), (strings.starts + strings.lengths).tolist(), strict=True)
    digests = b"".join([find(view[start:end], seed) for start, end in edges])
    return np.frombuffer(digests, np.uint64).reshape(-1, 2).T


def _hash_blocks(strings: ByteStrings, key: HashKey, domain: int) -> Words:
    """Return the sums of byte strings of at most one block."""
    if strings.data.size < _TILE_BYTES:
        strings = strings._replace(data=np.pad(strings.data, (0, _TILE_BYTES)))
    count, keys = len(strings.starts), key.table(domain, _TILE_ITEMS * _BLOCK_TILES + 1)
    sums, scratch = np.empty((2, count), np.int64), np.empty((_TILES, _TILE_ITEMS))
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        sums[:, rows] = _hash_some_blocks(strings.take(rows), keys, scratch)
    return sums.view(np.uint64)


def _hash_some_blocks(
    strings: ByteStrings, keys: NDArray[np.float64], scratch: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the sums of byte strings of at most one block: of whole tiles, then of the last 64 bytes, and the length."""
    data, starts, lengths = strings
    sums = keys[:, -1:].astype(np.int64) * lengths
    *whole, last = (
        keys[:, first : first + _TILE_ITEMS] for first in range(0, keys.shape[1] - 1, _TILE_ITEMS)
    )
    view = np.ndarray((data.size - _TILE_BYTES + 1,), f"V{_TILE_BYTES}", data.data, 0, (1,))
    for index, tile_keys in enumerate(whole):
        longer = np.flatnonzero(lengths > _TILE_BYTES * (index + 1))
        if not longer.size:
            break
        _add_tiles(sums, longer, view, starts[longer] + _TILE_BYTES * index, tile_keys, scratch)
        if not index:
            _add_tiles(sums, longer, view, (starts + lengths)[longer] - _TILE_BYTES, last, scratch)
    short = np.flatnonzero(lengths <= _TILE_BYTES)
    if short.size:
        _add_short(sums, short, strings, last, scratch)
    return sums


def _add_tiles(
    sums: NDArray[np.int64],
    rows: NDArray[np.int64],
    view: NDArray[np.void],
    offsets: NDArray[np.int64],
    keys: NDArray[np.float64],
    scratch: NDArray[np.float64],
) -> None:
    """Add a tile each to the sums of `rows`, ascending."""
    has_all = len(rows) == sums.shape[1]
    for start in range(0, len(rows), _TILES):
        piece = slice(start, start + _TILES)
        _add_products(sums, piece if has_all else rows[piece], view[offsets[piece]], keys, scratch)


def _add_products(
    sums: NDArray[np.int64],
    rows: slice | NDArray[np.int64],
    tiles: NDArray[Any],
    keys: NDArray[np.float64],
    scratch: NDArray[np.float64],
) -> None:
    """Add a tile each, all of the same size, to the sums of `rows`; sums have the shape ``(2, n)``."""
    integers = tiles.view(np.int16).reshape(-1, keys.shape[1])
    items = scratch[: len(integers), : keys.shape[1]]
    items[:] = integers
    if keys.shape[1] == _TILE_ITEMS:  # products by two vectors take half of one by a matrix
        products = [np.dot(items, key) for key in keys]
    else:  # BLAS takes a narrow factor on the right, if it is contiguous, in 0.4 of the time of one on the left
        products = list((items @ np.ascontiguousarray(keys.T)).T)
    for lane, product in zip(sums, products, strict=True):
        lane[rows] += product.astype(np.int64)


def _add_short(
    sums: NDArray[np.int64],
    rows: NDArray[np.int64],
    strings: ByteStrings,
    keys: NDArray[np.float64],
    scratch: NDArray[np.float64],
) -> None:
    """Add those of `rows`, of at most a tile. What follows them is masked, so they may as well be read as smaller tiles."""
    has_all = len(rows) == sums.shape[1]
    data, starts, lengths = strings if has_all else strings.take(rows)
    longest = int(lengths.max())
    width = next(width for width in reversed(_MASKS) if longest <= width)
    end = data.size - width
    view = np.ndarray((end + 1,), f"V{width}", data.data, 0, (1,))
    masks = _MASKS[width].view(view.dtype).reshape(-1)
    for start in range(0, len(rows), _TILES):
        piece = slice(start, start + _TILES)
        places = starts[piece]
        tiles = view[np.minimum(places, end)]
        if int(places.max()) > end:
            late = np.flatnonzero((places > end) & (lengths[piece] > 0))
            rest = np.ndarray((width + 1,), view.dtype, np.pad(data[end:], (0, width)).data, 0, (1,))
            tiles[late] = rest[places[late] - end]
        words = tiles.view(np.uint64)
        words &= masks[lengths[piece]].view(np.uint64)
        _add_products(sums, piece if has_all else rows[piece], words, keys[:, : width // 2], scratch)


def combine(
    parts: Iterable[tuple[Sequence[Words], Mask | None]], count: int, key: HashKey, domain: int
) -> Words:
    """Return the sums of n values that consist of several parts, shape ``(2, n)``.

    A part has its words, arrays of shape ``(n,)``, and its mask of nulls. It is let go when its words are summed.
    """
    sums = np.zeros((2, count), np.int64)
    columns: list[tuple[int, Words]] = []
    place = 0
    for words, nulls in parts:
        if nulls is not None:
            sums += key.table(domain, _WORD_ITEMS * place + 1)[:, -1:].astype(np.int64) * nulls
            words = [word * ~nulls for word in words]
        columns += enumerate(words, place + 1)
        place += 1 + len(words)
        while len(columns) >= _TILE_WORDS:
            _add_words(sums, columns[:_TILE_WORDS], key, domain)
            del columns[:_TILE_WORDS]
    if columns:
        _add_words(sums, columns, key, domain)
    return sums.view(np.uint64)


def _add_words(
    sums: NDArray[np.int64], columns: Sequence[tuple[int, Words]], key: HashKey, domain: int
) -> None:
    """Add columns of n words, each with the place of its keys, to sums of shape ``(2, n)``."""
    items = [_WORD_ITEMS * place + item for place, _ in columns for item in range(_WORD_ITEMS)]
    keys = np.ascontiguousarray(key.table(domain, items[-1] + 1)[:, items])
    scratch = np.empty((_TILES, _TILE_ITEMS))
    for start in range(0, sums.shape[1], _TILES):
        rows = slice(start, start + _TILES)
        tiles = np.stack([words[rows] for _, words in columns], axis=1)
        _add_products(sums, rows, tiles, keys, scratch)


def add_nulls(
    hashes: Words, owners: NDArray[np.int64], positions: NDArray[np.int64], key: HashKey, domain: int
) -> None:
    """Change `hashes` of lists that hold nulls: null i is item ``positions[i]`` of list ``owners[i]``, ascending."""
    factors = key.table(domain, 1).astype(np.uint64)
    words = mix(factors * (positions + 1).view(np.uint64), key)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    hashes[:, owners[first]] += np.add.reduceat(words, first, axis=1)
