"""From table form to native batches of HDF5 rows, and the image of shards from a schema: structs become groups, fixed-size lists axes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import prod
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5p, h5s, h5t

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError
from recshuf.formats.hdf5.columns import ARROW_TYPE
from recshuf.formats.hdf5.decoder import BINARY_NAME, find_stand_in
from recshuf.formats.hdf5.filters import set_compression
from recshuf.formats.hdf5.template import CHUNK_BYTES, LINK, Layout, new_image
from recshuf.formats.hdf5.types import wrap_rows
from recshuf.records.arrays import (
    dtype_of,
    is_variable_list,
    view_bytes,
    view_offsets,
    wrap_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recshuf.interfaces import WriteOptions


_MOST_CHUNKS_BYTES = 8 << 20
_VARIABLE_BYTES = 64
"""Assumed bytes of a variable-length value."""
_ELSEWHERE = "or write Parquet or JSONL"


@dataclass(frozen=True, slots=True)
class LeafEncoder:
    """Encodes a column without structs as one dataset."""

    path: tuple[str, ...]
    """Names of the column and the structs around it, outermost first."""
    tid: h5t.TypeID
    convert: Callable[[pa.Array], pa.Array]
    """Returns the native rows of an array without nulls."""
    row_shape: tuple[int, ...] = ()
    noted_type: str | None = None
    """Type recorded in the attribute of the dataset; None if it needs none."""
    is_variable: bool = False

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; of variable-length values as many as are usual."""
        return (
            _VARIABLE_BYTES if self.is_variable else max(1, prod(self.row_shape) * int(self.tid.get_size()))
        )


def _find_encoders(fields: pa.Schema | pa.StructType, path: tuple[str, ...] = ()) -> list[LeafEncoder]:
    encoders: list[LeafEncoder] = []
    counts = Counter(field.name for field in fields)
    for place, field in enumerate(fields):
        inner = (*path, field.name)
        _check_name(inner, place, is_double=counts[field.name] > 1)
        kind = _plain_type(field.type)
        encoders += _find_encoders(kind, inner) if pa.types.is_struct(kind) else [_find_encoder(inner, kind)]
    if path and not encoders:
        raise ConversionError(".".join(path), "a struct without fields has no place in HDF5")
    return encoders


def _check_name(path: tuple[str, ...], place: int, *, is_double: bool) -> None:
    name, field = path[-1], ".".join(path)
    remedy = f"rename it in the inputs, {_ELSEWHERE}"
    if not name:
        what = f"field {place + 1} of the struct" if len(path) > 1 else f"column {place + 1}"
        field, problem = ".".join(path[:-1]), f"{what} has no name, as a dataset must"
        remedy = f"name it in the inputs (or leave it out: to_csv(index=False) in pandas), {_ELSEWHERE}"
    elif name in (".", "..") or not {"/", "\0"}.isdisjoint(name):
        problem = "is no name for an HDF5 dataset, which holds no '/' or NUL"
    elif is_double:
        problem, remedy = "several columns have this name", "rename them"
    else:
        return
    raise ConversionError(field, problem, remedy=remedy)


def _find_encoder(path: tuple[str, ...], kind: pa.DataType) -> LeafEncoder:
    field, types = ".".join(path), pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        tid = h5t.py_create(h5py.string_dtype("utf-8"), logical=True)
        return LeafEncoder(path, tid, partial(_encode_text, field), is_variable=True)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        tid = h5t.vlen_create(h5t.py_create(np.dtype(np.uint8)))
        to_bytes = methodcaller("cast", pa.large_binary())
        return LeafEncoder(path, tid, to_bytes, noted_type=BINARY_NAME, is_variable=True)
    if is_variable_list(kind):
        item = _find_item_type(kind.value_type, field, kind)
        convert = partial(_encode_lists, field, pa.large_list(kind.value_type), item.get_size())
        return LeafEncoder(path, h5t.vlen_create(item), convert, is_variable=True)
    stand_in = find_stand_in(kind)
    noted_type = None if stand_in is None else str(kind)
    row_shape: tuple[int, ...] = ()
    whole = kind
    while types.is_fixed_size_list(kind):
        row_shape += (kind.list_size,)
        kind = kind.value_type
    tid = _find_item_type(stand_in or kind, field, whole)
    convert = partial(_encode_fixed, field, row_shape, tid.get_size())
    return LeafEncoder(path, tid, convert, row_shape, noted_type)


def _encode_text(field: str, array: pa.Array) -> pa.Array:
    data = view_bytes(rows := array.cast(pa.large_binary()))
    if data.size and data.min() == 0:
        problem = "a string holds the character NUL, at which HDF5 would cut it"
        raise ConversionError(field, problem, remedy=f"remove it in the inputs, {_ELSEWHERE}")
    return rows


