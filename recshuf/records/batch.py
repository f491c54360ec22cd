"""Records between the passes: a native batch with its keys, and the numbers of its rows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import CheckError, Stopped
from recshuf.records.arrays import count_bytes, count_bytes_before, take_rows
from recshuf.records.keys import RowRange  # noqa: TC001 - for the examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import Fragment


def join_ranges(ranges: Sequence[RowRange]) -> list[RowRange]:
    """Join consecutive ranges of the same input.

    >>> join_ranges([RowRange(0, 5, 2), RowRange(0, 7, 1), RowRange(1, 0, 4)])
    [RowRange(input_index=0, first_row=5, rows=3), RowRange(input_index=1, first_row=0, rows=4)]
    """
    joined: list[RowRange] = []
    for span in ranges:
        if joined and joined[-1].input_index == span.input_index:
            joined[-1] = joined[-1]._replace(rows=joined[-1].rows + span.rows)
        else:
            joined.append(span)
    return joined


def split_ranges(
    batch: pa.RecordBatch, ranges: Sequence[RowRange]
) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """Yield each range of a batch as a view, with its input and first row."""
    start = 0
    for span in ranges:
        yield batch.slice(start, span.rows), span.input_index, span.first_row
        start += span.rows


class RowCounter:
    """Numbers the rows of one input from `first_row`, whose fragments are read by many threads.

    The rows of a fragment are known once those of all earlier fragments are, so a claim waits until these are
    `finish`ed. It raises `Stopped` after `stop`.
    """

    def __init__(self, first_row: int = 0) -> None:
        self._turn = 0
        self._first_row = self._rows = first_row
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def rows(self) -> int:
        return self._rows - self._first_row

    def claim(self, fragment_index: int, count: int) -> int:
        """Wait for a fragment's turn, and return the first row of its next `count` records."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == fragment_index or self._stopped)
            if self._stopped:
                raise Stopped
            first_row = self._rows
            self._rows += count
            return first_row

    def finish(self, fragment_index: int) -> None:
        """Pass the turn to the next fragment, after all rows of this one were claimed."""
        self.claim(fragment_index, 0)
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def number_batches(
    counter: RowCounter, name: str, index: int, fragment: Fragment
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of fragment number `index` of an input of this name, each with its first row."""
    if fragment.record_count is None:
        yield from _number_uncounted(counter, index, fragment)
        return
    row = counter.claim(index, fragment.record_count)
    counter.finish(index)
    end = row + fragment.record_count
    for batch in fragment.batches():
        yield row, batch
        row += batch.num_rows
    if row != end:
        problem = f"a fragment of {fragment.record_count:,} records yielded {row - end:+,} of them"
        raise CheckError(f"{name}: {problem}; run again, and report this as a fault")


def _number_uncounted(
    counter: RowCounter, index: int, fragment: Fragment
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a fragment of unknown size.

    Each batch waits until the next one is read, so that the turn passes on before the last batch, mostly
    the only one, is visited.
    """
    waiting: tuple[int, pa.RecordBatch] | None = None
    for batch in fragment.batches():
        if waiting is not None:
            yield waiting
        waiting = counter.claim(index, batch.num_rows), batch
    counter.finish(index)
    if waiting is not None:
        yield waiting


@dataclass(frozen=True, slots=True)
class Records:
    """Keys of shape ``(n,)`` and the native batch of the same n records, in the same order."""

    keys: NDArray[np.uint64]
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def byte_count(self) -> int:
        return self.keys.nbytes + count_bytes(self.batch)

    def bytes_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records before each row number, in the shape of `rows`."""
        return rows * self.keys.itemsize + count_bytes_before(self.batch, rows)

    def take(self, index: NDArray[np.intp]) -> Records:
        """Return the records at `index`, copied."""
        return Records(self.keys[index], take_rows(self.batch, index))

    def slice(self, start: int, stop: int) -> Records:
        """Return records ``start:stop`` as a view."""
        return Records(self.keys[start:stop], self.batch.slice(start, stop - start))

    def select(self, column_count: int) -> Records:
        """Return the first columns of the records as a view."""
        return Records(self.keys, self.batch.select(range(column_count)))

    def copy_prefix(self, stop: int) -> Records:
        """Return the first `stop` records as a copy, so that the rest can be freed."""
        return concat_records([self.slice(0, stop), self.slice(0, 0)])


def concat_records(parts: Sequence[Records]) -> Records:
    """Return all records of one or more parts, in order, copied unless there is just span."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    return Records(keys, concat_batches([part.batch for part in parts]))


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all rows of one or more batches of one schema, in order, copied unless there is just span."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    if not len(schema):
        return empty_rows(schema, sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches)


def empty_rows(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Return `count` rows of a schema without columns."""
    rows = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(rows).replace_schema_metadata(schema.metadata)
