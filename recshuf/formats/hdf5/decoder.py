"""From native batches of HDF5 rows to table form, and to the texts of fields: groups become structs, rows fixed-size lists."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.hdf5.forms import (
    BINARY_NAME,
    BadValueError,
    Form,
    decode_text,
    find_form,
    find_stand_in,
    parse_temporal,
)
from recshuf.formats.hdf5.types import Kind, Packer, list_leaves
from recshuf.interfaces import TableDecoder, ValueReader
from recshuf.records.arrays import check_path, dotted, is_any_list, unknown_column, view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h5py import h5t

    from recshuf.formats.hdf5.storage import Column
    from recshuf.formats.texts import TableValueReader


_Tree = dict[str, "int | _Tree"]


class _Leaf(NamedTuple):
    arrow_type: pa.DataType
    can_fail: bool
    decode: Callable[[pa.Array], pa.Array]


class RowDecoder(TableDecoder):
    """Decodes one native column for each dataset; the columns are in the order of the native fields."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str]) -> None:
        self._names = names
        self._columns = columns
        self._leaves = [_find_leaf(column) for column in columns]
        self._tree = _grow_tree([column.name.split("/") for column in columns])
        empty = _join_leaves(self._tree, [pa.array([], leaf.arrow_type) for leaf in self._leaves])
        super().__init__(pa.RecordBatch.from_arrays(empty, names=list(self._tree)).schema)

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

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        leaves = [leaf.decode(rows) for leaf, rows in zip(self._leaves, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(_join_leaves(self._tree, leaves), schema=self.schema)


def _find_leaf(column: Column) -> _Leaf:
    name = dotted(column.name)
    if column.kind is Kind.COMPOUND:
        return _find_compound(column.tid, name)
    if column.kind is Kind.ARRAY and column.arrow_type == BINARY_NAME:
        return _Leaf(pa.large_binary(), False, lambda rows: rows)
    if column.kind is not Kind.FIXED:
        return _find_simple(column.kind, column.tid, name)
    form = find_form(column.tid, name, column.row_shape)
    noted = parse_temporal(column.arrow_type)
    if noted is None or find_stand_in(noted) != form.arrow_type:
        noted = form.arrow_type
    return _Leaf(noted, form.can_fail, partial(_decode_fixed, form, column.row_bytes, noted))


def _find_simple(kind: Kind, tid: h5t.TypeID, name: str) -> _Leaf:
    if kind is Kind.STRING:
        return _Leaf(pa.large_string(), True, decode_text)
    form = find_form(tid.get_super() if kind is Kind.ARRAY else tid, name)
    if kind is Kind.ARRAY:
        return _Leaf(pa.large_list(form.arrow_type), form.can_fail, partial(_decode_lists, form))
    return _Leaf(form.arrow_type, form.can_fail, form.decode)


def _find_compound(tid: h5t.TypeID, name: str) -> _Leaf:
    """Return the leaf of a compound with members of variable length: a struct of the members' table forms."""
    packer = Packer(tid)
    members = (*packer.fixed, *packer.variable)
    decoders = {
        each.path: _find_simple(each.kind, each.tid, ".".join((name, *each.path))) for each in members
    }
    paths = [each.path for each in list_leaves(tid)]
    tree = _grow_tree(paths)

    def decode(rows: pa.Array) -> pa.Array:
        fixed, variable = packer.split(rows)
        values = {each.path: part for each, part in zip(members, (*fixed, *variable), strict=True)}
        arrays = [decoders[path].decode(values[path]) for path in paths]
        return pa.StructArray.from_arrays(_join_leaves(tree, arrays), names=list(tree))

    empty = _join_leaves(tree, [pa.array([], decoders[path].arrow_type) for path in paths])
    kind = pa.StructArray.from_arrays(empty, names=list(tree)).type
    return _Leaf(kind, any(each.can_fail for each in decoders.values()), decode)


def _decode_fixed(form: Form, row_bytes: int, noted: pa.DataType, rows: pa.Array) -> pa.Array:
    raw = view_bytes(rows).reshape(len(rows), rows.type.byte_width)
    values = form.decode(raw[:, :row_bytes])
    return values if noted == form.arrow_type else values.view(noted)


def _decode_lists(form: Form, rows: pa.Array) -> pa.Array:
    offsets = view_offsets(rows)
    ends = (offsets - offsets[0]) // form.width
    try:
        items = form.decode(view_bytes(rows).reshape(-1, form.width))
    except BadValueError as error:
        row = int(np.searchsorted(ends, error.row, side="right")) - 1
        raise BadValueError(row, error.problem) from error
    return pa.LargeListArray.from_arrays(pa.array(ends), items)


def _grow_tree(paths: Sequence[Sequence[str]]) -> _Tree:
    """Return the groups on some paths as nested dictionaries, with the indices of paths as leaves."""
    root: _Tree = {}
    for index, path in enumerate(paths):
        tree = root
        for name in path[:-1]:
            inner = tree.setdefault(name, {})
            assert isinstance(inner, dict)  # noqa: S101 - a dataset is no group
            tree = inner
        tree[path[-1]] = index
    return root


def _join_leaves(tree: _Tree, leaves: Sequence[pa.Array]) -> list[pa.Array]:
    return [
        pa.StructArray.from_arrays(_join_leaves(node, leaves), names=list(node))
        if isinstance(node, dict)
        else leaves[node]
        for node in tree.values()
    ]


class Hdf5ValueReader(ValueReader):
    """Reads datasets by their paths, and members of compounds behind them."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str], paths: Sequence[str]) -> None:
        self._readers = [_find_reader(columns, names, path) for path in paths]

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        return tuple(
            batch.column(reader).cast(pa.large_binary())
            if isinstance(reader, int)
            else reader.read(batch, input_index, first_row)[0]
            for reader in self._readers
        )


def _find_reader(columns: Sequence[Column], names: Sequence[str], path: str) -> int | TableValueReader:
    """Return the reader of a field, or the place of the column whose bytes are its texts."""
    from recshuf.formats.texts import TableValueReader

    wanted = f"{dotted(path)}."
    known = [f"{dotted(column.name)}." for column in columns]
    place = next((place for place, name in enumerate(known) if wanted.startswith(name)), None)
    if place is None:
        if any(name.startswith(wanted) for name in known):
            raise UsageError(f"column {path!r}: is a group; name a dataset inside it")
        raise unknown_column(path, [column.name for column in columns])
    column = columns[place]
    if prod(column.row_shape) == 1:
        column = replace(column, row_shape=())
    decoder = RowDecoder([column], names)
    if wanted == known[place] and is_any_list(check_path(dotted(path), decoder.finish())):
        return place
    return TableValueReader(decoder, names, [dotted(path)], [place])
