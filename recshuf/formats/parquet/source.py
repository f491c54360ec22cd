"""Parquet files as a source."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.parquet.census import ParquetCensus
from recshuf.formats.parquet.decoder import IdentityDecoder
from recshuf.formats.parquet.reading.fragment import BatchLimits, ParquetFragment
from recshuf.formats.parquet.reading.groups import FileOpener, join_groups, list_groups
from recshuf.formats.parquet.reading.joined import read_files
from recshuf.formats.parquet.reading.projection import Projection
from recshuf.formats.parquet.schema.types import dense_schema
from recshuf.interfaces import Decoder, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.parquet.schema.claims import RangeIndex
    from recshuf.interfaces import Fragment, InputFile, Joined, ReadOptions

_LEAST_FRAGMENTS = 16
"""Least fragments of a file, if it has enough row groups: keeps all threads busy."""


class ParquetSource(Source):
    """All Parquet inputs of a run, under one schema.

    The native form is the schema that the files declare with dictionaries and views made dense; the
    declared types come back in shards of the same format.

    Parameters
    ----------
    options
        `columns`, `widens`, `field`, `max_record_bytes` and `memory_bytes` apply.

    Raises
    ------
    InputError
        When a file cannot be read, or its schema does not fit the others.
    UsageError
        When a column does not exist, or an input is a stream.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._name_limit = options.name_limit
        self._census = ParquetCensus(inputs, options)
        self.schema = dense_schema(self._census.declared)
        self.inputs = self._census.summaries()
        self._open_bytes = self._census.find_open_bytes()
        self.layout = self._census.layout()

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the row groups that have rows, small ones together."""
        opener = FileOpener(self._census.footers[input_index])
        projection = self._project(input_index)
        limits = self._limit(block_bytes, max_record_bytes)
        share = min(block_bytes, (self.inputs[input_index].native_bytes or 0) // _LEAST_FRAGMENTS)
        for run in join_groups(list_groups(opener), share):
            yield ParquetFragment(run, projection, limits)

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        """See `SupportsJoining`."""
        footers, partitions = self._census.footers, self._census.partitions
        first = inputs[0]
        alike = takewhile(
            lambda index: (
                footers[index].declared is footers[first].declared
                and footers[index].range_index == footers[first].range_index
                and partitions.are_equal(first, index)
            ),
            inputs,
        )
        chosen = [footers[index] for index in alike]
        return read_files(chosen, self._project(first), self._limit(block_bytes, max_record_bytes))

    def _limit(self, block_bytes: int, max_record_bytes: int) -> BatchLimits:
        # Only some pages were measured. Others may be twice as large, and as large as a record.
        page_bytes = 2 * self._open_bytes + max_record_bytes
        option = self._name_limit(max_record_bytes)
        return BatchLimits(min(block_bytes, max_record_bytes), max_record_bytes, option, page_bytes)

    def _project(self, input_index: int) -> Projection:
        """Return the projection of one input."""
        partitions = self._census.partitions
        columns: list[int | pa.Scalar | RangeIndex] = []
        for field, column in zip(self.schema, self._census.columns_of(input_index), strict=True):
            if isinstance(column, str):
                columns.append(partitions.scalar(input_index, column))
            else:
                columns.append(pa.scalar(None, field.type) if column is None else column)
        return Projection(self._census.footers[input_index], self.schema, columns)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        """See `Source`."""
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a batch and its decoding, a footer, and the pages of the largest row group."""
        return 5 * block_bytes // 2 + self._open_bytes

    def decoder(self) -> Decoder:
        """Return the identity decoder: native batches are tables."""
        return IdentityDecoder(self.schema)
