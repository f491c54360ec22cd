"""Parts of a split: keys, a range of first words for each part in which records have the order of the shuffle, and parts of values.

Which part the records of a value are in does not depend on other values.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.records.batch import split_ranges
from recshuf.records.key_makers import KeyedRows, KeyMaker
from recshuf.records.keys import draw_keys
from recshuf.records.text_hashing import PIECE_ROWS, cut_pieces
from recshuf.records.value_keys import ValueKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import ValueReader
    from recshuf.records.keys import RowRange
    from recshuf.records.split import Split


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


class PartFinder(Protocol):
    """Tells which part of a split records belong to; used by many threads."""

    def find_parts(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> FoundParts:
        """Return the part of each row of a native batch, whose rows are those of some ranges in turn."""
        ...


@dataclass(frozen=True, slots=True)
class PlacedParts:
    """Parts of exact sizes, by input and row."""

    split: Split

    def find_parts(self, _: pa.RecordBatch, ranges: Sequence[RowRange]) -> FoundParts:
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
        parts: list[NDArray[np.uint8]] = []
        values: list[NDArray[np.uint64]] = []
        missing: list[NDArray[np.bool_]] = []
        for piece, input_index, first_row in self._cut(batch, ranges):
            texts = self._reader.read(piece, input_index, first_row)
            first, second = self._keys.keys(texts, input_index, first_row)
            parts.append(np.searchsorted(self._thresholds, first, side="right").astype(np.uint8))
            values.append(second)
            missing.append(np.array([_find_nulls(field) for field in texts]))
        lacks = any(one.any() for one in missing)
        return FoundParts(
            np.concatenate(parts), np.hstack(missing) if lacks else None, np.concatenate(values)
        )

    def _cut(
        self, batch: pa.RecordBatch, ranges: Sequence[RowRange]
    ) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Yield a batch in pieces, as texts and parsed records are many times as large as they."""
        for part, input_index, first_row in split_ranges(batch, ranges):
            pieces: Iterable[slice] = (
                slice(at, at + PIECE_ROWS) for at in range(0, part.num_rows, PIECE_ROWS)
            )
            if self._reader.parses_records:
                pieces = cut_pieces(part.column(0))
            for piece in pieces:
                yield part[piece], input_index, first_row + piece.start


def _find_nulls(texts: pa.LargeBinaryArray) -> NDArray[np.bool_]:
    if not texts.null_count:
        return np.zeros(len(texts), np.bool_)
    nulls: NDArray[np.bool_] = texts.is_null().to_numpy(zero_copy_only=False)
    return nulls
