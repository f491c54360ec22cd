"""Parquet shards: record batches of any length in, row groups of a fixed number of rows out, each written at once.

Row groups may be encoded separately, by any number of threads, and assembled into one file. Each is encoded as a file: ``PAR1 | column chunks | footer | size of the footer (4) | PAR1``. Column chunks do not depend
on their offset in the file; in the footer, only offsets do. The assembled file has the same bytes as if one writer had
written all row groups.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError
from recshuf.formats.files import BUFFER_BYTES, BufferedTarget, FileSink
from recshuf.formats.parquet import MAGIC
from recshuf.formats.parquet.annotations import put_marks
from recshuf.formats.parquet.plan import SINK_FACTOR, FirstRows, make_plan
from recshuf.formats.parquet.thrift import LIST, STRUCT, ThriftReader, encode_list, encode_number
from recshuf.formats.parquet.types import leaf_types, null_bits
from recshuf.interfaces import RowBuffer, WriteOptions
from recshuf.records.arrays import has_offsets, is_bytes, view_offsets
from recshuf.records.conforming import (
    check_digits,
    conform,
    encode_dictionary,
    has_decimals,
    has_required,
    settle,
)
from recshuf.system.threads import TaskQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack

    import pyarrow.parquet as pq
    from _typeshed import ReadableBuffer

    from recshuf.formats.parquet.annotations import Marks
    from recshuf.formats.parquet.plan import ParquetLayout, WritePlan

    Fields = dict[int, "Fields | None"]
    """Fields of a struct by their numbers: None for a number, their own fields for structs."""


_COLUMN_BYTES = 28 << 10
"""Memory of each Parquet column until it is written: 8,000 to 50,000 columns took 28 to 30 KB each, read and written."""
_TAIL_BYTES = 8
_BATCH_VALUES = 1024
"""What Arrow writes at once by default."""
_SHORT_BYTES = 8 << 10
"""Of values up to this length, so many make a page of 8 MiB at most. Longer ones are written fewer at once."""
# Field numbers in parquet.thrift.
_ROWS = 3
_PLACES: Fields = {1: {3: {9: None, 11: None}}, 5: None}
"""The offsets in a row group that pyarrow writes: of data and dictionary of each column chunk, and of the group."""
_NEXT_IS_LIST = bytes((1 << 4 | LIST,))  # the row groups follow their number of rows


class ParquetTarget(BufferedTarget):
    """Shards that all follow one plan."""

    suffix = ".parquet"

    def __init__(self, schema: pa.Schema, layout: ParquetLayout | None, options: WriteOptions) -> None:
        self._schema = schema
        self._plan = make_plan(schema, layout, options)
        self._options = options
        super().__init__(drop_page_cache=options.drop_page_cache)

    def sink_bytes(self, threads: int) -> int:
        """Return the memory of row groups before and while they are written."""
        # Each further encoder counts twice, as the allocator keeps freed memory: counted once, 1 GB of incompressible rows
        # at 300 MB and two workers peaked at 465 to 532 MB.
        groups_bytes = (2 * _count_encoders(threads) - 1) * self._plan.sink_bytes
        if self._options.table_bytes is not None:
            groups_bytes = min(groups_bytes, int(SINK_FACTOR * self._options.table_bytes))
        columns = _COLUMN_BYTES * sum(1 for kind in self._plan.native.types for _ in leaf_types(kind))
        return groups_bytes + columns + 2 * BUFFER_BYTES

    def _open(self, stream: BinaryIO, threads: int, files: ExitStack) -> ParquetSink:
        return ParquetSink(stream, self._schema, self._plan, _count_encoders(threads), files)


def _count_encoders(threads: int) -> int:
    """Return the number of encoding threads: encoding takes half of the time, and each thread holds a row group."""
    return 1 + threads // 2


class ParquetSink(FileSink):
    """One Parquet file being written, with `encoders` row groups encoded at once, each by its own thread."""

    def __init__(
        self, stream: BinaryIO, schema: pa.Schema, plan: WritePlan, encoders: int, files: ExitStack
    ) -> None:
        self._stream = stream
        self._plan = plan
        self._encoders = encoders
        self._tasks = TaskQueue(encoders)
        files.callback(self._tasks.close)
        self._has_groups = False
        self._assembly = Assembly(stream, plan.annotations)
        self._first_rows = FirstRows() if plan.row_group_rows is None else None
        self._dictionaries = plan.dictionaries or []
        self._buffer = RowBuffer(schema, plan.row_group_rows or FirstRows.rows)
        self._decimals = {place for place, kind in enumerate(plan.native.types) if has_decimals(kind)}
        self._required = {place for place, kind in enumerate(plan.native.types) if has_required(kind)}
        super().__init__(files)

    @property
    def record_count(self) -> int:
        return self._assembly.record_count

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and not batch.num_columns:
            problem = "has no fields at all, and Parquet has no rows without columns"
            raise ConversionError("record", problem, remedy="choose --to jsonl")
        for table in self._buffer.add(batch):
            if self._first_rows is not None:
                self._buffer.take_back(table, self._learn(self._first_rows, table.columns))
                continue
            columns = table.columns
            del table
            self._write_group(columns)

    def _complete(self) -> None:
        rest = self._buffer.rest()
        if self._first_rows is not None:
            self._learn(self._first_rows, rest.columns)
        # A file without rows has the schema of a row group, too.
        if rest.num_rows or not self._has_groups:
            self._write_group(rest.columns)
        self._tasks.drain()
        self._assembly.finish()
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

    def _write_group(self, columns: list[pa.ChunkedArray]) -> None:
        """Start encoding a row group, and write finished ones; the list is emptied."""
        self._has_groups = True
        self._tasks.put(partial(self._encode, columns), self._assembly.append)
        # The next one is collected meanwhile and takes as much memory.
        self._tasks.drain(self._encoders - 1)

    def _encode(self, columns: list[pa.ChunkedArray]) -> EncodedGroup:
        table = self._prepared_table(columns)
        with _explain_group():
            dictionaries, batch_values = self._dictionaries, _count_batch_values(table)
            open_writer = partial(
                self._plan.open_writer, dictionaries=dictionaries, batch_values=batch_values
            )
            return encode_group(open_writer, table)

    def _prepared_table(self, columns: list[pa.ChunkedArray]) -> pa.Table:
        """Return a table of these columns, each in one chunk: pages depend on chunks.

        The list is emptied, which frees each column once it is copied.
        """
        for index in range(len(columns)):
            columns[index] = self._prepared(columns[index], index)
        return pa.Table.from_arrays(columns, schema=self._plan.native)

    def _prepared(self, column: pa.ChunkedArray, index: int) -> pa.Array:
        # Arrow joins no chunks of columns with extensions inside to none.
        array = column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
        field = self._plan.native.field(index)
        if index in self._required:
            array = settle(array)
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


def _count_batch_values(table: pa.Table) -> int:
    """Return how many values Arrow writes before it looks how large a page is: one of 1,024 long ones may be a row group."""
    if table.nbytes <= _SHORT_BYTES * table.num_rows:
        return _BATCH_VALUES
    longest = max(_mean_bytes(chunk) for column in table.columns for chunk in column.chunks)
    return max(1, min(_BATCH_VALUES, int(_BATCH_VALUES * _SHORT_BYTES / max(1, longest))))


def _mean_bytes(array: pa.Array) -> float:
    """Return the mean length of the values of an array; of several Parquet columns, the largest."""
    kind, count = array.type, max(1, len(array))
    if isinstance(kind, pa.BaseExtensionType):
        return _mean_bytes(array.storage)
    if pa.types.is_struct(kind):
        return max((_mean_bytes(array.field(index)) for index in range(kind.num_fields)), default=0)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        return _mean_bytes(array.values.slice(array.offset * size, len(array) * size))
    if has_offsets(kind):
        first, last = view_offsets(array)[[0, -1]].tolist()
        return (
            (last - first) / count if is_bytes(kind) else _mean_bytes(array.values.slice(first, last - first))
        )
    return null_bits(kind) / 8


def _encode_ordered(array: pa.Array, categories: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    """Return the array with a dictionary of `categories`, followed by other values in order of appearance."""
    dense = conform(array, kind.value_type)
    values = pa.chunked_array([categories.cast(kind.value_type), dense.drop_null()]).unique()
    return encode_dictionary(dense, values, kind)


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A row group in bytes."""

    chunks: list[bytes]
    """The column chunks, cut anywhere."""
    footer: bytes
    """Footer of a file of this row group only, which begins with `MAGIC`."""
    rows: int


