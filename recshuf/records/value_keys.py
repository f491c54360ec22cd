"""Keys of values: two words of 64 bits that are equal for records of equal values, and for no others; and parts of a split.

A value has a text, the text a hash H of 128 bits, and H a key (K, L): Philox-4x32-10 under a random key, a bijection. So
the keys of different values are independent and uniform, and all their orders equally likely, whatever the values are.
Records with equal values of some fields have equal keys.

A part of a split has a range of first words of keys, in which records have the order of the shuffle. Which part the records of a
value are in does not depend on other values.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash
from numpy.random import SeedSequence

from recshuf.dataclass import dataclass
from recshuf.records.arrays import view_offsets, wrap_bytes
from recshuf.records.batch import split_ranges
from recshuf.records.hashing import hash_rows
from recshuf.records.key_makers import VALUE_WORDS, KeyedRows, KeyMaker
from recshuf.records.keys import draw_keys, stream_of
from recshuf.records.provenance import pack_provenance
from recshuf.records.word_hashing import HashKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from recshuf.interfaces import ValueReader
    from recshuf.records.keys import RowRange, Split

    Words = NDArray[np.uint64]


_ALL = np.uint64(2**64 - 1)
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_ROUNDS = 10
_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROWS = 1 << 13
"""Values encrypted at once: their words fit the L2 cache."""


PIECE_BYTES = 1 << 20
PIECE_ROWS = 1 << 14
"""Most records of a piece, and bytes but of a longer record: what is made of it as Python objects takes some 2 MB."""


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
    """Return the low and the high 64 bits of the XXH3 of each text, shape ``(n,)``; of nulls something.

    Takes memory for some Python objects a text: give pieces.
    """
    without_nulls = pa.Array.from_buffers(
        texts.type, len(texts), [None, *texts.buffers()[1:]], offset=texts.offset
    )
    digests = b"".join(map(xxhash.xxh3_128_digest, without_nulls.to_pylist(), repeat(seed)))
    words = np.frombuffer(digests, ">u8").reshape(-1, 2)
    return words[:, 1].astype(np.uint64), words[:, 0].astype(np.uint64)


class ValueKeys:
    """Finds the keys of values under a seed and the name of a stream: keys under other names are independent.

    Either all records without a value share one key, or each has a key of its own.
    """

    def __init__(self, seed: int, name: str = "value", *, shares_missing: bool = False) -> None:
        a, b = SeedSequence(seed, spawn_key=stream_of(name)).generate_state(2, np.uint64).tolist()
        self._hash_seed, self._key = a, b
        self._row_key = HashKey(a + (b << 64))
        self._shared: tuple[np.uint64, np.uint64] | None = None
        if shares_missing:
            shared = xxhash.xxh3_128_intdigest(b"", (a + 1) % 2**64)
            self._shared = np.uint64(shared & int(_ALL)), np.uint64(shared >> 64)

    def keys(
        self, texts: Sequence[pa.LargeBinaryArray], input_index: int, first_row: int
    ) -> tuple[Words, Words]:
        """Return the keys K and L of consecutive records of an input, shape ``(n,)``.

        Given are for each field, at least one, the texts of its values; null where a record has none.
        """
        low, high = np.empty(len(texts[0]), np.uint64), np.empty(len(texts[0]), np.uint64)
        for piece in cut_pieces(*texts):
            low[piece], high[piece] = self._hash([field[piece] for field in texts])
        if (missing := without_value(texts)) is not None:
            rows = np.flatnonzero(missing)
            low[rows], high[rows] = self._shared or (
                pack_provenance(np.int64(input_index), first_row + rows.astype(np.int64)), _ALL
            )  # fmt: skip
        return encrypt(low, high, self._key)

    def keys_of_rows(self, batch: pa.RecordBatch, *, lines: bool) -> tuple[Words, Words]:
        """Return the keys K and L of whole native records: their bytes if they are `lines` under one header, else their values."""
        if lines and batch.num_columns == 1:
            return self.keys([batch.column(0)], 0, 0)
        hashes = hash_rows(batch, self._row_key)
        return encrypt(hashes[:, 0], hashes[:, 1], self._key)

    def _hash(self, texts: Sequence[pa.LargeBinaryArray]) -> tuple[Words, Words]:
        if len(texts) == 1:
            return hash_texts(texts[0], self._hash_seed)
        joined = np.empty((len(texts[0]), len(texts), 2), ">u8")
        for place, field in enumerate(texts):
            joined[:, place, 1], joined[:, place, 0] = hash_texts(field, self._hash_seed)
            if field.null_count:
                joined[_find_nulls(field), place] = 0
        edges = np.arange(len(joined) + 1, dtype=np.int64) * (16 * len(texts))
        return hash_texts(wrap_bytes(joined, edges), self._hash_seed)


def without_value(texts: Sequence[pa.LargeBinaryArray]) -> NDArray[np.bool_] | None:
    """Return which records have no value in any field, shape ``(n,)``; None if that is none of them."""
    if not all(field.null_count for field in texts):
        return None
    missing: NDArray[np.bool_] = np.logical_and.reduce([_find_nulls(field) for field in texts])
    return missing if missing.any() else None


def _find_nulls(texts: pa.LargeBinaryArray) -> NDArray[np.bool_]:
    if not texts.null_count:
        return np.zeros(len(texts), np.bool_)
    nulls: NDArray[np.bool_] = texts.is_null().to_numpy(zero_copy_only=False)
    return nulls


def encrypt(low: Words, high: Words, key: int) -> tuple[Words, Words]:
    """Return numbers of 128 bits under Philox-4x32-10 with a key of 64 bits: a bijection.

    >>> [hex(half[0]) for half in encrypt(np.zeros(1, np.uint64), np.zeros(1, np.uint64), 0)]
    ['0xe169c58d6627e8d5', '0x9b00dbd8bc57ac4c']
    """
    first, second = np.empty(len(low), np.uint64), np.empty(len(low), np.uint64)
    for start in range(0, len(low), _PHILOX_ROWS):
        rows = slice(start, start + _PHILOX_ROWS)
        first[rows], second[rows] = _encrypt(low[rows], high[rows], key)
    return first, second


def _encrypt(low: Words, high: Words, key: int) -> tuple[Words, Words]:
    x0, x1, x2, x3 = low & _LOW, low >> _HALF, high & _LOW, high >> _HALF
    for number in range(_ROUNDS):
        k0, k1 = (
            np.uint64((half + number * step) & int(_LOW))
            for half, step in zip((key, key >> 32), _STEPS, strict=True)
        )
        p0, p1 = x0 * _FACTORS[0], x2 * _FACTORS[1]
        x0, x1 = (p1 >> _HALF) ^ x1 ^ k0, p1 & _LOW
        x2, x3 = (p0 >> _HALF) ^ x3 ^ k1, p0 & _LOW
    return x0 | x1 << _HALF, x2 | x3 << _HALF


class FieldKeys(KeyMaker):
    """Keys of the values of fields.

    With a `row_seed`, a third word puts the records of a value in random order. Otherwise they stay in that of the inputs.
    """

    def __init__(self, reader: ValueReader, keys: ValueKeys, row_seed: int | None = None) -> None:
        self._reader, self._keys, self._row_seed = reader, keys, row_seed

    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        words, missing = find_values(self._reader, self._keys, batch, ranges)
        others = () if self._row_seed is None else (draw_keys(self._row_seed, ranges),)
        return KeyedRows((*words, *others), missing=missing)


def find_values(
    reader: ValueReader, keys: ValueKeys, batch: pa.RecordBatch, ranges: Sequence[RowRange]
) -> tuple[Words, NDArray[np.bool_] | None]:
    """Return the keys of the values of a batch, shape ``(2, n)``, and which of its rows have no value of each field.

    These have shape ``(F, n)``; None if none lack one.
    """
    words = np.empty((VALUE_WORDS, batch.num_rows), np.uint64)
    missing: list[NDArray[np.bool_]] = []
    start = 0
    for piece, input_index, first_row in _cut(batch, ranges, parses_records=reader.parses_records):
        texts = reader.read(piece, input_index, first_row)
        rows = slice(start, start + piece.num_rows)
        words[0, rows], words[1, rows] = keys.keys(texts, input_index, first_row)
        missing.append(np.array([_find_nulls(field) for field in texts]))
        start = rows.stop
    return words, np.hstack(missing) if any(one.any() for one in missing) else None


def _cut(
    batch: pa.RecordBatch, ranges: Sequence[RowRange], *, parses_records: bool
) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield a batch in pieces, as texts and parsed records are many times as large as they."""
    for part, input_index, first_row in split_ranges(batch, ranges):
        pieces: Iterable[slice] = (slice(at, at + PIECE_ROWS) for at in range(0, part.num_rows, PIECE_ROWS))
        if parses_records:
            pieces = cut_pieces(part.column(0))
        for piece in pieces:
            yield part[piece], input_index, first_row + piece.start


