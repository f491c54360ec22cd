"""Record batches of any length in, tables of a fixed number of rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_FEW_BATCHES = 1024


class RowBuffer:
    """Collects record batches and hands out tables of exactly `rows` rows, however the batches were cut.

    Batches are kept by reference, and their slices share memory with them; tables are chunked, not copied.

    Parameters
    ----------
    schema
        Schema of every batch.
    rows
        Rows of each table handed out by `add`, at least 1. It may be changed between calls.
    """

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"a table of {rows} rows cannot be filled")
        self.schema = schema
        self.rows = rows
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return self._pending_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held."""
        return sum(batch.nbytes for batch in self._pending)

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Append a batch and yield every table that is full; the iterator must be exhausted."""
        start = 0
        while self._pending_rows + batch.num_rows - start >= self.rows:
            count = self.rows - self._pending_rows
            self._append(batch.slice(start, count))
            start += count
            yield self.rest()
        if start < batch.num_rows:
            self._append(batch.slice(start))

    def rest(self) -> pa.Table:
        """Hand out all rows held, fewer than `rows` or none, and forget them."""
        table = pa.Table.from_batches(self._pending, schema=self.schema)
        self._pending = []
        self._pending_rows = 0
        return table

    def _append(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        if len(self._pending) > _FEW_BATCHES:
            self._pending = pa.Table.from_batches(self._pending, schema=self.schema).combine_chunks().to_batches()
