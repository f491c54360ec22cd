"""Keys by fields: records with equal values of some fields have equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.records.batch import split_ranges
from recshuf.records.key_makers import VALUE_WORDS, KeyedRows, KeyMaker
from recshuf.records.keys import draw_keys
from recshuf.records.text_hashing import PIECE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import ValueReader
    from recshuf.records.keys import RowRange
    from recshuf.records.value_keys import ValueKeys


class FieldKeys(KeyMaker):
    """Keys of the values of fields.

    Parameters
    ----------
    row_seed
        Seed of a third word, by which the records of a value are in random order. None: they stay in that of the inputs.
    """

    def __init__(self, reader: ValueReader, keys: ValueKeys, row_seed: int | None = None) -> None:
        self._reader, self._keys, self._row_seed = reader, keys, row_seed

    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        words = np.empty((VALUE_WORDS, batch.num_rows), np.uint64)
        missing: list[NDArray[np.bool_]] = []
        start = 0
        for piece, input_index, first_row in _cut(batch, ranges):
            texts = self._reader.read(piece, input_index, first_row)
            rows = slice(start, start + piece.num_rows)
            words[0, rows], words[1, rows] = self._keys.keys(texts, input_index, first_row)
            missing.append(np.array([_find_nulls(field) for field in texts]))
            start = rows.stop
        others = () if self._row_seed is None else (draw_keys(self._row_seed, ranges),)
        lacks = any(one.any() for one in missing)
        return KeyedRows((*words, *others), missing=np.hstack(missing) if lacks else None)


def _cut(batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield a batch in pieces, as texts of numbers are many times as large as they."""
    for part, input_index, first_row in split_ranges(batch, ranges):
        for start in range(0, part.num_rows, PIECE_ROWS):
            yield part.slice(start, PIECE_ROWS), input_index, first_row + start


def _find_nulls(texts: pa.LargeBinaryArray) -> NDArray[np.bool_]:
    if not texts.null_count:
        return np.zeros(len(texts), np.bool_)
    nulls: NDArray[np.bool_] = texts.is_null().to_numpy(zero_copy_only=False)
    return nulls
