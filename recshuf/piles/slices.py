"""Slices: the records of one batch for one region, as bytes in a file.

    input (4) | records (4) | first row (8) | payload bytes (8) | bytes before compression (8) | xxh3 of these and the
    payload (8) | payload | 0-7 zeros

A payload is the keys of its n records (8 n bytes), then the planes of each column, then the flags of all nodes (one byte
each); see `planes`. It is not compressed if both byte counts are equal.

`PackedRecords` are those of several slices, as they lie in memory, until their order is known. `JoinedRecords` are the same of
piles in memory.
"""

from __future__ import annotations

import struct
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import PileError
from recshuf.piles.planes import LENGTH_BYTES, Order, PlaneCutter, PlaneReader, count_nodes, plain_type
from recshuf.records.arrays import (
    count_bytes,
    count_bytes_before,
    count_lasting_bytes_before,
    has_offsets,
    view_offsets,
)
from recshuf.records.batch import Records, concat_records, empty_rows
from recshuf.records.conforming import conform
from recshuf.records.key_makers import find_words
from recshuf.records.keys import KEY_BYTES
from recshuf.records.provenance import find_origins, shift_origins, shift_sources
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.system.buffers import Allocate


def _storage_type(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


Payload = tuple["NDArray[np.uint8]", int]
"""A slice as bytes, and its number of records."""


class RecordCodec:
    """Turns slices of records of one native schema into bytes and back.

    Columns are stored in their plain types, so the values of a dictionary stand in place of its indices.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._plain = pa.schema(
            [field.with_type(plain_type(field.type)) for field in schema], schema.metadata
        )
        self._is_plain = self._plain.equals(schema)
        self._is_flat = len(schema) > 0 and all(
            kind == pa.large_binary() or pa.types.is_fixed_size_binary(kind) for kind in schema.types
        )
        self.overhead_bytes = sum(map(count_nodes, self._plain.types))
        """Bytes of a slice without records."""
        kinds = enumerate(map(_storage_type, self._plain.types))
        self.variable_columns = tuple(index for index, kind in kinds if has_offsets(kind))
        """Numbers of the columns whose values vary in length: text, binary, lists and maps, and not what is nested."""

    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the bytes each record takes in a slice, its key included, shape ``(n,)``; of tables, the mean."""
        if not self._is_flat:  # by few long records, a set would get more holes than records
            mean = KEY_BYTES + count_bytes(batch) // max(1, batch.num_rows)
            return np.full(batch.num_rows, mean, np.int64)
        sizes = self.count_bytes(batch, np.arange(batch.num_rows + 1))
        return KEY_BYTES + LENGTH_BYTES * len(self.variable_columns) + sizes

    def count_bytes(
        self, batch: pa.RecordBatch, edges: NDArray[np.int64], *, is_lasting: bool = False
    ) -> NDArray[np.int64]:
        """Return the bytes of the records in each range ``edges[k]:edges[k + 1]``.

        Excludes keys and, where all columns are bytes without nulls, offsets. `is_lasting` has all ranges of the same records add
        up to the same, whatever batches they are in.
        """
        if not self._is_flat:
            return np.diff((count_lasting_bytes_before if is_lasting else count_bytes_before)(batch, edges))
        counts = np.zeros(len(edges) - 1, np.int64)
        for column in batch.columns:
            is_fixed = pa.types.is_fixed_size_binary(column.type)
            counts += np.diff(edges * column.type.byte_width if is_fixed else view_offsets(column)[edges])
        return counts

    def sum_lengths(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the lengths in each of `variable_columns` for rows ``edges[k]:edges[k + 1]``, shape ``(C, n)``.

        A null counts as what its slot holds.
        """
        batch = self._to_plain(batch)
        sums = np.empty((len(self.variable_columns), len(edges) - 1), np.int64)
        for row, index in enumerate(self.variable_columns):
            column = batch.column(index)
            while isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            sums[row] = np.diff(view_offsets(column)[edges])
        return sums

    def _to_plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._is_plain else _conform_columns(batch.columns, self._plain)

    def pack(
        self, records: Records, bounds: Sequence[int]
    ) -> tuple[list[list[memoryview]], NDArray[np.int64]]:
        """Return the buffers of a slice for each range ``bounds[k]:bounds[k + 1]``, and the sums of its lengths.

        Buffers are views of `records` if the layout allows. For the sums, see `sum_lengths`.
        """
        batch = self._to_plain(records.batch)
        edges, cutter = np.asarray(bounds, np.int64), PlaneCutter()
        cutter.cut(records.keys.view(np.uint8), edges * KEY_BYTES)
        for column in batch.columns:
            cutter.add(column, edges)
        flags = repeat(memoryview(bytes(cutter.flags)), len(bounds) - 1)
        slices = [list(buffers) for buffers in zip(*cutter.planes, flags, strict=True)]
        return slices, self.sum_lengths(batch, edges)

    def unpack(self, slices: list[Payload]) -> Records:
        """Return the records of one or more slices, joined in order; they may be views of the slices."""
        reader, edges = self._read(slices, allocate)
        keys = reader.read(edges * KEY_BYTES, KEY_BYTES).view(np.uint64)
        columns = [reader.read_array(kind, edges) for kind in self._plain.types]
        return self._finish(keys, columns)

    def unpack_ordered(self, slices: list[Payload], order: Order, memory: Allocate = allocate) -> Records:
        """Return the records of one or more slices in another order, copied. Frees the list of slices on the way."""
        reader, edges = self._read(slices, memory)
        keys = reader.read(edges * KEY_BYTES, KEY_BYTES).view(np.uint64)[order.index]
        columns: list[pa.Array] = []
        joined: list[int] = []
        for index, kind in enumerate(self._plain.types):
            column = reader.scatter_array(kind, edges, order)
            if column is None:
                column = reader.read_array(kind, edges)
                joined.append(index)
            columns.append(column)
        del reader
        slices.clear()
        for index in joined:
            columns[index] = order.take(columns[index])
        return self._finish(keys, columns)

    def _read(self, slices: Sequence[Payload], memory: Allocate) -> tuple[PlaneReader, NDArray[np.int64]]:
        """Return a reader of slices, and where the records of each begin and those of the last one end."""
        edges = np.zeros(len(slices) + 1, np.int64)
        np.cumsum([count for _, count in slices], out=edges[1:])
        flags = np.stack([data[len(data) - self.overhead_bytes :] for data, _ in slices]).astype(np.bool_)
        return PlaneReader([data for data, _ in slices], flags.T, memory), edges

    def _finish(self, keys: NDArray[np.uint64], columns: list[pa.Array]) -> Records:
        if not columns:
            return Records(keys, empty_rows(self.schema, len(keys)))
        if not self._is_plain:
            return Records(keys, _conform_columns(columns, self.schema))
        return Records(keys, pa.RecordBatch.from_arrays(columns, schema=self.schema))


def _conform_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    # `RecordBatch.cast` fails with lists and slices of structs that hold values of type null.
    return pa.RecordBatch.from_arrays(list(map(conform, columns, schema.types)), schema=schema)


class PackedRecords:
    """The records of one or more slices, one after the other.

    Each is given with what to add to the numbers of the sources of its records. If that is not 0, they have provenance.
    """

    def __init__(self, codec: RecordCodec, slices: Sequence[tuple[int, Slice]]) -> None:
        self._codec = codec
        self._payloads = [(piece.payload, piece.record_count) for _, piece in slices]
        bases = [base for base, _ in slices]
        self._added = np.repeat(bases, [count for _, count in self._payloads]) if any(bases) else None

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """Their keys, shape ``(n,)``."""
        return np.concatenate([data[: count * KEY_BYTES] for data, count in self._payloads]).view(np.uint64)

    @cached_property
    def origins(self) -> NDArray[np.uint64]:
        """Their provenance, as `find_origins` returns it; only if they have one."""
        origins = self._find_word(0)
        return origins if self._added is None else shift_origins(origins, self._added)

    def find_words(self, word_count: int) -> list[NDArray[np.uint64]]:
        """Return the words of their keys, the further ones of which are their last columns."""
        return [self.keys, *map(self._find_word, range(word_count - 2, -1, -1))]

    def _find_word(self, place: int) -> NDArray[np.uint64]:
        """Return a column of 8 bytes, which `place` others follow as the last ones, as one number for each record."""
        parts = []
        for data, count in self._payloads:
            end = len(data) - self._codec.overhead_bytes - place * count * KEY_BYTES
            parts.append(data[end - count * KEY_BYTES : end])
        return np.concatenate(parts).view(np.uint64)

    def join(self) -> Records:
        """Return them in their order; they may be views of the slices."""
        records = self._codec.unpack(self._payloads)
        return records if self._added is None else shift_sources(records, self._added)

    def take(self, index: NDArray[np.intp], memory: Allocate = allocate) -> Records:
        """Return them in the order of a permutation, copied. Frees the slices: it can be called once.

        In `memory`, columns of a fixed size lie afterwards, and others are joined before.
        """
        records = self._codec.unpack_ordered(self._payloads, Order(index), memory)
        return records if self._added is None else shift_sources(records, self._added[index])


class JoinedRecords:
    """The same of records that are in memory as such."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self._records = concat_records(parts)

    @property
    def keys(self) -> NDArray[np.uint64]:
        return self._records.keys

    @property
    def origins(self) -> NDArray[np.uint64]:
        return find_origins(self._records.batch)

    def find_words(self, word_count: int) -> list[NDArray[np.uint64]]:
        return find_words(self._records, word_count)

    def join(self) -> Records:
        return self._records

    def take(self, index: NDArray[np.intp], _: Allocate = allocate) -> Records:
        return self._records.take(index)


Packed = PackedRecords | JoinedRecords
"""Records before they are ordered."""
_HEADER = struct.Struct("<IIQQQ")
_CHECKSUM = struct.Struct("<Q")
PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
"""Bytes before the payload."""
ALIGNMENT = 8
"""Slices begin at multiples of this."""
_ZEROS = bytes(ALIGNMENT)
_MOST_COMPRESSED = 8 << 20
"""A longer payload holds a single huge record; two more copies of it would exceed the memory limit."""
_ZSTD_LEVEL = 1
_DAMAGED = "a slice does not have its checksum"


class Origin(NamedTuple):
    """Input and row of the first record of a batch; origins sort in input order."""

    input_index: int
    first_row: int

    def shift(self, base: int) -> Origin:
        """Return the origin with a number added to its input."""
        return Origin(self.input_index + base, self.first_row)


class Slice(NamedTuple):
    """The records of one batch for one region, as bytes."""

    origin: Origin
    record_count: int
    payload: NDArray[np.uint8]
    """Decompressed."""


class SliceFormat:
    """Encodes and decodes slices; used by many threads. The compression is one of `SPILL_COMPRESSIONS`."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self._codec: pa.Codec | None = None
        if compression == "lz4":
            self._codec = pa.Codec("lz4_raw")
        elif compression == "zstd":
            self._codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)

    def frame(self, buffers: list[memoryview], count: int, origin: Origin) -> list[bytes | memoryview]:
        plain_bytes = sum(map(len, buffers))
        if self._codec is not None and 0 < plain_bytes <= _MOST_COMPRESSED:
            buffers = _compress(self._codec, buffers, plain_bytes)
        payload_bytes = sum(map(len, buffers))
        header = _HEADER.pack(origin.input_index, count, origin.first_row, payload_bytes, plain_bytes)
        digest = xxhash.xxh3_64(header)
        for buffer in buffers:
            digest.update(buffer)
        prefix = header + _CHECKSUM.pack(digest.intdigest())
        return [prefix, *buffers, _ZEROS[: -payload_bytes % ALIGNMENT]]

    def parse(self, content: NDArray[np.uint8]) -> list[Slice]:
        """Return the slices of a region, decompressed. Others are views."""
        found, view, offset = [], content.data, 0
        while offset < len(content):
            start = offset + PREFIX_BYTES
            if start > len(content):
                raise PileError(_DAMAGED)
            header = view[offset : offset + _HEADER.size]
            input_index, count, first_row, payload_bytes, plain_bytes = _HEADER.unpack(header)
            end = start + payload_bytes
            digest = xxhash.xxh3_64(header)
            digest.update(view[start:end])
            if (
                end > len(content)
                or _CHECKSUM.unpack_from(view, start - _CHECKSUM.size)[0] != digest.intdigest()
            ):
                raise PileError(_DAMAGED)
            payload = content[start:end]
            if plain_bytes != payload_bytes and self._codec is not None:
                payload = np.frombuffer(self._codec.decompress(payload, plain_bytes), np.uint8)
            found.append(Slice(Origin(input_index, first_row), count, payload))
            offset = end + -end % ALIGNMENT
        return found


def _compress(codec: pa.Codec, buffers: list[memoryview], plain_bytes: int) -> list[memoryview]:
    """Return the buffers compressed into one, or unchanged if that is not smaller."""
    # As bytes, because a memoryview of the output buffer would have its full capacity.
    packed = codec.compress(b"".join(buffers), asbytes=True)
    return [memoryview(packed)] if len(packed) < plain_bytes else buffers
