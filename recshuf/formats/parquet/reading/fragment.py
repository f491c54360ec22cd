"""Consecutive row groups of a file, read in batches of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.entries import EntryCount
from recshuf.formats.parquet.metadata.file import explained, name_groups
from recshuf.formats.parquet.metadata.page_checks import PageClaims
from recshuf.formats.parquet.reading.groups import join_groups
from recshuf.formats.parquet.reading.sample import GROWTH, first_batch_rows
from recshuf.interfaces import Fragment
from recshuf.records.arrays.byte_sizes import count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.formats.parquet.metadata.file import OpenFile
    from recshuf.formats.parquet.reading.groups import Group
    from recshuf.formats.parquet.reading.projection import Projection

_JOINED_BYTES = 4 << 20
"""Most bytes before compression of row groups that are read together; more would not be faster."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits on batches and records, in bytes."""

    block_bytes: int
    max_record_bytes: int
    record_option: str
    """The command line option that raises the limit on records."""
    page_bytes: int
    """Limit on the memory of the pages of a row group."""


class Pace:
    """Chooses the rows of each batch: as many as fit a block, growing slowly."""

    def __init__(self, group: Group, block_bytes: int) -> None:
        self.rows = first_batch_rows(group.footer, group.index, block_bytes)
        self._room = block_bytes - (block_bytes >> 4)
        self._most = 0

    def learn(self, rows: int, size: int) -> None:
        """Adapt to the size of so many rows."""
        self._most = max(self._most, rows)
        self.rows = max(1, min(self._room * rows // max(1, size), GROWTH * self._most))


def read_run(
    file: OpenFile, run: list[Group], columns: Projection, pace: Pace, most_page_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield stored batches of row groups that are read together, each of the rows that `pace` chooses.

    Parameters
    ----------
    run
        Consecutive row groups; several only if `Projection.is_countable` is true.

    most_page_bytes
        Most memory for the pages of a row group.

    Raises
    ------
    InputError
        Before the first batch, when pages take more memory. After the last one, when the rows do not match the metadata
        of the file.
    """
    indices, rows = [group.index for group in run], [group.rows for group in run]
    claims = PageClaims(file, indices, columns.leaves, most_page_bytes)
    entries = EntryCount(rows, columns.kinds)
    for stored in file.batches(indices, columns.leaves, pace.rows):
        entries.add(stored)
        yield stored
        file.set_batch_rows(pace.rows)
    if entries.rows != sum(rows):
        problem = f"is damaged: {entries.rows} rows can be read, and the footer says {sum(rows)}"
        remedy = "fetch or write the file again"
        raise InputError(file.name, problem, place=name_groups(indices), remedy=remedy)
    claims.check(entries)


class ParquetFragment(Fragment):
    """Consecutive row groups."""

    def __init__(self, groups: list[Group], projection: Projection, limits: BatchLimits) -> None:
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
                batch = self._projection.conform(stored, self._groups[0].first_row + done)
            size = count_bytes(batch)
            pace.learn(batch.num_rows, size)
            yield from self._cut(batch, size, done)
            done += batch.num_rows

    def _read(self, pace: Pace) -> Iterator[pa.RecordBatch]:
        """Yield stored batches; small row groups are read together if a check can tell their rows apart."""
        with self._groups[0].opener.open() as file:
            for run in join_groups(self._groups, _JOINED_BYTES if self._projection.is_countable else 0):
                try:
                    yield from read_run(file, run, self._projection, pace, self._limits.page_bytes)
                except InputError:
                    if len(run) > 1:
                        # One by one, so that the error names the row group.
                        for group in run:
                            deque(
                                read_run(file, [group], self._projection, pace, self._limits.page_bytes),
                                maxlen=0,
                            )
                    raise

    def _place(self, row: int) -> str:
        """Return the position of a row of the fragment in words."""
        index = bisect_right(self._starts, row) - 1
        return self._groups[index].place(row - self._starts[index])

    def _cut(self, batch: pa.RecordBatch, size: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield a batch of `size` bytes in slices that fit a block, at least one record each."""
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
                remedy=f"raise {self._limits.record_option}",
            )
        yield batch
