"""Arrow files: pyarrow reads record batches one after the other, and threads check and cut them.

Shards have record batches of a fixed number of rows, whatever the batches that come, with one dictionary a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError
from recshuf.formats.arrow import make_documents, make_parts_document, read_documents
from recshuf.formats.arrow.census import (
    HELD_BATCHES,
    ArrowFile,
    Column,
    Dictionaries,
    count_dense,
    count_dictionary_bytes,
    explained_arrow,
    has_dictionary,
    is_united,
    look_into,
    number_names,
    read_batches,
)
from recshuf.formats.files import BUFFER_BYTES, BufferedTarget, FileSink
from recshuf.formats.parquet.types import dense_schema, dense_type, fit_index, leaf_types
from recshuf.formats.parquet.union import columns_of, conform_batch, unite
from recshuf.interfaces import RowBuffer, RowFragment, Source, TableDecoder, cut_batch
from recshuf.records.arrays import count_bytes, count_bytes_before
from recshuf.records.batch import concat_batches
from recshuf.records.conforming import conform, find_indices, settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import BatchLimits, Fragment, InputFile, ReadOptions, ShardFile, WriteOptions


_ARRAY_BYTES = 500
"""Memory of an array beside its values."""
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


class ArrowSource(Source):
    """All Arrow inputs of a run, under one schema.

    The native form is the declared schema with dictionaries and views made dense; the declared types come back in shards
    of the same format. Of the options `columns`, `widens`, `first_metadata`, `field` and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        known = Dictionaries(options.memory_bytes)
        self._files = [look_into(file, options, known) for file in inputs]
        self.inputs = tuple(file.summary for file in self._files)
        self.schemas = [file.schema for file in self._files]
        union, picks, declared, self.metadata = unite(self.inputs, self.schemas, options)
        numbered = number_names(union.names)
        names = {numbered[pick][0] for pick in picks}
        self._columns = []
        for file in self._files:
            _check_types([field for field in file.schema if field.name in names], file.file.name)
            places = columns_of(union, file.schema, file.file.name, [])
            # The index of pandas is the last column, and not stored.
            stored = len(file.schema) - (file.range_index is not None)
            origins = [file.range_index if place == stored else place for place in places]
            self._columns.append([origins[pick] for pick in picks])
        columns = [numbered[pick] for pick in picks]
        declared, dictionaries, lost = _unite_dictionaries(declared, columns, known)
        self.notes = tuple(filter(None, [self.metadata.differences, *lost, *map(_tell_plain, self._files)]))
        self._dictionary_bytes = count_dictionary_bytes(dictionaries.values())
        self.schema = dense_schema(declared)
        self.layout = self._choose_layout(declared, dictionaries)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield parts of record batches that fit a block, as far as their sizes tell; short batches are joined.

        Tools write batches of 1,000 rows, and to handle each alone took twice the time of all.
        """
        file, limits = self._files[input_index], self._options.limit(block_bytes, max_record_bytes)
        read = partial(_read_parts, file, self.schema, self._columns[input_index], limits)
        most_bytes, later = min(block_bytes, max_record_bytes), " or later" if file.file.table else ""
        parts, size, row, count = list[pa.RecordBatch](), 0, 0, 0

        def join() -> Fragment:
            return RowFragment(
                file.file.name, row, count, partial(read, row, parts), limits, measure=count_bytes
            )

        with explained_arrow(file.file, lambda: f"row {row + count}{later}"):
            for batch in read_batches(file.file, is_file=file.is_file):
                batch_bytes = _count_held(batch, file) + _ARRAY_BYTES * batch.num_columns
                step = -(-batch.num_rows // max(1, -(-batch_bytes // most_bytes))) or 1
                for start in range(0, batch.num_rows, step):
                    part = batch.slice(start, step)
                    part_bytes = batch_bytes * part.num_rows // batch.num_rows
                    if parts and size + part_bytes > most_bytes:
                        yield join()
                        parts, size, row, count = [], 0, row + count, 0
                    parts.append(part)
                    size, count = size + part_bytes, count + part.num_rows
            if parts:
                yield join()

    def find_head(self, input_index: int, row_count: int, byte_count: int) -> pa.Table:
        """Return the first rows of a table that a caller holds, in the native schema: up to so many, and about so many bytes."""
        file, columns, parts = self._files[input_index], self._columns[input_index], list[pa.RecordBatch]()
        rows = size = 0
        with explained_arrow(file.file, lambda: "row 0"):
            for batch in file.file.table.head(row_count, byte_count) if file.file.table else ():
                held = batch.slice(0, row_count - rows)
                # Few bytes of a batch may stand for many.
                before = count_bytes_before(held, np.arange(len(held) + 1))
                fitting = max(1, int(np.searchsorted(before, byte_count - size, "right")) - 1)
                parts.append(conform_batch(held.slice(0, fitting), self.schema, columns, rows))
                if fitting < len(batch):
                    break
                rows, size = rows + len(parts[-1]), size + count_bytes(parts[-1])
        return pa.Table.from_batches(parts, self.schema)

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of the longest batch seen, which its parts keep, of the next one, a block that is joined, and dictionaries."""
        batch_bytes = max(file.batch_bytes for file in self._files)
        return 3 * block_bytes + HELD_BATCHES * batch_bytes + self._dictionary_bytes

    def decoder(self) -> TableDecoder:
        return TableDecoder(self.schema)

    def _choose_layout(self, declared: pa.Schema, dictionaries: dict[int, pa.Array]) -> ArrowLayout:
        first = next((file for file in self._files if file.file.table is None), self._files[0])
        # Rows are written in another order than the first ones, which may be shorter than most.
        means = ((one.native_bytes or 0) / max(1, one.record_count or 0) for one in self.inputs)
        row_bytes = max(1.0, *means, *(file.row_bytes for file in self._files))
        rows = min(max(file.batch_rows for file in self._files), int(MOST_BATCH_BYTES / row_bytes) or 1)
        documents = {} if first.is_file else read_documents(file.file for file in self._files)
        return ArrowLayout(
            declared, first.is_file, first.codec, rows, int(rows * row_bytes), dictionaries, documents
        )


