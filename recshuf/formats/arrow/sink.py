"""Arrow shards: record batches of a fixed number of rows, whatever the batches that come, with one dictionary a column."""

from __future__ import annotations

import io
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.arrow.saved import make_documents, make_parts_document
from recshuf.formats.parquet.types import dense_schema
from recshuf.interfaces import RowBuffer, Sink, Target
from recshuf.records.conforming import conform
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from recshuf.interfaces import ShardFile, WriteOptions


_FILE_BUFFER_BYTES = 1 << 20
BATCH_BYTES = 8 << 20
"""Most bytes of a batch, unless the inputs have longer ones; of a conversion, about its bytes."""
MOST_BATCH_BYTES = 64 << 20
_FIRST_ROWS = 1024
_MOST_ROWS = 1 << 16
_COPIES = 3
"""A batch is held as it came, made contiguous, and encoded."""


@dataclass(frozen=True, slots=True)
class ArrowLayout:
    """How the inputs are stored."""

    schema: pa.Schema
    """The declared schema, dictionaries and views included, which shards declare again."""
    is_file: bool
    """Whether the first input is in the file format."""
    compression: str
    batch_rows: int
    """Rows of each batch but the last; 0 if the inputs have one batch each, which says nothing."""
    batch_bytes: int
    dictionaries: dict[int, pa.Array] = field(default_factory=dict)
    """For each column of a dictionary type all values of the inputs, in their order."""
    documents: dict[str, str] = field(default_factory=dict)
    """What documents say, by their names, if all inputs are of data sets that were saved to disk; see `saved`."""


class ArrowTarget(Target):
    """Shards in the format and with the compression of the first input; of a conversion, files without compression."""

    suffix = ".arrow"

    def __init__(self, schema: pa.Schema, layout: ArrowLayout | None, options: WriteOptions) -> None:
        self._layout = layout or ArrowLayout(dense_schema(schema), True, "none", 0, BATCH_BYTES)
        added = list(schema)[len(self._layout.schema) :]
        self.declared = pa.schema([*self._layout.schema, *added], self._layout.schema.metadata)
        self._native = schema
        self._codec = options.compression or self._layout.compression
        self._level = options.compression_level
        self._drop_page_cache = options.drop_page_cache
        self._make_options()
        self._check_types()

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - Arrow compresses with its own
        return _COPIES * max(self._layout.batch_bytes, BATCH_BYTES) + _FILE_BUFFER_BYTES

    def describe(self, shards: Sequence[ShardFile]) -> Mapping[str, bytes]:
        kept = self._layout.documents
        return make_documents(kept, self.declared.names, shards) if kept else {}

    def describe_parts(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return make_parts_document(names) if self._layout.documents else {}

    def open(self, path: Path, threads: int) -> Sink:
        file = BehindFile(path, "xb", drop_page_cache=self._drop_page_cache)
        return self._open(io.BufferedWriter(file, _FILE_BUFFER_BYTES), threads, closes=True)

    def open_stream(self, stream: BinaryIO, threads: int) -> Sink:
        return self._open(stream, threads, closes=False)

    def _open(self, stream: BinaryIO, threads: int, *, closes: bool) -> Sink:
        options = self._make_options(use_threads=threads > 1)
        make = pa.ipc.new_file if self._layout.is_file else pa.ipc.new_stream
        writer = make(pa.PythonFile(_Counted(stream), "w"), self.declared, options=options)
        return ArrowSink(stream, writer, self._native, self.encode, self._layout.batch_rows, closes=closes)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._encode(column, index) for index, column in enumerate(batch.columns)]
        return pa.RecordBatch.from_arrays(columns, schema=self.declared)

    def _encode(self, array: pa.Array, index: int) -> pa.Array:
        kind, dictionaries = self.declared.field(index).type, self._layout.dictionaries
        if index not in dictionaries:
            return conform(array, kind)
        import pyarrow.compute as pc

        values = dictionaries[index]
        indices = pc.index_in(array, value_set=values, skip_nulls=True).cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)

    def _make_options(self, *, use_threads: bool = False) -> pa.ipc.IpcWriteOptions:
        name = {"lz4": "lz4_frame"}.get(self._codec, self._codec)
        codec = None if name == "none" else pa.Codec(name, self._level)
        return pa.ipc.IpcWriteOptions(compression=codec, use_threads=use_threads)

    def _check_types(self) -> None:
        for column in self.declared:
            try:
                schema = pa.schema([column])
                with pa.ipc.new_stream(pa.BufferOutputStream(), schema) as writer:
                    writer.write_batch(pa.RecordBatch.from_arrays([pa.nulls(0, column.type)], schema=schema))
            except (pa.ArrowException, NotImplementedError) as error:
                raise ConversionError(
                    column.name,
                    f"Arrow IPC cannot hold type {column.type}: {error}",
                    remedy="convert it first",
                ) from error


class _Counted:
    """A stream that says where it is, which the footer needs, also where the stream itself cannot."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._place = stream, 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._place += len(data)

    def tell(self) -> int:
        return self._place

    def flush(self) -> None:
        """Do nothing: the sink flushes at its end."""


class ArrowSink(Sink):
    """One Arrow file being written."""

    def __init__(
        self,
        stream: BinaryIO,
        writer: pa.ipc.RecordBatchStreamWriter,
        native: pa.Schema,
        encode: Callable[[pa.RecordBatch], pa.RecordBatch],
        batch_rows: int,
        *,
        closes: bool,
    ) -> None:
        self._stream, self._writer, self._closes = stream, writer, closes
        self._native, self._encode = native, encode
        self._learns = not batch_rows
        self._buffer = RowBuffer(native, batch_rows or _FIRST_ROWS)
        self._count = 0
        self._is_open = True

    @property
    def record_count(self) -> int:
        return self._count

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and not batch.num_columns:
            raise ConversionError("record", "has no fields at all", remedy="choose --to jsonl")
        for table in self._buffer.add(batch):
            if self._learns:
                self._learns = False
                self._buffer.take_back(table, _choose_rows(table))
                continue
            self._write(table)

    def close(self) -> None:
        if not self._is_open:
            return
        try:
            rest = self._buffer.rest()
            rows = _choose_rows(rest) if self._learns else max(1, rest.num_rows)
            for start in range(0, rest.num_rows, rows):
                self._write(rest.slice(start, rows))
            self._writer.close()
        finally:
            self.abort(flushes=True)

    def abort(self, *, flushes: bool = False) -> None:
        if not self._is_open:
            return
        self._is_open = False
        with nullcontext() if flushes else suppress(OSError, ValueError):
            if self._closes:
                self._stream.close()
            elif flushes:
                self._stream.flush()

    def _write(self, table: pa.Table) -> None:
        columns = [column.combine_chunks() for column in table.columns]
        self._writer.write_batch(self._encode(pa.RecordBatch.from_arrays(columns, schema=self._native)))
        self._count += table.num_rows


def _choose_rows(table: pa.Table) -> int:
    """Return the rows of about `BATCH_BYTES`, at least as many as the table has."""
    row_bytes = max(1.0, table.combine_chunks().nbytes / max(1, table.num_rows))
    return max(int(table.num_rows), min(_MOST_ROWS, int(BATCH_BYTES / row_bytes)), 1)
