"""Detects INT96 times outside the range of 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.parquet.schema.types import conform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.parquet.reading.groups import Group


class Int96Watch:
    """Reads time stamps stored as INT96 a second time, in milliseconds, to find those that wrapped around.

    INT96 exceeds the range of a 64-bit count of nanoseconds or microseconds, and pyarrow silently drops the upper bits of
    times that do not fit. Milliseconds hold every INT96 time.

    Parameters
    ----------
    stored
        The Arrow columns read, in the order of the batches.
    rows
        Rows of the first batch.
    """

    def __init__(self, group: Group, stored: Sequence[int], rows: int) -> None:
        self._group = group
        self._columns = [column for column in group.footer.int96_columns if column in stored]
        self._places = [list(stored).index(column) for column in self._columns]
        self._file = group.opener.open("ms") if self._columns else None
        self._batches = self._open(rows)

    def _open(self, rows: int) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            return iter(())
        return self._file.batches([self._group.index], self._group.footer.leaves(self._columns), rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def set_batch_rows(self, rows: int) -> None:
        """Change the rows of the following batches."""
        if self._file is not None:
            self._file.set_batch_rows(rows)

    def check(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Compare with the next batch.

        Raises
        ------
        InputError
            When a time does not fit its unit.
        """
        if self._file is None:
            return
        coarse = next(self._batches)
        for index, place in enumerate(self._places):
            try:
                conform(coarse.column(index), batch.column(place).type)
            except pa.ArrowInvalid as error:
                raise InputError(
                    self._group.footer.name,
                    f"an INT96 time is outside the range of {self._group.footer.int96_unit} in 64 bits",
                    place=f"field {batch.schema.field(place).name!r}, {self._group.place(first_row)} and on",
                    remedy="write the file with another type of time",
                ) from error
