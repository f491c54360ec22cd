"""Parquet shards: record batches of any length in, row groups of a fixed number of rows out, each written at once."""

from __future__ import annotations

import io
import os
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.parquet.assembly import Assembly, encode_group
from recshuf.formats.parquet.plan import SINK_FACTOR, FirstRows
from recshuf.formats.parquet.types import leaf_types
from recshuf.interfaces import RowBuffer, Sink, Target, WriteOptions
from recshuf.records.conforming import check_digits, conform, has_decimals
from recshuf.system.page_cache import BehindFile
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.assembly import EncodedGroup
    from recshuf.formats.parquet.plan import WritePlan


_FILE_BUFFER_BYTES = 1 << 20
_COLUMN_BYTES = 28 << 10
"""Memory of each Parquet column until it is written: 8,000 to 50,000 columns took 28 to 30 KB each, read and written."""


class ParquetTarget(Target):
    """Shards that all follow one plan."""

    suffix = ".parquet"

    def __init__(self, schema: pa.Schema, plan: WritePlan, options: WriteOptions) -> None:
        self._schema = schema
        self._plan = plan
        self._options = options

    def sink_bytes(self, threads: int) -> int:
        """Return the memory of row groups before and while they are written."""
        # Each further encoder counts twice, as the allocator keeps freed memory: counted once, 1 GB of incompressible rows
        # at 300 MB and two workers peaked at 465 to 532 MB.
        groups_bytes = (2 * _count_encoders(threads) - 1) * self._plan.sink_bytes
        if self._options.table_bytes is not None:
            groups_bytes = min(groups_bytes, int(SINK_FACTOR * self._options.table_bytes))
        columns = _COLUMN_BYTES * sum(1 for kind in self._plan.native.types for _ in leaf_types(kind))
        return groups_bytes + columns + 2 * _FILE_BUFFER_BYTES

    def open(self, path: Path, threads: int) -> Sink:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = BehindFile(os.open(path, flags, 0o666), "wb", drop_page_cache=self._options.drop_page_cache)
        stream = io.BufferedWriter(file, _FILE_BUFFER_BYTES)
        return ParquetSink(stream, self._schema, self._plan, _count_encoders(threads))

    def open_stream(self, stream: BinaryIO, threads: int) -> Sink:
        return ParquetSink(stream, self._schema, self._plan, _count_encoders(threads), closes=False)


def _count_encoders(threads: int) -> int:
    """Return the number of encoding threads: encoding takes half of the time, and each thread holds a row group."""
    return 1 + threads // 2


class ParquetSink(Sink):
    """One Parquet file being written, with `encoders` row groups encoded at once, each by its own thread."""

    def __init__(
        self, stream: BinaryIO, schema: pa.Schema, plan: WritePlan, encoders: int, *, closes: bool = True
    ) -> None:
        self._stream = stream
        self._closes = closes
        self._plan = plan
        self._encoders = encoders
        self._pool = Pool(encoders, "encode") if encoders > 1 else None
        self._encoded: deque[Future[EncodedGroup]] = deque()
        self._assembly = Assembly(stream, plan.annotations)
        self._first_rows = FirstRows() if plan.row_group_rows is None else None
        self._dictionaries = plan.dictionaries or []
        self._buffer = RowBuffer(schema, plan.row_group_rows or FirstRows.rows)
        self._decimals = {place for place, kind in enumerate(plan.native.types) if has_decimals(kind)}
        self._is_open = True

    @property
    def record_count(self) -> int:
        return self._assembly.record_count

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and not batch.num_columns:
            raise ConversionError(
                "record",
                "has no fields at all, and Parquet has no rows without columns",
                remedy="choose --to jsonl",
            )
        for table in self._buffer.add(batch):
            if self._first_rows is not None:
                self._buffer.take_back(table, self._learn(self._first_rows, table.columns))
                continue
            columns = table.columns
            del table
            self._write_group(columns)

    def close(self) -> None:
        if not self._is_open:
            return
        try:
            rest = self._buffer.rest()
            if self._first_rows is not None:
                self._learn(self._first_rows, rest.columns)
            # A file without rows has the schema of a row group, too.
            if rest.num_rows or not (self._encoded or len(self._assembly)):
                self._write_group(rest.columns)
            self._write_encoded(0)
            self._assembly.finish()
            self._close_stream()
        finally:
            self.abort()

    def abort(self) -> None:
        self._is_open = False
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        with suppress(OSError, ValueError):
            self._close_stream()

    def _close_stream(self) -> None:
        if self._closes:
            self._stream.close()
        else:
            self._stream.flush()

    def _learn(self, first_rows: FirstRows, columns: list[pa.ChunkedArray]) -> int:
        """Return the rows to wait for, given the first ones; the list is emptied."""
        table = self._prepared_table(columns)
        with _explain_group():
            rows = first_rows.learn(table)
        self._dictionaries = first_rows.dictionaries
        if first_rows.is_done:
            self._first_rows = None
        return rows

    def _open_writer(self, stream: BinaryIO) -> pq.ParquetWriter:
        return self._plan.open_writer(stream, self._dictionaries)

    def _write_group(self, columns: list[pa.ChunkedArray]) -> None:
        """Start encoding a row group, and write finished ones; the list is emptied."""
        if self._pool is None:
            self._assembly.append(self._encode(columns))
            return
        self._encoded.append(self._pool.submit(self._encode, columns))
        # The next one is collected meanwhile and takes as much memory.
        self._write_encoded(self._encoders - 1)

    def _write_encoded(self, left: int) -> None:
        """Write row groups in order, until so many are left."""
        while len(self._encoded) > left:
            self._assembly.append(self._encoded.popleft().result())

    def _encode(self, columns: list[pa.ChunkedArray]) -> EncodedGroup:
        table = self._prepared_table(columns)
        with _explain_group():
            return encode_group(self._open_writer, table)

    def _prepared_table(self, columns: list[pa.ChunkedArray]) -> pa.Table:
        """Return a table of these columns, each in one chunk: pages depend on chunks.

        The list is emptied, which frees each column once it is copied.
        """
        for index in range(len(columns)):
            columns[index] = self._prepared(columns[index], index)
        return pa.Table.from_arrays(columns, schema=self._plan.native)

    def _prepared(self, column: pa.ChunkedArray, index: int) -> pa.Array:
        array = column.combine_chunks()
        field = self._plan.native.field(index)
        try:
            if index in self._plan.categories:
                array = _encode_ordered(array, self._plan.categories[index], field.type)
            else:
                array = conform(array, field.type)
            if index in self._decimals:
                check_digits(array)  # Parquet has no bytes for more digits, and Arrow would cut them
        except pa.ArrowInvalid as error:
            remedy = "cast the column to another type first"
            raise ConversionError(
                field.name, f"Parquet cannot hold a value: {error}", remedy=remedy
            ) from error
        return array


@contextmanager
def _explain_group() -> Iterator[None]:
    """Raise what Arrow says of a row group that it cannot write as an error of the output."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConversionError("", f"a row group cannot be written as Parquet: {error}") from error


def _encode_ordered(array: pa.Array, categories: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    """Return the array with a dictionary of `categories`, followed by other values in order of appearance."""
    import pyarrow.compute as pc  # takes long, and few files have ordered dictionaries

    dense = conform(array, kind.value_type)
    values = pa.chunked_array([categories.cast(kind.value_type), dense.drop_null()]).unique()
    indices = pc.index_in(dense, value_set=values, skip_nulls=True).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=True)