_UNITS = 1 << 32
"""First words are multiples of this, and so many."""


class FoundParts(NamedTuple):
    """Where the records of a batch belong."""

    parts: NDArray[np.uint8]
    """The part of each, shape ``(n,)``."""
    missing: NDArray[np.bool_] | None = None
    """Which have no value of each field that tells, shape ``(F, n)``; None if none lack one."""
    values: NDArray[np.uint64] | None = None
    """A word of the value of each, which is independent of its part; None if no value tells."""


@dataclass(frozen=True, slots=True)
class PlacedParts:
    """Parts of exact sizes, by input and row. Used by many threads."""

    split: Split

    def find_parts(self, _: pa.RecordBatch, ranges: Sequence[RowRange]) -> FoundParts:
        """Return the part of each row of a native batch, whose rows are those of some ranges in turn."""
        return FoundParts(self.split.find_parts(ranges))


def divide_keys(shares: Sequence[Fraction]) -> list[int]:
    """Return where the range of first words of each part begins, in units of 2^32, and the end of the last.

    >>> from fractions import Fraction
    >>> divide_keys([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)])
    [0, 2147483647, 3221225471, 4294967295]
    """
    total = sum(shares)
    widths = (1 + int((_UNITS - len(shares)) * share / total) for share in shares)
    return [0, *accumulate(widths)]


