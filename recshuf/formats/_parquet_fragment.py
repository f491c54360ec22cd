"""Row groups that follow each other in a file, read in batches of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats._parquet_file import explained
from recshuf.formats._parquet_int96 import Int96Watch
from recshuf.formats._parquet_pages import check_pages
from recshuf.formats._parquet_sample import GROWTH, first_batch_rows
from recshuf.formats._parquet_types import conform
from recshuf.interfaces import Fragment
from recshuf.records import concat_batches
from recshuf.sizes import count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from recshuf.formats._parquet_group import Group

_JOINED_BYTES = 1 << 20
"""What batches of small row groups are joined up to; more would not be faster."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a batch and a record may be, in bytes."""

    block_bytes: int
    max_record_bytes: int


class _Pace:
    """How many rows to read at once: what fits a block, but never suddenly many more."""

    def __init__(self, rows: int, block_bytes: int) -> None:
        self.rows = rows
        self._room = block_bytes - (block_bytes >> 4)
        self._most = 0

    def learn(self, rows: int, size: int) -> None:
        """Hear of the bytes that so many rows took."""
        self._most = max(self._most, rows)
        self.rows = max(1, min(self._room * rows // max(1, size), GROWTH * self._most))


class ParquetFragment(Fragment):
    """Row groups that follow each other.

    Parameters
    ----------
    groups
        Where they lie, at least one.
    schema
        Schema of the batches.
    columns
        For each column of `schema` its place in the file, or the value that it has in every record.
    limits
        Sizes of batches and records.
    """

    def __init__(
        self, groups: list[Group], schema: pa.Schema, columns: list[int | pa.Scalar], limits: Limits
    ) -> None:
        self.record_count = sum(group.rows for group in groups)
        self._groups = groups
        self._schema = schema
        self._columns = columns
        self._limits = limits
        self._stored = sorted({column for column in columns if isinstance(column, int)})
        self._footer = groups[0].footer
        self._starts = [group.first_row - groups[0].first_row for group in groups]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the row groups in order."""
        block_bytes = self._limits.block_bytes
        pace = _Pace(first_batch_rows(self._footer, self._groups[0].index, block_bytes), block_bytes)
        done = 0
        raw = self._read(pace)
        for stored in self._join(raw, pace) if self._is_dense() else raw:
            batch = self._conform(stored, done)
            size = count_bytes(batch)
            pace.learn(batch.num_rows, size)
            yield from self._cut(batch, size, done)
            done += batch.num_rows

    def _read(self, pace: _Pace) -> Iterator[pa.RecordBatch]:
        """Yield what is stored, each row group read by itself.

        Over several, pyarrow takes what a column lacks in one from the next, and leaves what it has too much for the next,
        so that rows come apart without an error.
        """
        leaves = self._footer.leaves(self._stored)
        with self._groups[0].open() as file:
            for group in self._groups:
                done = 0
                with Int96Watch(group, self._stored, pace.rows) as watch:
                    for stored in file.batches(group.index, leaves, pace.rows):
                        watch.check(stored, done)
                        done += stored.num_rows
                        yield stored
                        file.set_batch_rows(pace.rows)
                        watch.set_batch_rows(pace.rows)
                if done != group.rows:
                    problem = f"row group {group.index} holds {done} rows, but its footer says {group.rows}"
                    raise InputError(self._footer.name, f"is damaged: {problem}")
                check_pages(file, group.index, leaves)

    def _join(self, batches: Iterable[pa.RecordBatch], pace: _Pace) -> Iterator[pa.RecordBatch]:
        """Yield batches of several small row groups joined."""
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for batch in batches:
            size = batch.get_total_buffer_size()
            if waiting and waiting_bytes + size > min(_JOINED_BYTES, self._limits.block_bytes // 2):
                yield concat_batches(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(batch)
            waiting_bytes += size
            # As many rows as were asked for: there may be more in the row group, to be read at the pace that these teach.
            if batch.num_rows >= pace.rows:
                yield concat_batches(waiting)
                waiting, waiting_bytes = [], 0
        if waiting:
            yield concat_batches(waiting)

    def _conform(self, stored: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        places = {column: index for index, column in enumerate(self._stored)}
        with explained(self._footer.name, self._place(first_row)):
            arrays = [
                conform(stored.column(places[column]), field.type)
                if isinstance(column, int)
                else _repeated(column, stored.num_rows)
                for field, column in zip(self._schema, self._columns, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _is_dense(self) -> bool:
        """Tell whether batches stay as they are stored, so that none of them grows."""
        return all(
            self._footer.schema.field(column).type == field.type
            for field, column in zip(self._schema, self._columns, strict=True)
            if isinstance(column, int)
        )

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


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)
