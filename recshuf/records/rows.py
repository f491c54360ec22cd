"""Row numbers: where the rows of a batch are from, and which numbers the fragments of an input take."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class RowRange(NamedTuple):
    """Consecutive rows of one input."""

    input_index: int
    first_row: int
    rows: int


def join_ranges(ranges: Sequence[RowRange]) -> list[RowRange]:
    """Return ranges that directly follow each other as one for each input.

    >>> join_ranges([RowRange(0, 5, 2), RowRange(0, 7, 1), RowRange(1, 0, 4)])
    [RowRange(input_index=0, first_row=5, rows=3), RowRange(input_index=1, first_row=0, rows=4)]
    """
    joined: list[RowRange] = []
    for one in ranges:
        if joined and joined[-1].input_index == one.input_index:
            joined[-1] = joined[-1]._replace(rows=joined[-1].rows + one.rows)
        else:
            joined.append(one)
    return joined


def split_ranges(
    batch: pa.RecordBatch, ranges: Sequence[RowRange]
) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield the rows of each one of a batch, their input and its first row, without a copy."""
    start = 0
    for one in ranges:
        yield batch.slice(start, one.rows), one.input_index, one.first_row
        start += one.rows


class RowCounter:
    """Hands out row numbers of one input: fragments claim theirs in order, whoever reads them first.

    A fragment of unknown size must have been read before the next one can know its rows; so a claim waits
    until the fragments before it are `finish`ed.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._rows = 0
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def rows(self) -> int:
        """Rows claimed so far."""
        return self._rows

    def claim(self, fragment_index: int, count: int) -> int:
        """Return the first row of the next `count` records of a fragment, once it is that fragment's turn.

        Raises
        ------
        Stopped
            When `stop` was called.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turn == fragment_index or self._stopped)
            if self._stopped:
                raise Stopped
            first_row = self._rows
            self._rows += count
            return first_row

    def finish(self, fragment_index: int) -> None:
        """Pass the turn to the next fragment: this one has claimed all its rows."""
        self.claim(fragment_index, 0)
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake everybody who waits, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
