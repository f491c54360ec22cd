"""What gives rows their keys: by place, or by a value. Keys of more than one word have the others in columns of the batch.

Records are in the order of their words, and where all of these are equal, of input and row. The first word chooses the pile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.records.arrays import take_rows, view_bytes, wrap_values
from recshuf.records.batch import Records
from recshuf.records.keys import KEY_BYTES, draw_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.records.keys import RowRange


VALUE_WORDS = 2
"""Words of the key of a value. A further one orders the records of a value."""
_WORD_NAMES = ("second", "third")
"""Names of the columns of further words, which are the last of a batch in piles."""


class KeyedRows(NamedTuple):
    """Rows of a batch with their keys."""

    words: tuple[NDArray[np.uint64], ...]
    """Each word of the keys, shape ``(n,)``."""
    rows: NDArray[np.intp] | None = None
    """Which rows they are, ascending; one may occur more than once. None if each row occurs once."""
    repeats: NDArray[np.intp] | None = None
    """Ascending places in `words` of records that equal earlier ones, and are to be dropped. Not beside `rows`."""
    missing: NDArray[np.bool_] | None = None
    """Which rows of the batch have no value of each field that gives keys, shape ``(F, n)``; None if none lack one."""
    values: NDArray[np.uint64] | None = None
    """A word of the value of each row of the batch, to count values; None if they are not counted."""

    def join(self, batch: pa.RecordBatch) -> Records:
        """Return the rows of the batch as records in piles. Its columns are copied if rows are left out or repeated."""
        first, *others = self.words
        if self.rows is not None:
            batch = take_rows(batch, self.rows)
        if not others:
            return Records(first, batch)
        columns = [wrap_values(word, pa.binary(KEY_BYTES)) for word in others]
        schema = extend_schema(batch.schema, len(self.words))
        return Records(first, pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema))


class KeyMaker(ABC):
    """Gives rows their keys; used by many threads."""

    most_copies = 1
    """How often a row occurs at most."""

    @abstractmethod
    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        """Return the keys of the rows of a native batch, which are those of some ranges in turn."""


@dataclass(frozen=True)
class PositionKeys(KeyMaker):
    """Keys of input and row; see `draw_keys`."""

    seed: int
    stream: tuple[int, ...] = ()

    def draw(self, _: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        return KeyedRows((draw_keys(self.seed, ranges, self.stream),))


def extend_schema(schema: pa.Schema, word_count: int) -> pa.Schema:
    """Return the schema of native batches with the words of keys of `word_count` words, apart from the first."""
    for name in _WORD_NAMES[: word_count - 1]:
        schema = schema.append(pa.field(name, pa.binary(KEY_BYTES)))
    return schema


def find_words(records: Records, word_count: int) -> list[NDArray[np.uint64]]:
    batch = records.batch
    columns = range(batch.num_columns - word_count + 1, batch.num_columns)
    return [records.keys, *(view_bytes(batch.column(index)).view(np.uint64) for index in columns)]


def find_starts(words: Sequence[NDArray[np.uint64]]) -> NDArray[np.intp]:
    """Return where the key differs from that before, from 0, given the words of ordered keys.

    >>> find_starts([np.array([1, 1, 1, 2], np.uint64), np.array([3, 3, 4, 4], np.uint64)]).tolist()
    [0, 2, 3]
    """
    differs = np.zeros(len(words[0]), np.bool_)
    differs[:1] = True
    for word in words:
        differs[1:] |= word[1:] != word[:-1]
    return np.flatnonzero(differs)


def cut_rows(
    batch: pa.RecordBatch, ranges: Sequence[RowRange], count: int
) -> Iterator[tuple[pa.RecordBatch, list[RowRange]]]:
    """Yield a batch and its row ranges in so many pieces, views, apart from those without rows."""
    edges = [batch.num_rows * piece // count for piece in range(count + 1)]
    starts = np.cumsum([0, *(span.rows for span in ranges)]).tolist()
    for first, stop in pairwise(edges):
        own = []
        for span, start in zip(ranges, starts, strict=False):
            begin, end = max(first, start), min(stop, start + span.rows)
            if begin < end:
                own.append(span._replace(first_row=span.first_row + begin - start, rows=end - begin))
        if own:
            yield batch.slice(first, stop - first), own


def find_others(rows: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return those of the rows 0 to `count` that are not among some.

    >>> find_others(np.array([1, 3]), 4).tolist()
    [0, 2]
    """
    stays = np.ones(count, np.bool_)
    stays[rows] = False
    return np.flatnonzero(stays)


def remove_rows(ranges: Sequence[RowRange], rows: NDArray[np.intp]) -> list[RowRange]:
    """Return row ranges without some ascending rows, which are numbered through all ranges.

    >>> from recshuf.records.keys import RowRange
    >>> remove_rows([RowRange(0, 5, 4), RowRange(1, 0, 2)], np.array([1, 3, 4]))
    [RowRange(input_index=0, first_row=5, rows=1), RowRange(input_index=0, first_row=7, rows=1), RowRange(input_index=1, first_row=1, rows=1)]
    """
    left, start = [], 0
    for span in ranges:
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + span.rows)] - start
        edges = [-1, *inside.tolist(), span.rows]
        left += [
            span._replace(first_row=span.first_row + before + 1, rows=after - before - 1)
            for before, after in pairwise(edges)
            if after - before > 1
        ]
        start += span.rows
    return left
