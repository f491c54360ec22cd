"""What is known of Arrow inputs before their records are read: schemas, sizes, and dictionaries of which one is made for each column.

https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc describes messages. Their
metadata are tables of FlatBuffers: a table begins with the distance back to a list of the places of its fields.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import InputError
from recshuf.formats.arrow import MAGIC, MAGIC_FEATHER
from recshuf.formats.files import DAMAGED, POINTER_BYTES, check_memory, explained, refuse_pointer
from recshuf.formats.parquet.metadata import settle
from recshuf.formats.parquet.types import dense_schema, dense_type, leaf_types
from recshuf.interfaces import InputSummary, open_raw
from recshuf.records.arrays import count_bytes
from recshuf.records.conforming import conform
from recshuf.storage.reading.local import read_head
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from io import RawIOBase

    from numpy.typing import NDArray

    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import InputFile, ReadOptions, Table


HELD_BATCHES = 2
"""A record batch is kept until its rows are joined in blocks, while the next one is read or what was stored is unpacked."""
_DENSE_ROWS = 1 << 14
"""Rows of a batch that are measured at once: a dictionary may make few bytes of many."""
_SHARE = 8
"""What of the memory limit all dictionaries may take: to unite or to apply them takes several times as much."""
_ENTRY_BYTES = 32
"""Memory to find a value, besides the value."""
_FAULTS = (MemoryError, pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError)

Column = tuple[str, int]
"""The name of a column, and how many before it have the same."""


class ArrowFile(NamedTuple):
    """What is known of one input before its records are read."""

    file: InputFile
    is_file: bool
    """Whether it is in the file format, or held by a caller; else in that of streams."""
    codec: str
    schema: pa.Schema
    """Declared, without claims on counts; with the index of pandas last, if it is a range that says more than the row."""
    range_index: RangeIndex | None
    is_dense: bool
    """Whether there are no dictionaries and views, few bytes of which may stand for many."""
    summary: InputSummary
    """Rows are exact but for streams, where the first batch tells; bytes are about those of all rows, decoded."""
    batch_rows: int
    """Rows of the longest batch that was seen; 0 if it is the only one."""
    batch_bytes: int
    """Bytes of the longest batch, with its dictionaries."""
    row_bytes: float
    """Bytes of a row of the first batch, decoded."""


def look_into(file: InputFile, options: ReadOptions, known: Dictionaries) -> ArrowFile:
    """Return what is known of an input: of the file format all but its values, of a stream its first batch.

    One with dictionaries is read to its end, as they may change in it.
    """
    if file.table is not None:
        return _look_into_table(file, file.table, options, known)
    is_file = _is_file_format(file)
    told = find_first_batch(file, is_file=is_file)
    what, needed = f"record batches of {format_size(told.body_bytes)}", HELD_BATCHES * told.body_bytes
    check_memory(file.name, what, needed, options.memory_bytes, "raise --memory, or write shorter batches")
    counts, first_rows, batch_bytes, size, spread_bytes = list[int](), 0, 0, 0, 0
    stored_bytes = told.stored_bytes
    with explained_arrow(file, lambda: f"row {sum(counts)}"):
        with _opened(file, is_file=is_file) as reader:
            schema = reader.schema
        first = next(read_batches(file, is_file=is_file), None)
        dictionaries = _list_dictionaries(schema, options)
        if dictionaries or is_file or not len(schema):
            spread_bytes = _scan(file, schema, counts, dictionaries, known, is_file=is_file)
        if first is not None:
            first.validate(full=True)
            first_rows, batch_bytes, size = first.num_rows, first.nbytes, count_dense(first)
            stored_bytes = stored_bytes if is_file else first.get_total_buffer_size()
    share = file.stamp.size / stored_bytes if file.stamp and stored_bytes else 1.0
    is_single = len(counts) <= 1 if counts or is_file else share <= 2
    rows = sum(counts) if counts else int(first_rows * max(1.0, share))
    longest = max(counts, default=first_rows)
    row_bytes = max(size / max(1, first_rows), spread_bytes / max(1, rows))
    byte_count = int(rows * row_bytes)
    if not (is_single or any(map(has_dictionary, schema.types))):
        # Later rows may be longer; piles that are larger than planned are split, which costs a third of a run.
        byte_count = max(byte_count, int(size * share))
    summary = InputSummary(file.name, file.stamp and file.stamp.size, rows, is_file, byte_count)
    batches = 0 if is_single else longest, longest * batch_bytes // max(1, first_rows)
    return ArrowFile(file, is_file, told.codec, *_settle(schema, summary), summary, *batches, row_bytes)


def _look_into_table(file: InputFile, table: Table, options: ReadOptions, known: Dictionaries) -> ArrowFile:
    """Return what is known of what a caller holds. It is read to its end if it has dictionaries, and not at all if only once."""
    counts, schema = list[int](), table.schema
    with explained_arrow(file, lambda: f"row {sum(counts)}"):
        if table.is_once:
            # Its dictionaries are known when it has been read, and shards say their types before that.
            schema = dense_schema(schema)
        # The first batch of a choice may be empty.
        first = next((one for one in (() if table.is_once else table.batches()) if one.num_rows), None)
        if dictionaries := _list_dictionaries(schema, options):
            _scan(file, schema, counts, dictionaries, known, is_file=True)
    rows, own_bytes = table.row_count or 0, table.byte_count
    row_bytes = (own_bytes or 0) / max(1, rows)
    if first is not None and (own_bytes is None or schema != dense_schema(schema)):
        row_bytes = count_dense(first) / first.num_rows
    batch_bytes = int(first.num_rows * row_bytes) if first is not None and own_bytes is None else 0
    size = int(rows * row_bytes)
    summary = InputSummary(file.name, own_bytes or size, rows, True, size)
    if table.row_count is None:
        summary = InputSummary(file.name, None, None, False, None)
    return ArrowFile(file, True, "none", *_settle(schema, summary), summary, 0, batch_bytes, row_bytes)


def _settle(schema: pa.Schema, summary: InputSummary) -> tuple[pa.Schema, RangeIndex | None, bool]:
    rows = summary.record_count
    if rows != 0 and not len(schema):
        counted = "" if rows is None else f"{count_of(rows, 'row')} but "
        raise InputError(summary.name, f"has {counted}no columns, so there is nothing to shuffle")
    schema, index = settle(schema, rows or 0)
    is_dense = schema == dense_schema(schema)
    return schema if index is None else schema.append(pa.field(index.name, pa.int64())), index, is_dense


def _list_dictionaries(schema: pa.Schema, options: ReadOptions) -> list[int]:
    """Return the places of chosen columns that are dictionaries, or have some inside."""
    names = schema.names if options.columns is None else options.columns
    fields = enumerate(schema)
    return [at for at, field in fields if has_dictionary(field.type) and field.name in names]


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
    byte_count = 0
    for batch in read_batches(file, is_file=is_file, columns=only):
        counts.append(batch.num_rows)
        if not dictionaries:
            continue
        batch.validate()
        for place, values in zip(dictionaries, batch.columns, strict=True):
            if pt.is_dictionary(values.type):
                found = values.dictionary
                found.validate(full=True)  # to compare what is damaged reads beyond its buffers
                known.add(numbered[place], found, file.name)
        byte_count += count_dense(batch)
    return byte_count


def count_dense(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch in native form, found for some rows at a time."""
    # The bytes of all values of a dictionary are found each time.
    dictionaries = (len(one.dictionary) for one in batch.columns if pt.is_dictionary(one.type))
    step = max(_DENSE_ROWS, *dictionaries, 0)
    return sum(count_bytes(batch.slice(start, step)) for start in range(0, batch.num_rows, step))


