"""Parquet files as a source: row groups in batches of bounded size, small row groups and small files together."""

from __future__ import annotations

import io
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.errors import InputError
from recshuf.formats.parquet.annotations import take_marks
from recshuf.formats.parquet.census import ParquetCensus
from recshuf.formats.parquet.columns import Projection
from recshuf.formats.parquet.file import explained, name_groups
from recshuf.formats.parquet.pages import GROWTH, FileOpener, check_pages, first_batch_rows
from recshuf.formats.parquet.plan import ParquetLayout
from recshuf.formats.parquet.types import (
    child_fields,
    dense_schema,
    held_type,
    is_extension,
    is_ordered,
    widen_indices,
    with_children,
    without_required_vectors,
)
from recshuf.interfaces import (
    Decoder,
    Fragment,
    InputFile,
    Joined,
    ReadOptions,
    Source,
    TableDecoder,
    cut_batch,
)
from recshuf.records.arrays import count_bytes, is_any_list
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recshuf.formats.parquet.file import Footer, OpenFile
    from recshuf.interfaces import BatchLimits, Opener, StoredInputs


_JOINED_BYTES = 4 << 20
"""Most bytes before compression of row groups that are read together; more would not be faster."""
_LEAST_FRAGMENTS = 16
"""Least fragments of a file, if it has enough row groups: keeps all threads busy."""


class ParquetSource(Source):
    """All Parquet inputs of a run, under one schema.

    The native form is the schema that the files declare with dictionaries and views made dense; the
    declared types come back in shards of the same format.
    Of the options `columns`, `widens`, `first_metadata`, `field`, `max_record_bytes` and `memory_bytes` apply.
    """

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        self._census = ParquetCensus(inputs, options)
        self.schema = dense_schema(self._census.declared)
        self.schemas = self._census.schemas()
        self.inputs = self._census.summaries()
        self._open_bytes = self._census.find_open_bytes()
        self.layout = self._census.layout()
        self.metadata = self._census.metadata
        self.notes = tuple(
            filter(None, [self.metadata.differences, *self._census.dictionaries.describe_orders()])
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the row groups that have rows, small ones together."""
        opener = FileOpener(self._census.footers[input_index])
        projection = self._project(input_index)
        limits = self._limit(block_bytes, max_record_bytes)
        share = min(block_bytes, (self.inputs[input_index].native_bytes or 0) // _LEAST_FRAGMENTS)
        for run in opener.join_groups(opener.footer.groups, share):
            yield ParquetFragment(opener, run, projection, *limits)

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        footers, partitions = self._census.footers, self._census.partitions
        first = inputs[0]
        alike = takewhile(
            lambda index: (
                footers[index].declared is footers[first].declared
                and footers[index].range_index == footers[first].range_index
                and partitions[index] == partitions[first]
            ),
            inputs,
        )
        limits = self._limit(block_bytes, max_record_bytes)
        return _read_small([footers[index] for index in alike], self._project(first), *limits)

    def _limit(self, block_bytes: int, max_record_bytes: int) -> tuple[BatchLimits, int]:
        """Return the limits on batches, and that on the memory of the pages of a row group."""
        limits = self._options.limit(min(block_bytes, max_record_bytes), max_record_bytes)
        # Only some pages were measured. Others may be twice as large, and as large as a record.
        return limits, 2 * self._open_bytes + max_record_bytes

    def _project(self, input_index: int) -> Projection:
        columns = self._census.columns_of(input_index)
        return Projection(self._census.footers[input_index], self.schema, columns)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a batch and its decoding, a footer, and the pages of the largest row group."""
        return 5 * block_bytes // 2 + self._open_bytes

    def decoder(self) -> Decoder:
        return ParquetDecoder(self)


class ParquetDecoder(TableDecoder):
    """Returns tables as they are, without annotations, which are for Parquet alone."""

    def __init__(self, stored: Source | StoredInputs) -> None:
        super().__init__(take_marks(stored.schema)[0])
        self._is_marked = self.schema is not stored.schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema) if self._is_marked else batch


