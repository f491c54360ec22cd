"""The parts of values: which part of a split the records of each value are in, whatever other values there are."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from recshuf.records.batch import split_ranges
from recshuf.records.part_keys import FoundParts
from recshuf.records.text_hashing import PIECE_ROWS, cut_pieces
from recshuf.records.value_keys import ValueKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import ValueReader
    from recshuf.records.keys import RowRange


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