@dataclass(frozen=True)
class PartKeys(KeyMaker):
    """The first word is the range of the part, and in it the upper half of the row's key; the second is the row's key.

    So records are ordered by part and key, and each part has about as many piles as its share.
    """

    seed: int
    edges: tuple[int, ...]
    """See `divide_keys`."""
    finder: PartFinder

    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        keys, edges = draw_keys(self.seed, ranges), np.array(self.edges, np.uint64)
        parts, missing, values = self.finder.find_parts(batch, ranges)
        first = keys >> np.uint64(32)
        first *= np.diff(edges)[parts]
        first >>= np.uint64(32)
        first += edges[:-1][parts]
        first <<= np.uint64(32)
        return KeyedRows((first, keys), missing=missing, values=values)


def find_begins(edges: Sequence[int]) -> list[int]:
    """Return the least first word of each part but the first."""
    return [edge * _UNITS for edge in edges[1:-1]]


class ValueParts:
    """Parts by the values of fields: each value is in a part by its key alone, with the probability of the share.

    All records without a value of any field are of one value.
    """

    def __init__(self, reader: ValueReader, seed: int, shares: Sequence[Fraction]) -> None:
        self._reader = reader
        self._keys = ValueKeys(seed, shares_missing=True)
        ends = (min(int(share * 2**64), 2**64 - 1) for share in accumulate(shares[:-1]))
        self._thresholds = np.array([*ends], np.uint64)

    def find_parts(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> FoundParts:
        (first, second), missing = find_values(self._reader, self._keys, batch, ranges)
        parts = np.searchsorted(self._thresholds, first, side="right").astype(np.uint8)
        return FoundParts(parts, missing, second)


PartFinder: TypeAlias = PlacedParts | ValueParts
"""Tells which part of a split records belong to."""