class Pace:
    """Chooses the rows of each batch: as many as fit a block, growing slowly."""

    def __init__(self, footer: Footer, group: int, block_bytes: int) -> None:
        self.rows = first_batch_rows(footer, group, block_bytes)
        self._room = block_bytes - (block_bytes >> 4)
        self._most = 0

    def learn(self, rows: int, size: int) -> None:
        self._most = max(self._most, rows)
        self.rows = max(1, min(self._room * rows // max(1, size), GROWTH * self._most))


class ParquetFragment(Fragment):
    """Consecutive row groups, but those without rows."""

    def __init__(
        self,
        opener: FileOpener,
        groups: list[int],
        projection: Projection,
        limits: BatchLimits,
        page_bytes: int,
    ) -> None:
        self.record_count = sum(opener.footer.group_rows[group] for group in groups)
        self._opener, self._groups = opener, groups
        self._projection = projection
        self._limits, self._page_bytes = limits, page_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        opener, groups, limits = self._opener, self._groups, self._limits
        name, row = opener.footer.name, opener.starts[groups[0]]
        pace = Pace(opener.footer, groups[0], limits.block_bytes)
        with opener.open() as file:
            for stored in _read_groups(file, opener, groups, self._projection, pace, self._page_bytes):
                with explained(name, opener.name_row(row)):
                    batch = self._projection.conform(stored, row)
                size = count_bytes(batch)
                pace.learn(batch.num_rows, size)
                if size <= limits.block_bytes:  # of thousands of columns, it is not to be found twice
                    yield batch
                else:
                    yield from cut_batch(
                        batch, name, row, limits, measure=count_bytes, name_row=opener.name_row
                    )
                row += batch.num_rows


def _read_small(
    footers: Sequence[Footer], columns: Projection, limits: BatchLimits, page_bytes: int
) -> Joined | None:
    """Return the records of the first files, as many as fit a block and are read without error; None if none are.

    They are read one after the other: each alone would take longer than to decode it.
    """
    batches: list[pa.RecordBatch] = []
    counts: list[int] = []
    room = limits.block_bytes
    pace: Pace | None = None
    with suppress(InputError):
        for footer in footers:
            opener, read = FileOpener(footer), list[pa.RecordBatch]()
            if footer.row_count:
                pace = pace or Pace(footer, footer.groups[0], room)
                with opener.open() as file, explained(footer.name):
                    for stored in _read_groups(file, opener, footer.groups, columns, pace, page_bytes):
                        read.append(columns.conform(stored, sum(batch.num_rows for batch in read)))
                        size = read[-1].get_total_buffer_size()
                        room -= size
                        if room < 0:
                            return _join_batches(batches, counts)
                        pace.learn(stored.num_rows, size)
            batches += read
            counts.append(footer.row_count)
    return _join_batches(batches, counts)


def _join_batches(batches: list[pa.RecordBatch], counts: list[int]) -> Joined | None:
    return Joined(concat_batches(batches), counts) if batches else None


def _read_groups(
    file: OpenFile,
    opener: FileOpener,
    groups: Sequence[int],
    columns: Projection,
    pace: Pace,
    most_page_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield stored batches of row groups, each of the rows that `pace` chooses; small row groups are read together."""
    footer = opener.footer
    for run in opener.join_groups(groups, _JOINED_BYTES if columns.is_joinable else 0):
        pages = [check_pages(file, group, columns.leaves, most_page_bytes) for group in run]
        # pyarrow fills up a column that has too few values from the next row group, and leaves it those too many.
        is_sound = all(
            each.values <= {footer.group_rows[group]} for each, group in zip(pages, run, strict=True)
        )
        for part in [run] if is_sound else [[group] for group in run]:
            try:
                yield from _read_run(file, footer, part, columns, pace)
            except InputError:
                if len(part) > 1:
                    # Each by itself, so that the error names the row group.
                    for group in part:
                        deque(_read_run(file, footer, [group], columns, pace), maxlen=0)
                raise


def _read_run(
    file: OpenFile, footer: Footer, run: list[int], columns: Projection, pace: Pace
) -> Iterator[pa.RecordBatch]:
    expected = missing = sum(footer.group_rows[group] for group in run)
    for stored in file.batches(run, columns.leaves, pace.rows):
        missing -= stored.num_rows
        yield stored
        file.set_batch_rows(pace.rows)
    if missing:
        problem = f"is damaged: {expected - missing} rows can be read, and the footer says {expected}"
        remedy = "fetch or write the file again"
        raise InputError(file.name, problem, place=name_groups(run), remedy=remedy)


class HeldTables(NamedTuple):
    """Tables that a caller holds, and all their records together."""

    schema: pa.Schema
    """Declared schema, united with that of the files among them."""
    dictionaries: Mapping[int, pa.Array]
    """Values of its columns of dictionary types."""
    head: pa.Table
    """First rows of the tables, with dense types."""
    row_count: int
    """Number of rows, as far as it is known."""


def make_layout(tables: HeldTables, kept: object | None) -> ParquetLayout:
    """Return the layout of tables, and of files among them with the layout `kept`, whose storage counts."""
    fields = [field.with_type(_write_type(field.type)) for field in tables.schema]
    schema = without_required_vectors(pa.schema(fields, tables.schema.metadata))
    layout = kept if isinstance(kept, ParquetLayout) else _measure(tables)
    storage = dict(zip(layout.schema.names, layout.storage, strict=True))
    orders = {layout.schema.names[index]: values for index, values in layout.categories.items()}
    categories = {
        index: _join(orders.get(field.name), tables.dictionaries.get(index))
        for index, field in enumerate(schema)
        if is_ordered(field.type)
    }
    return replace(
        layout,
        schema=schema if kept is None else widen_indices(schema),
        storage=tuple(storage.get(name, ()) for name in schema.names),
        categories=categories,
    )


def _write_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as it is read again: in units of Parquet, with the names that it prescribes for values of lists.

    Of dictionaries, those of text and bytes, with 32-bit offsets.

    >>> _write_type(pa.dictionary(pa.int8(), pa.large_string())).value_type, _write_type(pa.dictionary(pa.int8(), pa.date32()))
    (DataType(string), DataType(date32[day]))
    """
    kind = held_type(kind)
    if pa.types.is_dictionary(kind):
        return _write_dictionary(kind)
    if not pa.types.is_nested(kind) or is_extension(kind):
        return kind
    children = [child.with_type(_write_type(child.type)) for child in child_fields(kind)]
    if is_any_list(kind):
        children = [children[0].with_name("element")]
    return with_children(kind, children)


def _write_dictionary(kind: pa.DictionaryType) -> pa.DataType:
    for short, long in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if kind.value_type in (short, long):
            return pa.dictionary(kind.index_type, short, kind.ordered)
    return _write_type(kind.value_type)


def _join(values: pa.Array | None, more: pa.Array | None) -> pa.Array:
    known = [each for each in (values, more) if each is not None]
    return pa.chunked_array([each.cast(known[0].type) for each in known]).unique()


def _measure(tables: HeldTables) -> ParquetLayout:
    """Return the layout of a file of the first rows; without storage, if there are no rows, or Parquet has no such types."""
    layout = ParquetLayout(tables.schema, ((),) * len(tables.schema), 0, 0, {}, has_page_checksums=False)
    if not tables.head.num_rows:
        return layout
    content = io.BytesIO()
    with suppress(pa.ArrowException, OSError, ValueError):
        pq.write_table(tables.head.cast(without_required_vectors(tables.head.schema)), content)
        opener = SimpleNamespace(open_raw=lambda: io.BytesIO(content.getvalue()))
        file = InputFile("tables", None, opener=cast("Opener", opener))
        found = cast("ParquetLayout", ParquetSource([file], ReadOptions()).layout)
        rows = max(tables.row_count, tables.head.num_rows)
        share = min(rows, found.row_group_rows) / min(tables.head.num_rows, found.row_group_rows)
        return replace(found, sink_bytes=int(found.sink_bytes * share))
    return layout
