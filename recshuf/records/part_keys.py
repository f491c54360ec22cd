"""Keys of a split: a range of first words for each part, in which the records have the order of the shuffle."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.records.key_makers import KeyedRows, KeyMaker
from recshuf.records.keys import draw_keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    import pyarrow as pa
    from numpy.typing import NDArray

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
