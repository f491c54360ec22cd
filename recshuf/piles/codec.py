"""Codecs between records and the bytes of a slice on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrow_views import view_bytes, view_data, view_offsets
from recshuf.records.batch import Records, concat_batches
from recshuf.records.byte_sizes import count_bytes, count_bytes_before
from recshuf.records.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


LENGTH_BYTES = 4


_CONTIGUOUS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

MAX_RECORD_BYTES = 2 ** (8 * LENGTH_BYTES) - 1


class RecordCodec(ABC):
    """Turns slices of records of one native schema into bytes and back."""

    overhead_bytes = 0
    """Bytes of a slice without records."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the bytes each record takes in a slice, its key included, shape ``(n,)``; an estimate."""

    @abstractmethod
    def count_bytes(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records in each range ``edges[k]:edges[k + 1]``.

        Excludes keys and, in the flat layout, offsets.
        """

    @abstractmethod
    def pack(self, records: Records, bounds: Sequence[int]) -> list[list[memoryview]]:
        """Return the buffers of a slice for each range ``bounds[k]:bounds[k + 1]``.

        They are views of `records` if the layout allows.
        """

    @abstractmethod
    def unpack(self, slices: Sequence[tuple[NDArray[np.uint8], int]]) -> Records:
        """Return the records of one or more slices, given as bytes and record count, joined in order."""


class FlatCodec(RecordCodec):
    """Codec of columns that are bytes: ``fixed_size_binary`` or ``large_binary`` without nulls."""

    @staticmethod
    def suits(schema: pa.Schema) -> bool:
        """Tell whether every column of the schema is bytes of fixed or variable length."""
        return len(schema) > 0 and all(
            field.type == pa.large_binary() or pa.types.is_fixed_size_binary(field.type) for field in schema
        )

    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """See `RecordCodec`."""
        sizes = np.full(batch.num_rows, KEY_BYTES, np.int64)
        for column in batch.columns:
            if pa.types.is_fixed_size_binary(column.type):
                sizes += column.type.byte_width
            else:
                sizes += np.diff(view_offsets(column)) + LENGTH_BYTES
        return sizes

    def count_bytes(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `RecordCodec`."""
        counts = np.zeros(len(edges) - 1, np.int64)
        for column in batch.columns:
            is_fixed = pa.types.is_fixed_size_binary(column.type)
            counts += np.diff(edges * column.type.byte_width if is_fixed else view_offsets(column)[edges])
        return counts

    def pack(self, records: Records, bounds: Sequence[int]) -> list[list[memoryview]]:
        """See `RecordCodec`."""
        edges = np.asarray(bounds)
        planes = [_cut(_bytes_view(records.keys), edges * KEY_BYTES)]
        for column in records.batch.columns:
            if pa.types.is_fixed_size_binary(column.type):
                planes += self._cut_fixed(column, edges)
            else:
                planes += self._cut_variable(column, edges)
        return [list(buffers) for buffers in zip(*planes, strict=True)]

    @staticmethod
    def _cut_fixed(column: pa.Array, edges: NDArray[np.int64]) -> list[list[memoryview]]:
        width = column.type.byte_width
        if not width:
            return []
        return [_cut(view_bytes(column).data, edges * width)]

    @staticmethod
    def _cut_variable(column: pa.Array, edges: NDArray[np.int64]) -> list[list[memoryview]]:
        offsets = view_offsets(column)
        lengths = _bytes_view(np.diff(offsets).astype(np.uint32))
        return [_cut(lengths, edges * LENGTH_BYTES), _cut(view_data(column).data, offsets[edges])]

    def unpack(self, slices: Sequence[tuple[NDArray[np.uint8], int]]) -> Records:
        """See `RecordCodec`."""
        reader = _SliceReader([data for data, _ in slices])
        edges = np.zeros(len(slices) + 1, np.int64)
        np.cumsum([count for _, count in slices], out=edges[1:])
        keys = reader.read(edges * KEY_BYTES).view(np.uint64)
        columns = [self._read_column(field.type, reader, edges) for field in self.schema]
        return Records(keys, pa.RecordBatch.from_arrays(columns, schema=self.schema))

    @staticmethod
    def _read_column(kind: pa.DataType, reader: _SliceReader, edges: NDArray[np.int64]) -> pa.Array:
        """Read a column; slice k holds its rows ``edges[k]:edges[k + 1]``."""
        count = int(edges[-1])
        if pa.types.is_fixed_size_binary(kind):
            content = reader.read(edges * kind.byte_width)
            return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(content)])
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(reader.read(edges * LENGTH_BYTES).view(np.uint32), out=offsets[1:])
        content = reader.read(offsets[edges])
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


class _SliceReader:
    """Reads the same part of several slices, joined."""

    def __init__(self, slices: list[NDArray[np.uint8]]) -> None:
        self._slices = slices
        self._offsets = [0] * len(slices)

    def read(self, edges: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the next ``edges[k + 1] - edges[k]`` bytes of each slice k."""
        ends = [start + size for start, size in zip(self._offsets, np.diff(edges).tolist(), strict=True)]
        parts = [data[start:end] for data, start, end in zip(self._slices, self._offsets, ends, strict=True)]
        self._offsets = ends
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class IpcCodec(RecordCodec):
    """Codec of any other schema: one Arrow IPC message for each slice.

    An IPC batch has no dictionaries, so dictionary columns are stored as their values.
    """

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._plain = pa.schema(
            [field.with_type(plain_type(field.type)) for field in schema], schema.metadata
        )
        self._has_dictionaries = not self._plain.equals(schema)
        empty = [pa.nulls(0, kind) for kind in self._plain.types]
        self.overhead_bytes = len(pa.RecordBatch.from_arrays(empty, schema=self._plain).serialize())

    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """See `RecordCodec`."""
        mean = KEY_BYTES + count_bytes(batch) // max(1, batch.num_rows)
        return np.full(batch.num_rows, mean, np.int64)

    def count_bytes(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `RecordCodec`."""
        return np.diff(count_bytes_before(batch, edges))

    def pack(self, records: Records, bounds: Sequence[int]) -> list[list[memoryview]]:
        """See `RecordCodec`."""
        batch = records.batch.cast(self._plain) if self._has_dictionaries else records.batch
        keys = _bytes_view(records.keys)
        return [
            [
                keys[start * KEY_BYTES : stop * KEY_BYTES],
                memoryview(batch.slice(start, stop - start).serialize()),
            ]
            for start, stop in pairwise(bounds)
        ]

    def unpack(self, slices: Sequence[tuple[NDArray[np.uint8], int]]) -> Records:
        """See `RecordCodec`."""
        keys = np.concatenate([data[: count * KEY_BYTES] for data, count in slices]).view(np.uint64)
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(data[count * KEY_BYTES :]), self._plain)
            for data, count in slices
        ]
        batch = concat_batches(batches)
        return Records(keys, batch.cast(self.schema) if self._has_dictionaries else batch)


def choose_codec(schema: pa.Schema) -> RecordCodec:
    """Return the fastest codec that suits a native schema."""
    return FlatCodec(schema) if FlatCodec.suits(schema) else IpcCodec(schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Replace dictionary types by their value types, and views by contiguous types, at any depth."""
    if kind in _CONTIGUOUS:
        return _CONTIGUOUS[kind]
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(plain_type(member.type)) for member in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def _bytes_view(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data if array.size else memoryview(b"")


def _cut(data: memoryview, edges: NDArray[np.int64]) -> list[memoryview]:
    return [data[start:stop] for start, stop in pairwise(edges.tolist())]
