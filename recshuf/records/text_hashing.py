"""XXH3 of 128 bits of many texts, with a seed.

Texts of 1 to 16 bytes are hashed by NumPy as one: 23 to 43 ns each and no lock held, where a call of the library takes 90
to 110 ns with the lock of the interpreter. That path may go once the library hashes arrays.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.records.arrays import view_data, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]


PIECE_BYTES = 1 << 20
PIECE_ROWS = 1 << 14
"""Most records of a piece, and bytes but of a longer record: what is made of it as Python objects takes some 2 MB."""
_FEW = 512
"""With fewer short texts than this, calls of the library are faster than arrays."""
_SHORT = 16
_ALL = 2**64 - 1
_LOW = np.uint64(2**32 - 1)
# Constants of XXH3: primes, and the 64-bit words of its secret.
_P32 = np.uint64(0x85EBCA77 - 1)
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET = (
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
    0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
)  # fmt: skip


def cut_pieces(column: pa.LargeBinaryArray, *others: pa.LargeBinaryArray) -> Iterator[slice]:
    """Yield the rows of arrays of one length in pieces, each of at most `PIECE_ROWS` and, but for one row, `PIECE_BYTES`.

    >>> list(cut_pieces(pa.array([b"x" * 700_000, b"y" * 400_000, b"z"], pa.large_binary())))
    [slice(0, 1, None), slice(1, 3, None)]
    """
    ends = view_offsets(column)
    for other in others:
        ends = ends + view_offsets(other)
    start, count = 0, len(column)
    while start < count:
        stop = int(np.searchsorted(ends, ends[start] + PIECE_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), start + PIECE_ROWS, count)
        yield slice(start, stop)
        start = stop


def hash_texts(texts: pa.LargeBinaryArray, seed: int) -> tuple[Words, Words]:
    """Return the low and the high 64 bits of the hash of each text, shape ``(n,)``; of nulls something.

    Takes memory for some Python objects a text: give pieces.
    """
    low, high = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    if not len(texts):
        return low, high
    data, offsets = view_data(texts), view_offsets(texts).astype(np.int64, copy=False)
    starts, sizes = offsets[:-1], np.diff(offsets)
    rest = np.ones(len(texts), np.bool_)
    if data.size < _SHORT:
        data = np.concatenate([data, np.zeros(_SHORT, np.uint8)])
    for least, most, find in _SHORT_HASHES:
        rows: Any = np.flatnonzero((sizes >= least) & (sizes <= most))
        if len(rows) < _FEW:
            continue
        rest[rows] = False
        if len(rows) == len(texts):
            rows = slice(None)
        low[rows], high[rows] = find(data, starts[rows], sizes[rows], seed)
    if rest.all():
        return _hash_by_library(texts, seed)
    if (rows := np.flatnonzero(rest)).size:
        low[rows], high[rows] = _hash_by_library(texts.take(pa.array(rows)), seed)
    return low, high


def _hash_by_library(texts: pa.LargeBinaryArray, seed: int) -> tuple[Words, Words]:
    without_nulls = pa.Array.from_buffers(
        texts.type, len(texts), [None, *texts.buffers()[1:]], offset=texts.offset
    )
    digests = b"".join(map(xxhash.xxh3_128_digest, without_nulls.to_pylist(), repeat(seed)))
    words = np.frombuffer(digests, ">u8").reshape(-1, 2)
    return words[:, 1].astype(np.uint64), words[:, 0].astype(np.uint64)


def _view(data: NDArray[np.uint8], kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Return the number at every byte of `data`."""
    width = np.dtype(kind).itemsize
    return np.ndarray((data.size - width + 1,), np.dtype(kind).newbyteorder("<"), data.data, 0, (1,))


def _hash_to_3(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seed: int
) -> tuple[Words, Words]:
    places = (starts + (sizes >> 1), starts, None, starts + sizes - 1)  # from the highest byte down
    joined = np.zeros(len(starts), np.uint32)
    for place in places:
        joined <<= np.uint32(8)
        joined |= sizes.astype(np.uint32) if place is None else data[place]
    turned = joined.byteswap()
    turned = turned << np.uint32(13) | turned >> np.uint32(19)
    a, b, c, d = (word >> shift & 0xFFFFFFFF for word in _SECRET[:2] for shift in (0, 32))
    low = joined.astype(np.uint64) ^ np.uint64((a ^ b) + seed & _ALL)
    high = turned.astype(np.uint64) ^ np.uint64((c ^ d) - seed & _ALL)
    return _avalanche(low, 33, _P2, 29, _P3, 32), _avalanche(high, 33, _P2, 29, _P3, 32)


def _hash_to_8(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seed: int
) -> tuple[Words, Words]:
    words = _view(data, np.uint32)
    value = words[starts + sizes - 4].astype(np.uint64)
    value <<= np.uint64(32)
    value |= words[starts]
    seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
    value ^= np.uint64((_SECRET[2] ^ _SECRET[3]) + seed & _ALL)
    factors = (sizes.view(np.uint64) << np.uint64(2)) + np.uint64(_P1)
    low, high = _multiply(value, factors)
    high += low << np.uint64(1)
    low ^= high >> np.uint64(3)
    return _avalanche(low, 35, _MX2, 28), _avalanche(high, 37, _MX1, 32)


def _hash_to_16(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seed: int
) -> tuple[Words, Words]:
    words = _view(data, np.uint64)
    front, back = words[starts], words[starts + sizes - 8]
    front ^= back
    front ^= np.uint64((_SECRET[4] ^ _SECRET[5]) - seed & _ALL)
    low, high = _multiply(front, np.uint64(_P1))
    low += (sizes.view(np.uint64) - np.uint64(1)) << np.uint64(54)
    back ^= np.uint64((_SECRET[6] ^ _SECRET[7]) + seed & _ALL)
    high += back
    high += (back & _LOW) * _P32
    low ^= high.byteswap()
    low, carried = _multiply(low, np.uint64(_P2))
    high *= np.uint64(_P2)
    high += carried
    return _avalanche(low, 37, _MX1, 32), _avalanche(high, 37, _MX1, 32)


_SHORT_HASHES: tuple[tuple[int, int, Any], ...] = (
    (1, 3, _hash_to_3),
    (4, 8, _hash_to_8),
    (9, 16, _hash_to_16),
)
"""Least and most bytes, and what hashes texts of so many."""


def _multiply(values: Words, factors: Words | np.uint64) -> tuple[Words, Words]:
    half = np.uint64(32)
    a, b, c, d = values & _LOW, values >> half, factors & _LOW, factors >> half
    crossed = a * c
    crossed >>= half
    crossed += b * c
    upper = crossed >> half
    crossed &= _LOW
    crossed += a * d
    crossed >>= half
    upper += crossed
    b *= d
    upper += b
    return values * factors, upper


def _avalanche(values: Words, *steps: int) -> Words:
    """Return values after shifts, each but the last followed by a factor."""
    for place, step in enumerate(steps):
        if place % 2:
            values *= np.uint64(step)
        else:
            values ^= values >> np.uint64(step)
    return values
