"""Parquet files as a source: row groups read in batches of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats._parquet_census import ParquetCensus
from recshuf.formats._parquet_file import OpenFile, explained
from recshuf.formats._parquet_pages import check_pages
from recshuf.formats._parquet_sample import GROWTH, first_batch_rows
from recshuf.formats._parquet_types import conform, dense_schema
from recshuf.interfaces import Decoder, Fragment, Source
from recshuf.records import concat_batches
from recshuf.sizes import count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from recshuf.formats._parquet_footer import Footer
    from recshuf.interfaces import InputFile

_LEAST_FRAGMENTS = 16
"""What a file has at least, where its row groups allow: for all threads to have enough to do."""
_JOINED_BYTES = 1 << 20
"""What batches of small row groups are joined up to; more would not be faster."""


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
        limits = _Limits(min(block_bytes, max_record_bytes), max_record_bytes)
        groups = (_Group(footer, metadata, index, start) for index, start in _list_groups(footer))
        share = min(block_bytes, (self.inputs[input_index].native_bytes or 0) // _LEAST_FRAGMENTS)
        for run in _join_groups(groups, share):
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


@dataclass(frozen=True, slots=True)
class _Limits:
    block_bytes: int
    max_record_bytes: int


@dataclass(frozen=True, slots=True)
class _Group:
    """One row group of one file; `metadata` is shared by all of a file and spares reading its footer again."""

    footer: Footer
    metadata: pq.FileMetaData
    index: int
    first_row: int

    @property
    def rows(self) -> int:
        return self.footer.group_rows[self.index]

    @property
    def stored_bytes(self) -> int:
        return self.footer.group_bytes[self.index]

    def open(self, int96_unit: str | None = None) -> OpenFile:
        unit = int96_unit or self.footer.int96_unit
        return OpenFile(self.footer.name, self.footer.path, metadata=self.metadata, int96_unit=unit)

    def place(self, row: int) -> str:
        return f"row group {self.index}, row {self.first_row + row}"


def _list_groups(footer: Footer) -> Iterator[tuple[int, int]]:
    """Yield index and first row of each row group that has rows."""
    first_row = 0
    for index, rows in enumerate(footer.group_rows):
        if rows:
            yield index, first_row
        first_row += rows


def _join_groups(groups: Iterable[_Group], most_bytes: int) -> Iterator[list[_Group]]:
    """Yield runs of row groups that have no more bytes before compression than that, or are one."""
    run: list[_Group] = []
    run_bytes = 0
    for group in groups:
        if run and run_bytes + group.stored_bytes > most_bytes:
            yield run
            run, run_bytes = [], 0
        run.append(group)
        run_bytes += group.stored_bytes
    if run:
        yield run


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
        self, groups: list[_Group], schema: pa.Schema, columns: list[int | pa.Scalar], limits: _Limits
    ) -> None:
        self.record_count = sum(group.rows for group in groups)
        self._groups = groups
        self._schema = schema
        self._columns = columns
        self._limits = limits
        self._stored = sorted({column for column in columns if isinstance(column, int)})
        self._footer = groups[0].footer

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
        starts = [group.first_row - self._groups[0].first_row for group in self._groups]
        index = bisect_right(starts, row) - 1
        return self._groups[index].place(row - starts[index])

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


class Int96Watch:
    """Reads time stamps stored as INT96 a second time, in milliseconds, to find those that wrapped around.

    INT96 reaches farther than any 64-bit count of nanoseconds or microseconds, and the reader drops the upper
    bits of what does not fit in silence. Milliseconds hold all of it.

    Parameters
    ----------
    group
        The row group that is read.
    stored
        The Arrow columns that are read of it, in the order of the batches.
    rows
        Rows of the first batch.
    """

    def __init__(self, group: _Group, stored: Sequence[int], rows: int) -> None:
        self._group = group
        self._columns = [column for column in group.footer.int96_columns if column in stored]
        self._places = [list(stored).index(column) for column in self._columns]
        self._file = group.open("ms") if self._columns else None
        self._batches = self._open(rows)

    def _open(self, rows: int) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            return iter(())
        return self._file.batches(self._group.index, self._group.footer.leaves(self._columns), rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def set_batch_rows(self, rows: int) -> None:
        """Follow a change of the batch size."""
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
