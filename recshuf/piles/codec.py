"""Codec between records and the bytes of a slice on disk.

A slice is the keys of its n records (8 n bytes), then the planes of each column, then the flags of all nodes (one byte
each); see `planes`. The codec also sums the lengths of columns of text, binary, lists and maps for each region.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.piles.planes import LENGTH_BYTES, PlaneCutter, PlaneReader, count_nodes, plain_type
from recshuf.records.arrays import count_bytes, count_bytes_before, has_offsets, view_offsets
from recshuf.records.batch import Records, empty_rows
from recshuf.records.conforming import conform
from recshuf.records.keys import KEY_BYTES
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.piles.planes import Order
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
        self.overhead_bytes = sum(map(count_nodes, self._plain.types))
        """Bytes of a slice without records."""
        kinds = enumerate(map(_storage_type, self._plain.types))
        self.variable_columns = tuple(index for index, kind in kinds if has_offsets(kind))
        """Numbers of the columns whose values vary in length: text, binary, lists and maps, and not what is nested."""

    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the bytes each record takes in a slice, its key included, shape ``(n,)``; an estimate."""
        mean = KEY_BYTES + count_bytes(batch) // max(1, batch.num_rows)
        return np.full(batch.num_rows, mean, np.int64)

    def count_bytes(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records in each range ``edges[k]:edges[k + 1]``.

        Excludes keys and, in the flat layout, offsets.
        """
        return np.diff(count_bytes_before(batch, edges))

    def sum_lengths(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the lengths in each of `variable_columns` for rows ``edges[k]:edges[k + 1]``, shape ``(C, n)``.

        A null counts as what its slot holds.
        """
        return self._sum_plain(self._to_plain(batch), edges)

    def _sum_plain(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
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
        return slices, self._sum_plain(batch, edges)

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

    def unpack_keys(self, slices: Sequence[Payload]) -> NDArray[np.uint64]:
        """Return the keys of one or more slices, joined."""
        parts = [data[: count * KEY_BYTES] for data, count in slices]
        return np.concatenate(parts).view(np.uint64)

    def unpack_words(self, slices: Sequence[Payload], place: int = 0) -> NDArray[np.uint64]:
        """Return a column of 8 bytes of slices, which `place` others follow as the last ones, as one number for each record."""
        parts = []
        for data, count in slices:
            end = len(data) - self.overhead_bytes - place * count * KEY_BYTES
            parts.append(data[end - count * KEY_BYTES : end])
        return np.concatenate(parts).view(np.uint64)


class FlatCodec(RecordCodec):
    """Codec of columns that are bytes: ``fixed_size_binary`` or ``large_binary`` without nulls."""

    @staticmethod
    def suits(schema: pa.Schema) -> bool:
        """Tell whether every column of the schema is bytes of fixed or variable length."""
        return len(schema) > 0 and all(
            field.type == pa.large_binary() or pa.types.is_fixed_size_binary(field.type) for field in schema
        )

    def measure(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        sizes = np.full(batch.num_rows, KEY_BYTES, np.int64)
        for column in batch.columns:
            if pa.types.is_fixed_size_binary(column.type):
                sizes += column.type.byte_width
            else:
                sizes += np.diff(view_offsets(column)) + LENGTH_BYTES
        return sizes

    def count_bytes(self, batch: pa.RecordBatch, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        counts = np.zeros(len(edges) - 1, np.int64)
        for column in batch.columns:
            is_fixed = pa.types.is_fixed_size_binary(column.type)
            counts += np.diff(edges * column.type.byte_width if is_fixed else view_offsets(column)[edges])
        return counts


def _conform_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    # `RecordBatch.cast` fails with lists and slices of structs that hold values of type null.
    return pa.RecordBatch.from_arrays(list(map(conform, columns, schema.types)), schema=schema)


def choose_codec(schema: pa.Schema) -> RecordCodec:
    """Return the codec that suits a native schema."""
    return FlatCodec(schema) if FlatCodec.suits(schema) else RecordCodec(schema)
