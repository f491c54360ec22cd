"""Planes: the memory of Arrow arrays, cut into the slices of piles.

An array is a tree of nodes: a list has one for its values, a struct one for each field, an extension type that of its
storage. The planes of a node, for the n values of a slice, follow each other:

    validity    one byte each, 0 for null; only if the node is flagged
    fixed size  their bytes, back to back; booleans and small numbers one byte each
    text, binary  lengths (4 n), then their bytes
    list, map   lengths (4 n), then the planes of the node of all their values
    fixed-size list, struct  the planes of the nodes inside

An array of type null has no planes.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.records.arrays import (
    FLAT,
    has_offsets,
    is_contiguous_list,
    is_list_view,
    is_variable_list,
    take_rows,
    unpack_bits,
    view_bytes,
    view_data,
    view_offsets,
)
from recshuf.records.conforming import with_value_field
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.system.buffers import Allocate

    Edges = NDArray[np.int64]

LENGTH_BYTES = 4
_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Replace dictionary types by those of their values, and views of text and bytes by others, at any depth."""
    types = pa.types
    # Extension types made in Python cannot be hashed.
    if kind.id in FLAT or isinstance(kind, pa.BaseExtensionType):
        return kind
    if kind in _PLAIN:
        return _PLAIN[kind]
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(member) for member in kind])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    return with_value_field(kind, _plain_field(kind.value_field)) if is_contiguous_list(kind) else kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def count_nodes(kind: pa.DataType) -> int:
    if kind.id in FLAT:
        return 1
    if isinstance(kind, pa.BaseExtensionType):
        return count_nodes(kind.storage_type)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind) or is_list_view(kind):
        raise ConversionError(
            "", f"piles cannot hold values of type {kind}", remedy="cast the column, or leave it out"
        )
    return 1 + sum(map(count_nodes, _inner_types(kind)))


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [pa.struct([kind.key_field, kind.item_field])]
    return [kind.field(index).type for index in range(kind.num_fields)]


class PlaneCutter:
    """Cuts arrays into the planes of slices.

    `planes` has the parts of each plane, as views of the arrays if their layout allows; `flags` tells for each node
    whether it has a plane of validity.
    """

    def __init__(self) -> None:
        self.planes: list[list[memoryview]] = []
        self.flags = bytearray()

    def add(self, array: pa.Array, edges: Edges) -> None:
        """Cut an array of a plain type at `edges`."""
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            self.add(array.storage, edges)
        elif not pa.types.is_null(kind):
            has_nulls = array.null_count > 0
            self.flags.append(has_nulls)
            if has_nulls:
                self.cut(unpack_bits(array.buffers()[0], array), edges)
            self._add_values(array, edges)

    def _add_values(self, array: pa.Array, edges: Edges) -> None:
        kind, types = array.type, pa.types
        if has_offsets(kind):
            self._add_variable(array, edges)
        elif types.is_struct(kind):
            for index in range(kind.num_fields):
                self.add(array.field(index), edges)
        elif types.is_fixed_size_list(kind):
            size = kind.list_size
            self.add(array.values.slice(array.offset * size, len(array) * size), edges * size)
        elif types.is_boolean(kind):
            self.cut(unpack_bits(array.buffers()[1], array), edges)
        elif width := kind.bit_width // 8:
            self.cut(view_bytes(array), edges * width)

    def _add_variable(self, array: pa.Array, edges: Edges) -> None:
        offsets = view_offsets(array)
        self.cut(np.diff(offsets).astype(np.uint32).view(np.uint8), edges * LENGTH_BYTES)
        if is_variable_list(array.type) or pa.types.is_map(array.type):
            first, last = int(offsets[0]), int(offsets[-1])
            self.add(array.values.slice(first, last - first), offsets[edges].astype(np.int64) - first)
        else:
            self.cut(view_data(array), offsets[edges])

    def cut(self, content: NDArray[np.uint8], edges: NDArray[Any]) -> None:
        """Cut a plane at `edges`, in bytes."""
        data = content.data if content.size else memoryview(b"")
        self.planes.append([data[start:stop] for start, stop in pairwise(edges.tolist())])


class Order:
    """The order in which values are taken: `index` is a permutation that says which value comes first, second ..."""

    def __init__(self, index: NDArray[np.intp]) -> None:
        self.index = index

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """Where each value goes, shape ``(n,)``."""
        places = np.zeros_like(self.index)
        places[self.index] = np.arange(len(self.index))
        return places

    def take(self, array: pa.Array) -> pa.Array:
        return take_rows(pa.RecordBatch.from_arrays([array], names=[""]), self.index).column(0)