class _Parts(io.RawIOBase):
    """Keeps written pieces in a list: one growing buffer would be copied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        part = bytes(data)
        self.parts.append(part)
        return len(part)


def encode_group(open_writer: Callable[[BinaryIO], pq.ParquetWriter], table: pa.Table) -> EncodedGroup:
    """Encode a table as one row group, by a writer without page index and Bloom filters, which would follow the chunks."""
    stream = _Parts()
    with open_writer(cast("BinaryIO", stream)) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        chunks, stream.parts = stream.parts, []
    if chunks[0] != MAGIC:
        raise RuntimeError("a Parquet writer does not begin with the magic bytes alone")
    return EncodedGroup(chunks[1:], b"".join(stream.parts)[:-_TAIL_BYTES], writer.writer.metadata.num_rows)


class Assembly:
    """A Parquet file of row groups, one appended after the other. The caller closes the stream."""

    def __init__(self, stream: BinaryIO, annotations: Mapping[int, Marks]) -> None:
        self._stream = stream
        self._annotations = annotations
        self._place = stream.write(MAGIC)
        self._alone: bytes | None = None
        """The footer of the only row group so far: it is taken apart, which takes long, only if another one follows."""
        self._groups: list[bytes] = []
        self._around = (b"", b"")
        """The footer before the number of rows, and behind the row groups."""
        self.group_count = 0
        self.record_count = 0
        """Number of records, by the footers."""

    def append(self, group: EncodedGroup) -> None:
        """Write a row group; all have the same schema and metadata. Of one without rows only these count."""
        self._take_apart(self._alone, 0)
        self._alone = None
        if group.rows and not self.group_count:
            self._alone = group.footer
        else:
            self._take_apart(group.footer, self._place - len(MAGIC))
        if not group.rows:
            return  # some readers fail on a row group without rows
        self.group_count += 1
        self.record_count += group.rows
        for part in group.chunks:
            self._stream.write(part)
            self._place += len(part)

    def finish(self) -> None:
        """Write the footer, after at least one call of `append`."""
        if self._alone is None or self._annotations:
            self._take_apart(self._alone, 0)
            before, behind = self._around
            before = put_marks(before, self._annotations) + encode_number(self.record_count)
            groups = _NEXT_IS_LIST + encode_list(self.group_count, STRUCT) + b"".join(self._groups)
            footer = before + groups + behind
        else:
            footer = self._alone
        self._stream.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def _take_apart(self, footer: bytes | None, shift: int) -> None:
        """Keep the row group of a footer, of at most one with rows, `shift` bytes further behind than in its own file."""
        if footer is None:
            return
        reader, field = ThriftReader(footer), 0
        while (head := reader.read_field(field))[0] != _ROWS:
            field = head[0]
            reader.skip(head[1])
        before = footer[: reader.place]
        rows = reader.read_number()
        reader.read_field(_ROWS)
        count, start = reader.read_list()[0], reader.place
        pieces: list[bytes] = []
        for _ in range(count):
            start = _shift_places(reader, footer, shift, _PLACES, start, pieces)
        pieces.append(footer[start : reader.place])
        self._groups += [b"".join(pieces)] * bool(rows)
        self._around = before, footer[reader.place :]


def _shift_places(
    reader: ThriftReader, footer: bytes, shift: int, places: Fields, copied: int, pieces: list[bytes]
) -> int:
    """Append a struct with its places shifted to the pieces, up to the last of them; return where that ends."""
    field = 0
    while True:
        field, kind = reader.read_field(field)
        if not kind:
            return copied
        inner = places.get(field)
        if inner is not None:
            for _ in range(reader.read_list()[0] if kind == LIST else 1):
                copied = _shift_places(reader, footer, shift, inner, copied, pieces)
        elif field in places:
            pieces.append(footer[copied : reader.place])
            # The offset is 0 if there is nothing, as in a row group without rows.
            place = reader.read_number()
            pieces.append(encode_number(place + shift if place else 0))
            copied = reader.place
        else:
            reader.skip(kind)
