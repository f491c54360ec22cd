"""Selects the columns of files of one schema, and makes batches of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.parquet.metadata.entries import is_countable
from recshuf.formats.parquet.schema.claims import RangeIndex
from recshuf.records.arrays.conforming import conform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.parquet.metadata.footer import Footer


class Projection:
    """Columns to read of a file, and of all files with an equal schema.

    Parameters
    ----------
    columns
        For each column of `schema`, its index in the file, its constant value, or the index of pandas.
    """

    def __init__(
        self, footer: Footer, schema: pa.Schema, columns: Sequence[int | pa.Scalar | RangeIndex]
    ) -> None:
        self._schema = schema
        self._columns = columns
        stored = sorted({column for column in columns if isinstance(column, int)})
        self._places = {column: index for index, column in enumerate(stored)}
        self.columns = stored
        """Indices in the file of the columns to read, ascending."""
        self.leaves = footer.leaves(stored)
        """Indices of the Parquet columns below them."""
        self.kinds = [footer.schema.field(column).type for column in stored]
        """Their types."""

    @cached_property
    def is_countable(self) -> bool:
        """Whether the entries of all columns can be counted, see `is_countable`."""
        return all(map(is_countable, self.kinds))

    def conform(self, stored: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Return the columns read as a batch of the schema; the first record is row `first_row` of the file.

        Raises
        ------
        pyarrow.ArrowException
            When a value does not fit.
        """
        if stored.schema.equals(self._schema, check_metadata=True):
            return stored
        arrays = []
        for field, column in zip(self._schema, self._columns, strict=True):
            if isinstance(column, int):
                array = stored.column(self._places[column])
            elif isinstance(column, RangeIndex):
                array = column.values(first_row, stored.num_rows)
            else:
                array = _repeated(column, stored.num_rows)
            arrays.append(conform(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)