class PlaneReader:
    """Reads the planes of several slices one after the other, joined.

    Parameters
    ----------
    slices
        The planes of each slice, back to back.
    flags
        Whether a node has a plane of validity in a slice, shape ``(nodes, slices)``.
    memory
        Where planes are joined.
    """

    def __init__(
        self, slices: Sequence[NDArray[np.uint8]], flags: NDArray[np.bool_], memory: Allocate = allocate
    ) -> None:
        self._slices = slices
        self._memory = memory
        self._offsets = [0] * len(slices)
        self._flags = flags
        self._node = 0

    def read_parts(self, edges: Edges) -> list[NDArray[np.uint8]]:
        """Return the next ``edges[k + 1] - edges[k]`` bytes of each slice k, as views."""
        ends = [start + size for start, size in zip(self._offsets, np.diff(edges).tolist(), strict=True)]
        parts = [data[start:end] for data, start, end in zip(self._slices, self._offsets, ends, strict=True)]
        self._offsets = ends
        return parts

    def read(self, edges: Edges, alignment: int = 1) -> NDArray[np.uint8]:
        """Return the next ``edges[k + 1] - edges[k]`` bytes of each slice k, joined and aligned."""
        is_aligned = not self._offsets[0] % alignment
        parts = self.read_parts(edges)
        if len(parts) == 1 and is_aligned:
            return parts[0]
        return np.concatenate(parts, out=self._memory(int(edges[-1] - edges[0]), 0))

    def read_array(self, kind: pa.DataType, edges: Edges) -> pa.Array:
        """Return an array of a plain type, of which slice k holds values ``edges[k]:edges[k + 1]``."""
        if isinstance(kind, pa.BaseExtensionType):
            return kind.wrap_array(self.read_array(kind.storage_type, edges))
        if pa.types.is_null(kind):
            return pa.nulls(int(edges[-1]))
        validity = self._read_validity(edges)
        buffers, children = self._read_values(kind, edges)
        return pa.Array.from_buffers(kind, int(edges[-1]), [validity, *buffers], children=children)

    def scatter_array(self, kind: pa.DataType, edges: Edges, order: Order) -> pa.Array | None:
        """Return what `read_array` does in another order, without joining slices before; None if it has several planes."""
        nodes = count_nodes(kind)
        width = _fixed_width(kind)
        if width is None or self._flags[self._node : self._node + nodes].any():
            return None
        self._node += nodes
        return _view_array(kind, self._scatter(edges, width, order), int(edges[-1]))

    def _scatter(self, edges: Edges, width: int, order: Order) -> NDArray[np.uint8]:
        """Return the values of a plane of fixed size in another order."""
        parts = self.read_parts(edges * width)
        if not width:
            return np.empty(0, np.uint8)
        dtype = f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"
        values = self._memory(int(edges[-1]) * width, 0).view(dtype)
        for part, (start, stop) in zip(parts, pairwise(edges.tolist()), strict=True):
            values[order.places[start:stop]] = part.view(dtype)
        return values.view(np.uint8)

    def _read_validity(self, edges: Edges) -> pa.Buffer | None:
        flags = self._flags[self._node]
        self._node += 1
        if not flags.any():
            return None
        sizes = np.diff(edges)
        present = self.read(np.cumsum([0, *(sizes * flags)]))
        valid = np.ones(int(edges[-1]), np.uint8)
        valid[np.repeat(flags, sizes)] = present
        return pa.py_buffer(np.packbits(valid, bitorder="little"))

    def _read_values(self, kind: pa.DataType, edges: Edges) -> tuple[list[pa.Buffer], list[pa.Array] | None]:
        """Return the buffers of values, and the children."""
        types = pa.types
        if has_offsets(kind):
            return self._read_variable(kind, edges)
        if types.is_struct(kind):
            return [], [self.read_array(inner, edges) for inner in _inner_types(kind)]
        if types.is_fixed_size_list(kind):
            return [], [self.read_array(kind.value_type, edges * kind.list_size)]
        if types.is_boolean(kind):
            return [pa.py_buffer(np.packbits(self.read(edges), bitorder="little"))], None
        width = kind.bit_width // 8
        return [pa.py_buffer(self.read(edges * width, min(width & -width, 8) or 1))], None

    def _read_variable(
        self, kind: pa.DataType, edges: Edges
    ) -> tuple[list[pa.Buffer], list[pa.Array] | None]:
        offsets = np.zeros(int(edges[-1]) + 1, np.int64)
        np.cumsum(self.read(edges * LENGTH_BYTES, LENGTH_BYTES).view(np.uint32), out=offsets[1:])
        inner = offsets[edges]
        stored = pa.py_buffer(_narrow(offsets, kind))
        if is_variable_list(kind) or pa.types.is_map(kind):
            (value_type,) = _inner_types(kind)
            return [stored], [self.read_array(value_type, inner)]
        return [stored, pa.py_buffer(self.read(inner))], None


def _fixed_width(kind: pa.DataType) -> int | None:
    """Return the bytes of each value, if all are in one plane."""
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed_width(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        width = _fixed_width(kind.value_type)
        return None if width is None else width * kind.list_size
    if has_offsets(kind) or pa.types.is_struct(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return None
    return int(kind.bit_width) // 8


def _view_array(kind: pa.DataType, content: NDArray[np.uint8], count: int) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_view_array(kind.storage_type, content, count))
    if pa.types.is_fixed_size_list(kind):
        inner = _view_array(kind.value_type, content, count * kind.list_size)
        return pa.Array.from_buffers(kind, count, [None], children=[inner])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(content)])


def _narrow(offsets: NDArray[np.int64], kind: pa.DataType) -> NDArray[Any]:
    types = pa.types
    if types.is_large_binary(kind) or types.is_large_string(kind) or types.is_large_list(kind):
        return offsets
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ConversionError(
            "",
            f"a pile holds more values of type {kind} than one array can",
            remedy="scatter into more piles",
        )
    return offsets.astype(np.int32)
