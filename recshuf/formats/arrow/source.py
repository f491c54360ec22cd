"""Arrow files as a source: pyarrow reads record batches one after the other, and threads check and cut them."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import InputError
from recshuf.formats.arrow import read_documents
from recshuf.formats.arrow.census import (
    HELD_BATCHES,
    ArrowFile,
    Column,
    Dictionaries,
    count_dense,
    count_dictionary_bytes,
    explained_arrow,
    has_dictionary,
    look_into,
    number_names,
    read_batches,
)
from recshuf.formats.arrow.sink import MOST_BATCH_BYTES, ArrowLayout
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.parquet.metadata import adopt, read_metadata, settle_copies
from recshuf.formats.parquet.types import dense_schema, dense_type, fit_index, leaf_types
from recshuf.formats.parquet.union import SchemaUnion, columns_of, conform_batch, pick_columns
from recshuf.interfaces import InputSummary, RowFragment, Source, TableDecoder, cut_batch
from recshuf.records.arrays import count_bytes, count_bytes_before
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import BatchLimits, Decoder, Fragment, InputFile, Metadata, ReadOptions


_ARRAY_BYTES = 500
"""Memory of an array beside its values."""


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

    def decoder(self) -> Decoder:
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
        if pt.is_dictionary(kind) and not pt.is_nested(dense):
            values[index] = known.find_values(columns[index], dense)
            fitting = fit_index(pa.dictionary(kind.index_type, dense, kind.ordered), len(values[index]))
            fields[index] = column.with_type(fitting)
        elif has_dictionary(kind):
            fields[index] = column.with_type(dense)
            place = "of" if pt.is_dictionary(kind) else "inside of"
            lost.setdefault(place, []).append(repr(column.name))
    notes = (
        f"{', '.join(names)}: dictionaries {place} nested values are written as plain values"
        for place, names in lost.items()
    )
    return pa.schema(fields, declared.metadata), values, tuple(notes)


def unite(
    inputs: Sequence[InputSummary], schemas: Sequence[pa.Schema], options: ReadOptions
) -> tuple[pa.Schema, list[int], pa.Schema, Metadata]:
    """Return the union of the schemas of inputs, its columns that options choose, and the schema of these, with all that is said.

    What inputs say of the records and the first one does not, is in the schema, too.
    """
    union = SchemaUnion(options)
    said = MetadataUnion(is_lenient=options.first_metadata)
    for index, (summary, schema) in enumerate(zip(inputs, schemas, strict=True)):
        union.add(schema, summary.name)
        if options.field is None and (summary.record_count != 0 or not index):
            values, columns = read_metadata(schema, options.columns), frozenset(schema.names)
            said.add(index, summary.name, values, columns=columns, origin=schema)
    picks = cast("list[int]", pick_columns(union.schema, options))  # no column is added
    chosen = pa.schema([union.schema.field(pick) for pick in picks])
    declared = settle_copies(union.schema.metadata, schemas[0], chosen)
    metadata, taken = said.merge()
    return union.schema, picks, adopt(declared, taken), metadata


def _tell_plain(file: ArrowFile) -> str:
    """Return a sentence about what is lost of a table that is read once; empty if nothing is."""
    table = file.file.table
    fields = table.schema if table is not None and table.is_once else ()
    picked = ", ".join(repr(field.name) for field in fields if has_dictionary(field.type))
    said = "dictionaries of what is read once are written as plain values"
    return f"{file.file.name}: {picked}: {said}" if picked else ""


def _check_types(fields: Sequence[pa.Field], name: str) -> None:
    """Refuse types whose values cannot be taken one by one, at any depth."""
    for field in fields:
        for leaf in leaf_types(field.type):
            if pt.is_union(leaf) or pt.is_run_end_encoded(leaf):
                problem = f"holds type {leaf}, which is not shuffled"
                remedy = "leave it out with --columns, or write the file with another type"
                raise InputError(name, problem, place=f"column {field.name!r}", remedy=remedy)