def _read_parts(
    file: ArrowFile,
    schema: pa.Schema,
    columns: Sequence[int | RangeIndex | None],
    limits: BatchLimits,
    first_row: int,
    parts: Sequence[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield consecutive rows in the native schema, given the parts of record batches that hold them: joined if they fit a block."""
    name, row, joined = file.file.name, first_row, [parts]
    with explained_arrow(file.file, lambda: f"row {row}"):
        for part in parts:
            # What a caller holds is no file, whose bytes anybody may have written.
            part.validate(full=file.file.table is None)
            row += part.num_rows
        row = first_row
        if not file.is_dense and sum(map(count_dense, parts)) > limits.block_bytes:
            starts = accumulate((part.num_rows for part in parts), initial=row)
            joined = [
                [piece]
                for part, start in zip(parts, starts, strict=False)
                for piece in cut_batch(part, name, start, limits, measure=count_dense)
            ]
        for pieces in joined:
            ready = []
            for piece in pieces:
                ready.append(conform_batch(piece, schema, columns, row))
                row += piece.num_rows
            yield concat_batches(ready)


def _count_held(batch: pa.RecordBatch, file: ArrowFile) -> int:
    """Return the bytes of a batch, in native form or as it is in memory, if that is more; dictionaries are shared.

    Those of a file are those of buffers, as offsets are not checked yet; a caller's buffers may hold more than the batch.
    """
    if file.file.table is not None:
        return int(batch.nbytes) if file.is_dense else count_dense(batch)
    if file.is_dense:
        return int(batch.get_total_buffer_size())
    dictionaries = (one.dictionary for one in batch.columns if pt.is_dictionary(one.type))
    held: int = batch.get_total_buffer_size() - sum(one.get_total_buffer_size() for one in dictionaries)
    return max(held, int(file.row_bytes * batch.num_rows))


def _unite_dictionaries(
    declared: pa.Schema, columns: Sequence[Column], known: Dictionaries
) -> tuple[pa.Schema, dict[int, pa.Array], tuple[str, ...]]:
    """Return the declared schema with index types that fit, all values of each dictionary, and what is lost."""
    values: dict[int, pa.Array] = {}
    lost: dict[str, list[str]] = {}
    fields = list(declared)
    for index, column in enumerate(fields):
        kind, dense = column.type, dense_type(column.type)
        if pt.is_dictionary(kind) and is_united(dense):
            values[index] = known.find_values(columns[index], dense)
            fitting = fit_index(pa.dictionary(kind.index_type, dense, kind.ordered), len(values[index]))
            fields[index] = column.with_type(fitting)
        elif has_dictionary(kind):
            fields[index] = column.with_type(dense)
            place = "of" if pt.is_dictionary(kind) else "inside of"
            place += " nested values" if pt.is_nested(dense) else " short decimals"
            lost.setdefault(place, []).append(repr(column.name))
    notes = (
        f"{', '.join(names)}: dictionaries {place} are written as plain values"
        for place, names in lost.items()
    )
    return pa.schema(fields, declared.metadata), values, tuple(notes)


def _tell_plain(file: ArrowFile) -> str:
    """Return a sentence about what is lost of a table that is read once; empty if nothing is."""
    table = file.file.table
    fields = table.schema if table is not None and table.is_once else ()
    picked = ", ".join(repr(field.name) for field in fields if has_dictionary(field.type))
    said = "dictionaries of what is read once are written as plain values"
    return f"{file.file.name}: {picked}: {said}" if picked else ""


def _check_types(fields: Sequence[pa.Field], name: str) -> None:
    """Refuse types whose values cannot be taken one by one, at any depth."""
    for column in fields:
        for leaf in leaf_types(column.type):
            if pt.is_union(leaf) or pt.is_run_end_encoded(leaf):
                problem = f"holds type {leaf}, which is not shuffled"
                remedy = "leave it out with --columns, or write the file with another type"
                raise InputError(name, problem, place=f"column {column.name!r}", remedy=remedy)


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
            indices = find_indices(columns[index], values, kinds[index])
            if indices.null_count != columns[index].null_count:
                name = self.looked_up.field(index).name
                raise ConversionError(name, "its dictionary lacks a value", remedy="report this as a fault")
            columns[index] = indices
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
        columns = [settle(column.combine_chunks()) for column in table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._target.looked_up)
        self._writer.write_batch(self._target.declare(batch))
        self._count += batch.num_rows


def _has_views(kind: pa.DataType) -> bool:
    """Tell whether rows may share the bytes of their values, at any depth, without a dictionary."""
    return "_view" in str(kind)
