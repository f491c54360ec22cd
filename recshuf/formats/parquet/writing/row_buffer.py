"""Record batches of any length in, tables of a fixed number of rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANY_BATCHES = 1024


class RowBuffer:
    """Collects record batches and hands out tables of exactly `rows` rows, however the batches were cut.

    Batches are kept by reference until their rows are handed out, and tables consist of their slices. Only
    very many small batches are copied, into one.

    Parameters
    ----------
    rows
        Rows of each table that `add` hands out, at least 1.
    """

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"a table of {rows} rows cannot be filled")
        self.schema = schema
        self.rows = rows
        self._older: list[pa.RecordBatch] = []
        self._latest: list[pa.RecordBatch] = []
        self._held_rows = 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return self._held_rows

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Append a batch and yield each table that is full; exhaust the iterator, or rows are missing."""
        start = 0
        while self._held_rows + batch.num_rows - start >= self.rows:
            count = self.rows - self._held_rows
            self._append(batch.slice(start, count))
            start += count
            yield self.rest()
        self._append(batch.slice(start))

    def rest(self) -> pa.Table:
        """Hand out and drop the rows held, fewer than `rows` or none."""
        table = pa.Table.from_batches(self._older + self._latest, schema=self.schema)
        self._older, self._latest, self._held_rows = [], [], 0
        return table

    def take_back(self, table: pa.Table, rows: int) -> None:
        """Take back the table handed out last, and wait for `rows` rows, at least as many as it has."""
        if len(self) or rows < table.num_rows:
            raise ValueError(f"{len(self)} rows held and {table.num_rows} taken back do not wait for {rows}")
        self.rows = rows
        for batch in table.to_batches():
            self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._latest.append(batch)
        self._held_rows += batch.num_rows
        if len(self._latest) >= _MANY_BATCHES:
            merged = pa.Table.from_batches(self._latest, schema=self.schema).combine_chunks()
            self._older += merged.to_batches()
            self._latest = []
