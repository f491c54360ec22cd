"""Row groups that follow each other in a file, read in batches of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats._parquet_entries import EntryCount
from recshuf.formats._parquet_file import explained, name_groups
from recshuf.formats._parquet_group import join_groups
from recshuf.formats._parquet_int96 import Int96Watch
from recshuf.formats._parquet_pages import check_pages
from recshuf.formats._parquet_sample import GROWTH, first_batch_rows
from recshuf.interfaces import Fragment
from recshuf.sizes import count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.formats._parquet_file import OpenFile
    from recshuf.formats._parquet_group import Group
    from recshuf.formats._parquet_projection import Projection

_JOINED_BYTES = 4 << 20
"""What row groups that are read together hold before compression, at most; more would not be faster."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a batch and a record may be, in bytes."""

    block_bytes: int
    max_record_bytes: int


class Pace:
    """How many rows to read at once: what fits a block, but never suddenly many more.

    Parameters
    ----------
    group
        Where reading begins.
    """

    def __init__(self, group: Group, block_bytes: int) -> None:
        self.rows = first_batch_rows(group.footer, group.index, block_bytes)
        self._room = block_bytes - (block_bytes >> 4)
        self._most = 0

    def learn(self, rows: int, size: int) -> None:
        """Hear of the bytes that so many rows took."""
        self._most = max(self._most, rows)
        self.rows = max(1, min(self._room * rows // max(1, size), GROWTH * self._most))


def read_run(file: OpenFile, run: list[Group], columns: Projection, pace: Pace) -> Iterator[pa.RecordBatch]:
    """Yield what is stored in row groups of a file, and make sure that each has the rows that are its own.

    Each batch has as many rows as `pace` then says.

    Parameters
    ----------
    run
        The row groups, which follow each other; of several, `columns` must be countable, and the file have no INT96 times.

    Raises
    ------
    InputError
        When a row group has other rows than its file says, after the last batch.
    """
    indices, rows = [group.index for group in run], [group.rows for group in run]
    entries = EntryCount(rows, columns.kinds)
    with Int96Watch(run[0], columns.columns, pace.rows) as watch:
        for stored in file.batches(indices, columns.leaves, pace.rows):
            watch.check(stored, entries.rows)
            entries.add(stored)
            yield stored
            file.set_batch_rows(pace.rows)
            watch.set_batch_rows(pace.rows)
    if entries.rows != sum(rows):
        problem = f"is damaged: {entries.rows} rows can be read, and the footer says {sum(rows)}"
        remedy = "fetch or write the file again"
        raise InputError(file.name, problem, place=name_groups(indices), remedy=remedy)
    check_pages(file, indices, columns.leaves, entries)


class ParquetFragment(Fragment):
    """Row groups that follow each other.

    Parameters
    ----------
    groups
        Where they lie, at least one.
    projection
        Of their file.
    limits
        Sizes of batches and records.
    """

    def __init__(self, groups: list[Group], projection: Projection, limits: Limits) -> None:
        self.record_count = sum(group.rows for group in groups)
        self._groups = groups
        self._projection = projection
        self._limits = limits
        self._footer = groups[0].footer
        self._starts = [group.first_row - groups[0].first_row for group in groups]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the row groups in order."""
        block_bytes = self._limits.block_bytes
        pace = Pace(self._groups[0], block_bytes)
        done = 0
        for stored in self._read(pace):
            with explained(self._footer.name, self._place(done)):
                batch = self._projection.conform(stored)
            size = count_bytes(batch)
            pace.learn(batch.num_rows, size)
            yield from self._cut(batch, size, done)
            done += batch.num_rows

    def _read(self, pace: Pace) -> Iterator[pa.RecordBatch]:
        """Yield what is stored, small row groups together where that can be seen to keep them apart."""
        is_safe = self._projection.is_countable and not self._footer.int96_columns
        with self._groups[0].opener.open() as file:
            for run in join_groups(self._groups, _JOINED_BYTES if is_safe else 0):
                try:
                    yield from read_run(file, run, self._projection, pace)
                except InputError:
                    if len(run) > 1:
                        # One by one, to name the row group.
                        for group in run:
                            deque(read_run(file, [group], self._projection, pace), maxlen=0)
                    raise

    def _place(self, row: int) -> str:
        """Return where a row of the fragment is."""
        index = bisect_right(self._starts, row) - 1
        return self._groups[index].place(row - self._starts[index])

    def _cut(self, batch: pa.RecordBatch, size: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield a batch of `size` bytes in slices that fit a block, down to single records."""
        if size > self._limits.block_bytes and batch.num_rows > 1:
            half = batch.num_rows // 2
            for part, row in ((batch.slice(0, half), first_row), (batch.slice(half), first_row + half)):
                yield from self._cut(part, count_bytes(part), row)
            return
        if batch.num_rows == 1 and size > self._limits.max_record_bytes:
            raise InputError(
                self._footer.name,
                f"a record of {size} bytes is longer than the {self._limits.max_record_bytes} bytes allowed",
                place=self._place(first_row),
                remedy="raise --memory",
            )
        yield batch
