"""Arrow files as a source: pyarrow reads record batches one after the other, and threads check and cut them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import InputError
from recshuf.formats.arrow import MAGIC, MAGIC_FEATHER
from recshuf.formats.arrow.dictionaries import Column, Dictionaries, count_dictionary_bytes, number_names
from recshuf.formats.arrow.messages import find_first_batch
from recshuf.formats.arrow.saved import read_documents
from recshuf.formats.arrow.sink import MOST_BATCH_BYTES, ArrowLayout, has_views
from recshuf.formats.files import DAMAGED, check_memory, explained
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.parquet.metadata import adopt, read_metadata, settle, settle_copies
from recshuf.formats.parquet.types import dense_schema, dense_type, fit_index, leaf_types
from recshuf.formats.parquet.union import SchemaUnion, columns_of, conform_batch, pick_columns
from recshuf.interfaces import InputSummary, RowFragment, Source, TableDecoder, open_raw
from recshuf.records.arrays import count_bytes, count_bytes_before
from recshuf.records.batch import concat_batches
from recshuf.storage.reading.local import read_head
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import Decoder, Fragment, InputFile, Metadata, ReadOptions, Table


_HELD_BATCHES = 2
"""A record batch is kept until its rows are joined in blocks, while the next one is read or what was stored is unpacked."""
_ARRAY_BYTES = 500
"""Memory of an array beside its values."""
_DENSE_ROWS = 1 << 14
"""Rows of a batch that are measured at once: a dictionary may make few bytes of many."""
_SAMPLES, _SAMPLE_ROWS = 4, 256
"""Rows of a batch of a caller that are measured, from so many places: each makes all values of a dictionary dense."""
_PIECE_ROWS = 1 << 10
"""Rows of what a caller holds that are made dense at first."""
_FAULTS = (MemoryError, pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError)


class _File(NamedTuple):
    """What is known of one input before its records are read."""

    file: InputFile
    is_file: bool
    schema: pa.Schema
    """Declared, without claims on counts; with the index of pandas last, if it is a range that says more than the row."""
    range_index: RangeIndex | None
    rows: int
    """Exact in the file format; else estimated by the first batch."""
    batch_rows: int
    """Rows of the longest batch that was seen; 0 if it is the only one."""
    batch_bytes: int
    """Bytes of the longest batch, with its dictionaries."""
    row_bytes: float
    """Bytes of a row of the first batch, decoded."""
    byte_count: int
    """About the bytes of all rows, decoded."""
    codec: str


class ArrowSource(Source):
    """All Arrow inputs of a run, under one schema.

    The native form is the declared schema with dictionaries and views made dense; the declared types come back in shards
    of the same format. Of the options `columns`, `widens`, `first_metadata`, `field` and `max_record_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        known = Dictionaries(options.memory_bytes)
        self._files = [_look_into(file, options, known) for file in inputs]
        self.inputs = tuple(map(_summarise, self._files))
        self.schemas = [file.schema for file in self._files]
        union, picks, declared, self.metadata = unite(self.inputs, self.schemas, options)
        numbered = number_names(union.names)
        names = {numbered[pick][0] for pick in picks}
        self._columns = []
        for file in self._files:
            _check_types([field for field in file.schema if field.name in names], file.file.name)
            places = columns_of(union, file.schema, file.file.name, [])
            self._columns.append([places[pick] for pick in picks])
        declared, dictionaries, lost = _unite_dictionaries(
            declared, [numbered[pick] for pick in picks], known
        )
        self.notes = tuple(filter(None, [self.metadata.differences, *lost, *map(_tell_plain, self._files)]))
        self._dictionary_bytes = count_dictionary_bytes(dictionaries.values())
        self.schema = dense_schema(declared)
        self.layout = self._choose_layout(declared, dictionaries)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield parts of record batches that fit a block, as the file declares them; short batches are joined.

        Tools write batches of 1,000 rows, and to handle each alone took twice the time of all.
        """
        file, columns = self._files[input_index], self._columns[input_index]
        limits = self._options.limit(block_bytes, max_record_bytes)
        later = " or later" if file.file.table else ""
        # Several batches may share a dictionary, and many rows the bytes of views.
        is_held = file.file.table is not None
        shared = [
            place
            for place, kind in enumerate(file.schema.types)
            if place in columns and (_has_dictionary(kind) or has_views(kind))
        ]
        others = [at for at in columns if at is not None and at not in shared]
        parts, first_row, count, rows, held_bytes = list[pa.RecordBatch](), 0, 0, 0, 0

        def join() -> Fragment:
            read = partial(_read_parts, file, parts, first_row, self.schema, columns)
            return RowFragment(file.file.name, first_row, count, read, limits, measure=count_bytes)

        with _explained(file.file, lambda: f"row {first_row + count}{later}"):
            whole = _read_batches(file.file, is_file=file.is_file)
            for batch, own, before in _measure(whole, shared, others, is_held=is_held):
                if not count:
                    size = file.row_bytes or _measure_row(batch)
                    rows = max(1, int(min(block_bytes, max_record_bytes) / max(1, size)))
                place = 0
                while place < batch.num_rows:
                    stop = min(place + rows - count, batch.num_rows)
                    if before is not None:
                        fitting = np.searchsorted(before, before[place] + block_bytes - held_bytes, "right")
                        stop = min(stop, max(place + (not count), int(fitting) - 1))
                    parts.append(batch.slice(place, stop - place))
                    count += stop - place
                    held_bytes += (
                        own * (stop - place) // batch.num_rows
                        if before is None
                        else int(before[stop] - before[place])
                    )
                    place = stop
                    if count == rows or place < batch.num_rows:
                        yield join()
                        parts, first_row, count, held_bytes = [], first_row + count, 0, 0
                held_bytes += _ARRAY_BYTES * batch.num_columns
                if parts and held_bytes > block_bytes:
                    yield join()
                    parts, first_row, count, held_bytes = [], first_row + count, 0, 0
            if parts:
                yield join()

    def find_head(self, input_index: int, row_count: int, byte_count: int) -> pa.Table:
        """Return the first rows of a table that a caller holds, in the native schema: up to so many, and about so many bytes."""
        file, columns, parts = self._files[input_index], self._columns[input_index], list[pa.RecordBatch]()
        rows = size = 0
        with _explained(file.file, lambda: "row 0"):
            held = file.file.table.head(row_count, byte_count) if file.file.table else ()
            for batch in held:
                start = 0
                # In pieces, as few bytes of a batch may stand for many.
                while start < batch.num_rows and rows < row_count and size < byte_count:
                    piece = batch.slice(start, min(max(_PIECE_ROWS, rows), row_count - rows))
                    part = _conform(piece, rows, file, self.schema, columns)
                    fitting = part.num_rows * (byte_count - size) // max(1, count_bytes(part))
                    parts.append(part.slice(0, max(1, fitting)))
                    start, rows, size = start + len(part), rows + len(part), size + count_bytes(part)
        return pa.Table.from_batches(parts, self.schema)

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of the longest batch seen, which its parts keep, of the next one, a block that is joined, and dictionaries."""
        batch_bytes = max(file.batch_bytes for file in self._files)
        return 3 * block_bytes + _HELD_BATCHES * batch_bytes + self._dictionary_bytes

    def decoder(self) -> Decoder:
        return TableDecoder(self.schema)

    def _choose_layout(self, declared: pa.Schema, dictionaries: dict[int, pa.Array]) -> ArrowLayout:
        first = next((file for file in self._files if file.file.table is None), self._files[0])
        # Rows are written in another order than the first ones, which may be shorter than most.
        row_bytes = max(1.0, *(max(one.row_bytes, one.byte_count / max(1, one.rows)) for one in self._files))
        rows = min(max(file.batch_rows for file in self._files), int(MOST_BATCH_BYTES / row_bytes) or 1)
        documents = {} if first.is_file else read_documents(file.file for file in self._files)
        return ArrowLayout(
            declared, first.is_file, first.codec, rows, int(rows * row_bytes), dictionaries, documents
        )


def _measure(
    batches: Iterable[pa.RecordBatch], shared: Sequence[int], others: Sequence[int], *, is_held: bool
) -> Iterator[tuple[pa.RecordBatch, int, NDArray[np.int64] | None]]:
    """Yield batches with their bytes, or pieces with the bytes in native form before each row, and of all, if columns share values.

    Later rows may be longer. Bytes are those of buffers, as offsets are not checked yet, but a caller's may hold more.
    """
    for batch in batches:
        alone = batch.select([at for at in others if at < batch.num_columns]) if shared else batch
        own = alone.nbytes if is_held else alone.get_total_buffer_size()
        if not shared:
            yield batch, own, None
            continue
        columns = batch.select(shared)
        columns.validate()
        # The bytes of all values of a dictionary are found for each piece.
        dictionaries = [column.dictionary for column in columns.columns if pt.is_dictionary(column.type)]
        step = max([_DENSE_ROWS, *map(len, dictionaries)])
        # A batch of a file may hold the bytes of views that are those of rows elsewhere.
        views = [at for at, kind in enumerate(columns.schema.types) if not (is_held or _has_dictionary(kind))]
        held = columns.select(views).get_total_buffer_size() if views else 0
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            rows = np.arange(piece.num_rows + 1)
            dense = count_bytes_before(piece.select(shared), rows)
            yield piece, 0, np.maximum(dense, rows * held // batch.num_rows) + rows * own // batch.num_rows


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
        elif _has_dictionary(kind):
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


def _read_parts(
    file: _File,
    parts: Sequence[pa.RecordBatch],
    first_row: int,
    schema: pa.Schema,
    columns: Sequence[int | None],
) -> pa.RecordBatch:
    """Return consecutive rows, given the parts of record batches that hold them, in the native schema."""
    row, found = first_row, []
    # What a caller holds is no file, whose bytes anybody may have written.
    is_foreign = file.file.table is None
    with _explained(file.file, lambda: f"row {row}"):
        for part in parts:
            part.validate(full=is_foreign)
            found.append(_conform(part, row, file, schema, columns))
            row += part.num_rows
        return concat_batches(found)


def _conform(
    stored: pa.RecordBatch, first_row: int, file: _File, schema: pa.Schema, columns: Sequence[int | None]
) -> pa.RecordBatch:
    origins = [file.range_index if column == stored.num_columns else column for column in columns]
    return conform_batch(stored, schema, origins, first_row)


def _look_into(file: InputFile, options: ReadOptions, known: Dictionaries) -> _File:
    """Return what is known of a file: of the file format all but its values, of a stream its first batch.

    One with dictionaries is read to its end, as they may change in it.
    """
    if file.table is not None:
        return _look_into_table(file, file.table, options, known)
    is_file = _is_file_format(file)
    told = find_first_batch(file, is_file=is_file)
    what, needed = f"record batches of {format_size(told.body_bytes)}", _HELD_BATCHES * told.body_bytes
    check_memory(file.name, what, needed, options.memory_bytes, "raise --memory, or write shorter batches")
    counts, first_rows, stored_bytes, size, spread_bytes = list[int](), 0, 0, 0, 0
    with _explained(file, lambda: f"row {sum(counts)}"):
        schema = _read_schema(file, is_file=is_file)
        dictionaries = _list_dictionaries(schema, options)
        first = next(_read_batches(file, is_file=is_file), None)
        if dictionaries or is_file or not len(schema):
            spread_bytes = _scan(file, schema, counts, dictionaries, known, is_file=is_file)
        if first is not None:
            first.validate(full=True)
            first_rows, stored_bytes, size = first.num_rows, first.nbytes, _count_dense(first)
    rows, longest, is_single = sum(counts), max(counts, default=0), len(counts) <= 1
    if first is not None and not counts:
        share = (file.stamp.size if file.stamp else 1) / max(1, first.get_total_buffer_size())
        rows, longest, is_single = max(first_rows, int(first_rows * share)), first_rows, share <= 2
    row_bytes = max(size / max(1, first_rows), spread_bytes / max(1, rows))
    batch_bytes = int(longest * stored_bytes / max(1, first_rows))
    byte_count = int(rows * row_bytes)
    has_dictionary = any(map(_has_dictionary, schema.types))
    if is_file and file.stamp and told.stored_bytes and longest and not (is_single or has_dictionary):
        # Later rows may be longer; piles that are larger than planned are split, which costs a third of a run.
        byte_count = max(byte_count, int(size * file.stamp.size / told.stored_bytes))
    batch_rows = 0 if is_single else longest
    return _describe(file, is_file, schema, rows, batch_rows, batch_bytes, row_bytes, byte_count, told.codec)


def _look_into_table(file: InputFile, table: Table, options: ReadOptions, known: Dictionaries) -> _File:
    """Return what is known of what a caller holds. It is read to its end if it has dictionaries, and not at all if only once."""
    counts = list[int]()
    with _explained(file, lambda: f"row {sum(counts)}"):
        schema = _read_schema(file, is_file=True)
        batches = () if table.is_once else table.batches()
        # The first batch of a choice may be empty.
        first = next((batch for batch in batches if batch.num_rows), None)
        if dictionaries := _list_dictionaries(schema, options):
            _scan(file, schema, counts, dictionaries, known, is_file=True)
    rows, row_bytes = table.row_count or 0, 0.0
    if table.byte_count is not None:
        row_bytes = table.byte_count / max(1, rows)
    if first is not None and (table.byte_count is None or schema != dense_schema(schema)):
        row_bytes = _measure_row(first)
    batch_bytes = int(first.num_rows * row_bytes) if first is not None and table.byte_count is None else 0
    return _describe(file, True, schema, rows, 0, batch_bytes, row_bytes, int(rows * row_bytes), "none")


def _describe(file: InputFile, is_file: bool, schema: pa.Schema, rows: int, *sizes: Any) -> _File:
    if rows and not len(schema):
        raise InputError(
            file.name, f"has {count_of(rows, 'row')} but no columns, so there is nothing to shuffle"
        )
    schema, index = settle(schema, rows)
    schema = schema if index is None else schema.append(pa.field(index.name, pa.int64()))
    return _File(file, is_file, schema, index, rows, *sizes)


def _list_dictionaries(schema: pa.Schema, options: ReadOptions) -> list[int]:
    """Return the places of chosen columns that are dictionaries, or have some inside."""
    names = schema.names if options.columns is None else options.columns
    fields = enumerate(schema)
    return [at for at, field in fields if _has_dictionary(field.type) and field.name in names]


def _scan(
    file: InputFile,
    schema: pa.Schema,
    counts: list[int],
    dictionaries: Sequence[int],
    known: Dictionaries,
    *,
    is_file: bool,
) -> int:
    """Note the rows of each batch of an input, and the dictionaries of some columns; return the bytes of all values of these."""
    # Without dictionaries, rows are counted in a column of numbers, which is read fastest.
    numbers = (at for at, kind in enumerate(schema.types) if pt.is_primitive(kind))
    only = [*dictionaries] or ([next(numbers, 0)] if len(schema) else [])
    numbered = number_names(schema.names)
    columns = [numbered[place] for place in dictionaries]
    byte_count = 0
    for batch in _read_batches(file, is_file=is_file, columns=only):
        counts.append(batch.num_rows)
        for column, values in zip(columns, batch.columns, strict=False):
            if pt.is_dictionary(values.type):
                found = values.dictionary
                found.validate(full=True)  # to compare what is damaged reads beyond its buffers
                known.add(column, found, file.name)
        for _, _, before in _measure([batch], range(len(columns)), (), is_held=False):
            byte_count += 0 if before is None else int(before[-1])
    return byte_count


def _count_dense(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch in native form, without columns that cannot be shuffled."""
    known = batch.select([at for at, kind in enumerate(batch.schema.types) if _find_odd(kind) is None])
    return sum(
        count_bytes(known.slice(start, _DENSE_ROWS)) for start in range(0, batch.num_rows, _DENSE_ROWS)
    )


def _measure_row(batch: pa.RecordBatch) -> float:
    """Return the bytes of a row in native form: of some rows, where dictionaries or views hide them."""
    if batch.schema == dense_schema(batch.schema):
        return float(batch.nbytes / max(1, batch.num_rows))
    step = max(_SAMPLE_ROWS, -(-batch.num_rows // _SAMPLES))
    parts = [batch.slice(start, _SAMPLE_ROWS) for start in range(0, batch.num_rows, step)]
    return float(sum(map(_count_dense, parts)) / max(1, sum(part.num_rows for part in parts)))


def _tell_plain(file: _File) -> str:
    """Return a sentence about what is lost of a table that is read once; empty if nothing is."""
    table = file.file.table
    fields = table.schema if table is not None and table.is_once else ()
    picked = ", ".join(repr(field.name) for field in fields if _has_dictionary(field.type))
    said = "dictionaries of what is read once are written as plain values"
    return f"{file.file.name}: {picked}: {said}" if picked else ""


def _summarise(file: _File) -> InputSummary:
    name, table, size = file.file.name, file.file.table, file.byte_count
    if table is None:
        return InputSummary(name, file.file.stamp and file.file.stamp.size, file.rows, file.is_file, size)
    if table.row_count is None:
        return InputSummary(name, None, None, False, None)
    return InputSummary(name, table.byte_count or size, file.rows, True, size)


def _is_file_format(file: InputFile) -> bool:
    """Tell whether a file is in the file format, else in that of streams; one of neither is refused."""
    head = read_head(file, 8)
    if head.startswith(MAGIC_FEATHER):
        remedy = "read it with pyarrow.feather.read_table, and write it again"
        raise InputError(file.name, "is Feather version 1, which is another format", remedy=remedy)
    if not head:
        raise InputError(file.name, "is empty (0 bytes), not an Arrow file")
    return head.startswith(MAGIC)


def _read_schema(file: InputFile, *, is_file: bool) -> pa.Schema:
    if file.table is None:
        with _opened(file, is_file=is_file) as reader:
            return reader.schema
    schema = file.table.schema
    # Dictionaries of what is read once are known when it has been read, and shards say their types before that.
    return dense_schema(schema) if file.table.is_once else schema


def _read_batches(
    file: InputFile, *, is_file: bool, columns: list[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, those of a table or stream whole; with these columns alone, if they are given."""
    if file.table is not None:
        batches = file.table.batches()
        yield from batches if columns is None else (batch.select(columns) for batch in batches)
        return
    with _opened(file, is_file=is_file, columns=columns) as reader:
        if is_file:
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from reader if columns is None else (batch.select(columns) for batch in reader)


@contextmanager
def _opened(file: InputFile, *, is_file: bool, columns: list[int] | None = None) -> Iterator[Any]:
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
    with open_raw(file) as opened, open_reader(opened, options=options if is_file else None) as reader:
        yield reader


def _check_types(fields: Sequence[pa.Field], name: str) -> None:
    for field in fields:
        if (odd := _find_odd(field.type)) is not None:
            problem = f"holds type {odd}, which is not shuffled"
            remedy = "leave it out with --columns, or write the file with another type"
            raise InputError(name, problem, place=f"column {field.name!r}", remedy=remedy)


def _find_odd(kind: pa.DataType) -> pa.DataType | None:
    """Return a type whose values cannot be taken one by one, at any depth; None if there is none."""
    leaves = leaf_types(kind)
    return next((leaf for leaf in leaves if pt.is_union(leaf) or pt.is_run_end_encoded(leaf)), None)


def _has_dictionary(kind: pa.DataType) -> bool:
    return any(map(pt.is_dictionary, leaf_types(kind)))


def _explained(file: InputFile, place: Callable[[], str]) -> AbstractContextManager[None]:
    """Turn what Arrow says of a bad file into an `InputError` that names it."""
    problem, remedy = ("cannot be read as Arrow", DAMAGED) if file.table is None else ("cannot be read", "")
    return explained(file.name, problem, place, remedy, _FAULTS)
