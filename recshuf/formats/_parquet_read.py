"""Parquet files as a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats._parquet_census import ParquetCensus
from recshuf.formats._parquet_file import OpenFile, explained
from recshuf.formats._parquet_fragment import Limits, ParquetFragment
from recshuf.formats._parquet_group import join_groups, list_groups
from recshuf.formats._parquet_types import dense_schema
from recshuf.interfaces import Decoder, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.interfaces import Fragment, InputFile

_LEAST_FRAGMENTS = 16
"""What a file has at least, where its row groups allow: for all threads to have enough to do."""


class ParquetSource(Source):
    """All Parquet inputs of a run, under one schema.

    The native form is the schema that the files declare with dictionaries and views made dense; the
    declared types come back in shards of the same format.

    Parameters
    ----------
    inputs
        The files.
    columns
        Names of the columns to keep, in this order; None for all.
    field
        Path of the only field that is wanted; None for all.

    Raises
    ------
    InputError
        When a file cannot be read, or its schema does not fit the others.
    UsageError
        When a column does not exist, or an input is a stream.
    """

    def __init__(
        self, inputs: Sequence[InputFile], columns: tuple[str, ...] | None, field: str | None = None
    ) -> None:
        self._census = ParquetCensus(inputs, columns, field)
        self.schema = dense_schema(self._census.declared)
        self.inputs = self._census.summaries()
        self._open_bytes = self._census.find_open_bytes()
        self.layout = self._census.layout()

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the row groups that have rows, small ones together."""
        footer = self._census.footers[input_index]
        with OpenFile(footer.name, footer.path, int96_unit=footer.int96_unit) as file, explained(footer.name):
            metadata = file.metadata
            rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            if rows != footer.group_rows or not file.schema.equals(footer.schema):
                raise InputError(footer.name, "was changed while it was being read")
        columns = self._columns_of(input_index)
        limits = Limits(min(block_bytes, max_record_bytes), max_record_bytes)
        share = min(block_bytes, (self.inputs[input_index].native_bytes or 0) // _LEAST_FRAGMENTS)
        for run in join_groups(list_groups(footer, metadata), share):
            yield ParquetFragment(run, self.schema, columns, limits)

    def _columns_of(self, input_index: int) -> list[int | pa.Scalar]:
        """Return for each column its place in the file, or the value that it has in every record."""
        partitions = self._census.partitions
        columns: list[int | pa.Scalar] = []
        for field, column in zip(self.schema, self._census.columns_of(input_index), strict=True):
            if isinstance(column, str):
                columns.append(partitions.scalar(input_index, column))
            else:
                columns.append(pa.scalar(None, field.type) if column is None else column)
        return columns

    def reading_bytes(self, block_bytes: int) -> int:
        """Return a batch and what decoding adds to it, a footer, and the pages of the largest row group."""
        return 5 * block_bytes // 2 + self._open_bytes

    def decoder(self) -> Decoder:
        """Return the identity: native batches are tables already."""
        return IdentityDecoder(self.schema)


class IdentityDecoder(Decoder):
    """Decoder of batches that are in table form already."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """Schema of native form and table form alike."""
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Do nothing: the schema is known."""

    def finish(self) -> pa.Schema:
        """Return the schema."""
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch itself."""
        return batch
