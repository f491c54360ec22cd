"""From native batches of HDF5 rows to table form: groups become structs, rows fixed-size lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.hdf5.forms import (
    BINARY_NAME,
    BadValueError,
    Form,
    decode_text,
    find_form,
    find_stand_in,
    parse_temporal,
)
from recshuf.formats.hdf5.types import Kind
from recshuf.interfaces import Decoder
from recshuf.records.arrays import dotted, view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.hdf5.types import Column


_Tree = dict[str, "int | _Tree"]


class _Leaf(ABC):
    """Decodes the rows of one dataset."""

    arrow_type: pa.DataType
    can_fail: bool

    @abstractmethod
    def decode(self, rows: pa.Array) -> pa.Array:
        """Return the table form of native rows."""


class _FixedLeaf(_Leaf):
    def __init__(self, column: Column) -> None:
        self._form: Form = find_form(column.tid, dotted(column.name), column.row_shape)
        self._row_bytes = column.row_bytes
        noted = parse_temporal(column.arrow_type)
        self._noted = noted if noted and find_stand_in(noted) == self._form.arrow_type else None
        self.arrow_type = self._noted or self._form.arrow_type
        self.can_fail = self._form.can_fail

    def decode(self, rows: pa.Array) -> pa.Array:
        raw = view_bytes(rows).reshape(len(rows), rows.type.byte_width)
        values = self._form.decode(raw[:, : self._row_bytes])
        return values.view(self._noted) if self._noted else values


class _StringLeaf(_Leaf):
    arrow_type = pa.large_string()
    can_fail = True

    def decode(self, rows: pa.Array) -> pa.Array:
        return decode_text(rows)


class _BytesLeaf(_Leaf):
    arrow_type = pa.large_binary()
    can_fail = False

    def decode(self, rows: pa.Array) -> pa.Array:
        return rows


class _ListLeaf(_Leaf):
    def __init__(self, column: Column) -> None:
        self._form = find_form(column.tid.get_super(), dotted(column.name))
        self.arrow_type = pa.large_list(self._form.arrow_type)
        self.can_fail = self._form.can_fail

    def decode(self, rows: pa.Array) -> pa.Array:
        offsets = view_offsets(rows)
        width = self._form.width
        ends = (offsets - offsets[0]) // width
        try:
            items = self._form.decode(view_bytes(rows).reshape(-1, width))
        except BadValueError as error:
            row = int(np.searchsorted(ends, error.row, side="right")) - 1
            raise BadValueError(row, error.problem) from error
        return pa.LargeListArray.from_arrays(pa.array(ends), items)


class TableDecoder(Decoder):
    """Decodes one native column for each dataset.

    Parameters
    ----------
    columns
        The datasets, in the order of the native fields.
    """

    def __init__(self, columns: Sequence[Column], names: Sequence[str]) -> None:
        self._names = names
        self._columns = columns
        self._leaves = [_find_leaf(column) for column in columns]
        self._tree = _grow_tree(columns)
        self._schema = pa.schema(self._list_fields(self._tree))

    @property
    def schema(self) -> pa.Schema:
        """Known from the start: HDF5 is typed."""
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Check that strings are UTF-8 and that enums have names."""
        for column, leaf, rows in zip(self._columns, self._leaves, batch.columns, strict=True):
            if not leaf.can_fail:
                continue
            try:
                leaf.decode(rows)
            except BadValueError as error:
                place = f"row {first_row + error.row} of dataset {column.name!r}"
                raise InputError(self._names[input_index], error.problem, place=place) from error

    def finish(self) -> pa.Schema:
        """Return the schema."""
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records as typed columns."""
        leaves = [leaf.decode(rows) for leaf, rows in zip(self._leaves, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(_join_leaves(self._tree, leaves), schema=self._schema)

    def _list_fields(self, tree: _Tree) -> list[pa.Field]:
        return [
            pa.field(name, pa.struct(self._list_fields(node)))
            if isinstance(node, dict)
            else pa.field(name, self._leaves[node].arrow_type)
            for name, node in tree.items()
        ]


def _find_leaf(column: Column) -> _Leaf:
    if column.kind is Kind.FIXED:
        return _FixedLeaf(column)
    if column.kind is Kind.STRING:
        return _StringLeaf()
    return _BytesLeaf() if column.arrow_type == BINARY_NAME else _ListLeaf(column)


def _grow_tree(columns: Sequence[Column]) -> _Tree:
    """Return the groups as nested dictionaries with column indices as leaves."""
    tree: _Tree = {}
    for index, column in enumerate(columns):
        node = tree
        *groups, last = column.name.split("/")
        for group in groups:
            inner = node.setdefault(group, {})
            assert isinstance(inner, dict)  # noqa: S101 - a dataset is no group
            node = inner
        node[last] = index
    return tree


def _join_leaves(tree: _Tree, leaves: Sequence[pa.Array]) -> list[pa.Array]:
    joined = []
    for node in tree.values():
        if isinstance(node, dict):
            joined.append(pa.StructArray.from_arrays(_join_leaves(node, leaves), names=list(node)))
        else:
            joined.append(leaves[node])
    return joined