def has_dictionary(kind: pa.DataType) -> bool:
    return any(map(pt.is_dictionary, leaf_types(kind)))


def _is_file_format(file: InputFile) -> bool:
    """Tell whether a file is in the file format, else in that of streams; one of neither is refused."""
    head = read_head(file, POINTER_BYTES)
    refuse_pointer(file.name, head, "an Arrow file")
    if head.startswith(MAGIC_FEATHER):
        remedy = "read it with pyarrow.feather.read_table, and write it again"
        raise InputError(file.name, "is Feather version 1, which is another format", remedy=remedy)
    is_file = head.startswith(MAGIC)
    # A stream before Arrow 0.15 begins with the length of its metadata.
    if not is_file and int.from_bytes(head[:4], "little") >> 24 not in (0, 0xFF):
        raise InputError(file.name, "is not an Arrow file")
    return is_file


def read_batches(
    file: InputFile, *, is_file: bool, columns: list[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, those of a table whole; with these columns alone, if they are given."""
    if file.table is not None:
        batches = file.table.batches()
        yield from batches if columns is None else (batch.select(columns) for batch in batches)
        return
    with _opened(file, is_file=is_file, columns=columns) as reader:
        yield from map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader


@contextmanager
def _opened(file: InputFile, *, is_file: bool, columns: list[int] | None = None) -> Iterator[Any]:
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
    with open_raw(file) as opened, open_reader(opened, options=options) as reader:
        yield reader


def explained_arrow(file: InputFile, place: Callable[[], str]) -> AbstractContextManager[None]:
    """Turn what Arrow says of a bad file into an `InputError` that names it."""
    problem, remedy = ("cannot be read as Arrow", DAMAGED) if file.table is None else ("cannot be read", "")
    return explained(file.name, problem, place, remedy, _FAULTS)


# Dictionaries


def number_names(names: Iterable[str]) -> list[Column]:
    """Return the names, each with how many before it are the same.

    >>> number_names(["a", "b", "a"])
    [('a', 0), ('b', 0), ('a', 1)]
    """
    counts = Counter[str]()
    numbered = []
    for name in names:
        numbered.append((name, counts[name]))
        counts[name] += 1
    return numbered


def count_dictionary_bytes(values: Iterable[pa.Array]) -> int:
    """Return the memory of dictionaries with what finds their values."""
    return sum(each.nbytes + _ENTRY_BYTES * len(each) for each in values)


def is_united(kind: pa.DataType) -> bool:
    """Tell whether dictionaries of such values become one; Arrow tells no equal ones of short decimals."""
    return not pt.is_nested(kind) and not str(kind).startswith(("decimal32", "decimal64"))


class Dictionaries:
    """All values of the dictionaries of columns, in the order in which they came."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._memory_bytes = memory_bytes
        self._parts: dict[Column, dict[pa.DataType, list[pa.Array]]] = {}
        """Of each column and type of values those that are united, and after them what came since."""
        self._bytes = 0

    def add(self, column: Column, found: pa.Array, name: str) -> None:
        """Add a dictionary of the file `name`; more than the memory limit allows is refused."""
        kind = dense_type(found.type)
        parts = self._parts.setdefault(column, {}).setdefault(kind, [])
        if not is_united(kind) or (parts and found.type == kind and found.equals(parts[-1])):
            return
        parts.append(conform(found, kind))
        self._bytes += count_dictionary_bytes(parts[-1:])
        if self._memory_bytes is not None and _SHARE * self._bytes > self._memory_bytes:
            for kinds in self._parts.values():
                for known in kinds.values():
                    self._unite(known)
            what = f"dictionaries of {format_size(self._bytes)} up to here, which may have an eighth of it,"
            check_memory(name, what, _SHARE * self._bytes, self._memory_bytes)
        elif count_dictionary_bytes(parts[1:]) >= count_dictionary_bytes(parts[:1]):
            self._unite(parts)

    def find_values(self, column: Column, kind: pa.DataType) -> pa.Array:
        """Return all values of a column but null, in this type."""
        known = [conform(part, kind) for parts in self._parts.get(column, {}).values() for part in parts]
        return pa.chunked_array(known, kind).unique().drop_null()

    def _unite(self, parts: list[pa.Array]) -> None:
        if len(parts) > 1:
            self._bytes -= count_dictionary_bytes(parts)
            parts[:] = [pa.chunked_array(parts).unique()]
            self._bytes += count_dictionary_bytes(parts)


# The message of the first record batch


_CONTINUES = 0xFFFFFFFF  # comes before the length of metadata since Arrow 0.15
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3  # fields of a message
_RECORD_BATCH = 3  # a header type
_BUFFERS = 2  # a field of a record batch
_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
_UNREADABLE = (struct.error, IndexError, ValueError, OverflowError, MemoryError, OSError)


class FirstBatch(NamedTuple):
    """The first record batch; without bytes if there is none."""

    codec: str = "none"
    """Of its first buffer."""
    stored_bytes: int = 0
    body_bytes: int = 0
    """Of its buffers, unpacked, and of the dictionaries before it, as stored."""


def find_first_batch(file: InputFile, *, is_file: bool) -> FirstBatch:
    """Return what the first record batch says of itself; of what is damaged nothing, since reading it tells."""
    with open_raw(file) as opened, suppress(*_UNREADABLE):
        size, dictionary_bytes = opened.seek(0, os.SEEK_END), 0
        opened.seek(8 if is_file else 0)
        while opened.tell() < size:
            length = _unpack("<I", opened.read(4))
            content = opened.read(_unpack("<I", opened.read(4)) if length == _CONTINUES else length)
            message = _unpack("<I", content)
            place = _find(content, message, _BODY_BYTES)
            body_bytes = _unpack("<Q", content, place) if place else 0
            if _unpack("<B", content, _find(content, message, _HEADER_TYPE)) == _RECORD_BATCH:
                batch = _follow(content, _find(content, message, _HEADER))
                buffers = _follow(content, _find(content, batch, _BUFFERS))
                ranges = np.frombuffer(content, "<i8", 2 * _unpack("<I", content, buffers), buffers + 4)
                if opened.tell() + body_bytes > size:
                    break
                codec, unpacked_bytes = _measure(opened, ranges.reshape(-1, 2))
                return FirstBatch(codec, len(content) + body_bytes, unpacked_bytes + dictionary_bytes)
            dictionary_bytes += body_bytes
            opened.seek(body_bytes, os.SEEK_CUR)
    return FirstBatch()


def _measure(opened: RawIOBase, ranges: NDArray[np.int64]) -> tuple[str, int]:
    """Return codec and unpacked bytes of the body that begins where the file is, given its buffers as ranges, shape ``(n, 2)``."""
    body, codec, unpacked_bytes = opened.tell(), "", 0
    for offset, size in ranges[ranges[:, 1] > 0].tolist():
        opened.seek(body + offset)
        head = opened.read(12)
        codec = codec or _CODECS.get(head[8:], "none")
        if codec == "none":
            return codec, int(ranges[:, 1].sum())
        # A packed buffer begins with its length; less than zero stands before one that would not get shorter.
        unpacked_bytes += max(_unpack("<q", head), 0) or size
    return codec or "none", unpacked_bytes


def _find(content: bytes, table: int, field: int) -> int:
    """Return the place of a field of a table; 0 if it has its default."""
    places = table - _unpack("<i", content, table)
    has_place = 4 + 2 * field < _unpack("<H", content, places)
    offset = _unpack("<H", content, places + 4 + 2 * field) if has_place else 0
    return table + offset if offset else 0


def _follow(content: bytes, place: int) -> int:
    """Return the place of the table or list that a field refers to."""
    return place + _unpack("<I", content, place)


def _unpack(kind: str, content: bytes, place: int = 0) -> int:
    return int(struct.unpack_from(kind, content, place)[0])
