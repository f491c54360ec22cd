"""Arrow shards: record batches of a fixed number of rows, whatever the batches that come, with one dictionary a column."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.arrow import make_documents, make_parts_document
from recshuf.formats.arrow.census import count_dictionary_bytes
from recshuf.formats.files import BUFFER_BYTES, BufferedTarget, FileSink
from recshuf.formats.parquet.types import dense_schema
from recshuf.interfaces import RowBuffer
from recshuf.records.conforming import conform, find_indices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from recshuf.interfaces import ShardFile, WriteOptions


_FILE_SUFFIXES = {".feather": True, ".ipc": True, ".arrows": False}
"""Suffixes of an output file whose readers take the file format, or streams, alone."""
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
    """What documents say, by their names, if all inputs are of data sets that were saved to disk."""


class ArrowTarget(BufferedTarget):
    """Shards in the format and with the compression of the first input; of a conversion, files without compression.

    The suffix of a single file may ask for the other format.
    """

    suffix = ".arrow"

    def __init__(self, schema: pa.Schema, layout: ArrowLayout | None, options: WriteOptions) -> None:
        self._layout = layout or ArrowLayout(dense_schema(schema), True, "none", 0, BATCH_BYTES)
        self.native, self._dictionaries = schema, self._layout.dictionaries
        indices = {index: self._layout.schema.types[index].index_type for index in self._dictionaries}
        fields = (field.with_type(indices.get(index, field.type)) for index, field in enumerate(schema))
        self.looked_up = pa.schema(fields)
        """That of the batches sinks wait for: with places in dictionaries in place of values."""
        added = list(schema)[len(self._layout.schema) :]
        self.declared = pa.schema([*self._layout.schema, *added], self._layout.schema.metadata)
        named = PurePath(options.file_name).suffix.lower()
        self._is_file = _FILE_SUFFIXES.get(named, self._layout.is_file)
        self._codec = options.compression or self._layout.compression
        self._level = options.compression_level
        super().__init__(drop_page_cache=options.drop_page_cache)
        self._make_options()

    @property
    def batch_rows(self) -> int | None:
        """Rows of a batch; None if the first ones of a shard tell, as inputs may hide the bytes of views."""
        rows = self._layout.batch_rows
        is_hidden = rows > _FIRST_ROWS and any(map(_has_views, self.declared.types))
        return None if is_hidden or not rows else rows

    def choose_rows(self, table: pa.Table) -> int:
        """Return the rows of batches, given the first ones: as many as planned, of at most about twice the bytes planned."""
        planned, most_bytes = self._layout.batch_rows or _MOST_ROWS, BATCH_BYTES
        if self._layout.batch_rows:
            most_bytes = 2 * max(self._layout.batch_bytes, BATCH_BYTES)
        row_bytes = max(1.0, table.combine_chunks().nbytes / max(1, table.num_rows))
        return max(int(table.num_rows), min(planned, int(most_bytes / row_bytes)), 1)

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - Arrow compresses with its own
        dictionary_bytes = 2 * count_dictionary_bytes(self._dictionaries.values())
        return _COPIES * max(self._layout.batch_bytes, BATCH_BYTES) + BUFFER_BYTES + dictionary_bytes

    def describe(self, shards: Sequence[ShardFile]) -> Mapping[str, bytes]:
        kept = self._layout.documents
        return make_documents(kept, self.declared.names, shards) if kept else {}

    def describe_parts(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return make_parts_document(names) if self._layout.documents else {}

    def _open(self, stream: BinaryIO, threads: int, files: ExitStack) -> ArrowSink:
        return ArrowSink(self, stream, threads, files)

    def open_writer(self, stream: BinaryIO, threads: int) -> pa.ipc.RecordBatchStreamWriter:
        make = pa.ipc.new_file if self._is_file else pa.ipc.new_stream
        options = self._make_options(use_threads=threads > 1)
        return make(pa.PythonFile(stream, "w"), self.declared, options=options)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.declare(self.look_up(batch))

    def look_up(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return records with places in dictionaries; Arrow prepares a dictionary for each call, so short batches cost much."""
        columns, kinds = batch.columns, self.declared.types
        for index, values in self._dictionaries.items():
            columns[index] = find_indices(columns[index], values, kinds[index])
        return pa.RecordBatch.from_arrays(columns, schema=self.looked_up)

    def declare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pa.DictionaryArray.from_arrays(column, self._dictionaries[index], ordered=kind.ordered)
            if index in self._dictionaries
            else conform(column, kind)
            for index, (column, kind) in enumerate(zip(batch.columns, self.declared.types, strict=True))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.declared)

    def _make_options(self, *, use_threads: bool = False) -> pa.ipc.IpcWriteOptions:
        name = {"lz4": "lz4_frame"}.get(self._codec, self._codec)
        codec = None if name == "none" else pa.Codec(name, self._level)
        return pa.ipc.IpcWriteOptions(compression=codec, use_threads=use_threads)


class ArrowSink(FileSink):
    """One Arrow file being written, to a stream that it closes only if that is among its files."""

    def __init__(self, target: ArrowTarget, stream: BinaryIO, threads: int, files: ExitStack) -> None:
        self._target, self._stream = target, stream
        self._writer = target.open_writer(stream, threads)
        self._first: list[pa.RecordBatch] | None = [] if target.batch_rows is None else None
        """First rows, until there are enough to tell how many are in a batch."""
        self._buffer = RowBuffer(target.looked_up, target.batch_rows or 1)
        super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and not batch.num_columns:
            raise ConversionError("record", "has no fields at all", remedy="choose --to jsonl")
        if self._first is None:
            self._add(batch)
            return
        self._first.append(batch)
        if sum(one.num_rows for one in self._first) >= _FIRST_ROWS:
            self._learn(self._first)

    def _learn(self, first: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(first, self._target.native)
        rows = self._target.choose_rows(table.slice(0, _FIRST_ROWS))
        self._first, self._buffer = None, RowBuffer(self._target.looked_up, rows)
        for batch in first:
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        for table in self._buffer.add(self._target.look_up(batch)):
            self._write(table)

    def _complete(self) -> None:
        if self._first is not None:
            self._learn(self._first)
        if (rest := self._buffer.rest()).num_rows:
            self._write(rest)
        self._writer.close()
        self._stream.flush()

    def _write(self, table: pa.Table) -> None:
        columns = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._target.looked_up)
        self._writer.write_batch(self._target.declare(batch))
        self._count += batch.num_rows


def _has_views(kind: pa.DataType) -> bool:
    """Tell whether rows may share the bytes of their values, at any depth, without a dictionary."""
    return "_view" in str(kind)