def _encode_lists(field: str, list_type: pa.DataType, item_bytes: int, array: pa.Array) -> pa.Array:
    lists = array.cast(list_type)
    items, offsets = lists.flatten(), view_offsets(lists)
    _refuse_nulls(items, field)
    return wrap_bytes(_view_items(items), (offsets - offsets[0]) * item_bytes)


def _encode_fixed(field: str, row_shape: tuple[int, ...], item_bytes: int, array: pa.Array) -> pa.Array:
    """Encode numbers, booleans, fixed-size binaries, and fixed-size lists of these."""
    row_count, row_bytes = len(array), prod(row_shape) * item_bytes
    for _ in row_shape:
        array = array.flatten()
        _refuse_nulls(array, field)
    return wrap_rows(_view_items(array) if row_bytes else np.zeros(row_count, np.uint8), max(1, row_bytes))


def _find_item_type(kind: pa.DataType, field: str, whole: pa.DataType) -> h5t.TypeID:
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        opaque = h5t.create(h5t.OPAQUE, kind.byte_width)
        opaque.set_tag(b"")
        return opaque
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_plain:
        problem = f"HDF5 has no type for {whole}"
        remedy = "write Parquet or JSONL, leave the column out, or change its type in the inputs"
        raise ConversionError(field, problem, remedy=remedy)
    return h5t.py_create(dtype_of(kind), logical=True)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    return _plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _plain_array(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _plain_array(array.storage)
    return _plain_array(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def _flatten_structs(arrays: list[pa.Array], names: list[str], prefix: str = "") -> Iterator[pa.Array]:
    for array, name in zip(arrays, names, strict=True):
        plain = _plain_array(array)
        if pa.types.is_struct(plain.type):
            _refuse_nulls(plain, prefix + name)
            inner_names = [field.name for field in plain.type]
            yield from _flatten_structs(plain.flatten(), inner_names, f"{prefix}{name}.")
        else:
            yield plain


def _refuse_nulls(array: pa.Array, field: str) -> None:
    if array.null_count:
        remedy = f"HDF5 has no nulls: fill or drop them first, {_ELSEWHERE}"
        raise ConversionError(field, f"{array.null_count} of {len(array)} values are null", remedy=remedy)


def _view_items(array: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of the values of a fixed-size array without nulls, booleans as one byte each."""
    if pa.types.is_boolean(array.type):
        flags: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
        return flags.view(np.uint8)
    return view_bytes(array)


class TableEncoder:
    """Turns batches of a schema into native batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self.leaves = _find_encoders(schema)
        if not self.leaves:
            remedy = "choose another format, or name the fields with --schema"
            raise ConversionError("", "records without a single field have no place in HDF5", remedy=remedy)
        self._names = schema.names

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = []
        for leaf, array in zip(self.leaves, _flatten_structs(batch.columns, self._names), strict=True):
            _refuse_nulls(array, ".".join(leaf.path))
            rows.append(leaf.convert(array))
        return pa.RecordBatch.from_arrays(rows, names=[leaf.name for leaf in self.leaves])


def make_layout(leaves: list[LeafEncoder], options: WriteOptions) -> Layout:
    """Return the layout of shards with one dataset per encoder, chunked and by default compressed.

    All chunks have the same rows, so that every step ends with whole chunks.
    """
    sizes = [leaf.row_bytes for leaf in leaves]
    chunk_rows = max(1, min(CHUNK_BYTES // max(sizes), _MOST_CHUNKS_BYTES // sum(sizes)))
    with new_image() as (file, result):
        for leaf in leaves:
            _create_dataset(file, leaf, chunk_rows, options)
    return Layout(result[0], tuple(leaf.name for leaf in leaves))


def _create_dataset(file: h5py.File, leaf: LeafEncoder, chunk_rows: int, options: WriteOptions) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((chunk_rows, *(max(1, width) for width in leaf.row_shape)))
    plist.set_obj_track_times(False)
    if not leaf.is_variable:
        plist.set_shuffle()
        set_compression(plist, options.compression or "gzip", options.compression_level)
    most = (h5s.UNLIMITED, *(width or h5s.UNLIMITED for width in leaf.row_shape))
    space = h5s.create_simple((0, *leaf.row_shape), most)
    h5d.create(file.id, leaf.name.encode(), leaf.tid, space, plist, LINK)
    if leaf.noted_type is not None:
        file[leaf.name].attrs[ARROW_TYPE] = leaf.noted_type
