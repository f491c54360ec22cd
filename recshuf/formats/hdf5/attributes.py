"""Attributes, dimension scales and values, copied from one open HDF5 file to another; values in pieces."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from h5py import h5a, h5d, h5ds, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.contents import find_address, reading
from recshuf.formats.hdf5.storage import select_rows
from recshuf.formats.hdf5.types import find_chunk, holds_variable_length, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import h5py
    from numpy.typing import NDArray

    _Array = NDArray[Any]

_PIECE_BYTES = 8 << 20
_VARIABLE_ROWS = 4096
"""Rows of a piece with variable-length values."""
_MOST_ATTRIBUTE_BYTES = 1 << 16  # with its name, type and shape
_SCALES = b"DIMENSION_LIST"
_CLASS = b"CLASS"
_SCALE_MARK = b"DIMENSION_SCALE"
BOOKKEEPING = ("DIMENSION_LIST", "REFERENCE_LIST")
"""Attributes that attach dimension scales to datasets."""


def copy_values(
    source: h5a.AttrID | h5d.DatasetID, target: h5a.AttrID | h5d.DatasetID, tid: h5t.TypeID
) -> None:
    """Copy all values of an attribute or a dataset to one of the same type and shape."""
    if isinstance(source, h5a.AttrID):
        if _count_values(source):
            values, memory_type = _make_buffer(source.shape, tid)
            source.read(values, memory_type)
            target.write(values, memory_type)
        return
    for part, values, memory_type in read_pieces(source, tid):
        target.write(*part, values, memory_type)


def read_pieces(
    source: h5d.DatasetID, tid: h5t.TypeID
) -> Iterator[tuple[tuple[h5s.SpaceID, h5s.SpaceID], _Array, h5t.TypeID]]:
    """Yield all values in pieces: the dataspaces in memory and file, the values, and their type in memory."""
    if not _count_values(source):
        return
    for part, shape in _cut_dataset(source, tid):
        values, memory_type = _make_buffer(shape, tid)
        source.read(*part, values, memory_type)
        yield part, values, memory_type


def _cut_dataset(
    dataset: h5d.DatasetID, tid: h5t.TypeID
) -> Iterator[tuple[tuple[h5s.SpaceID, h5s.SpaceID], tuple[int, ...]]]:
    """Yield dataspaces in memory and file, and the shape, of each piece: whole chunks, if they are not too large."""
    if not dataset.shape:
        yield (h5s.ALL, h5s.ALL), ()
        return
    row_count, *row_shape = dataset.shape
    rows = max(1, _PIECE_BYTES // max(1, prod(row_shape) * tid.get_size()))
    if holds_variable_length(tid):
        rows = min(rows, _VARIABLE_ROWS)
    chunk_rows = (find_chunk(dataset) or (1,))[0]
    rows = max(1, rows // chunk_rows) * chunk_rows
    for start in range(0, row_count, rows):
        shape = (min(rows, row_count - start), *row_shape)
        yield select_rows(dataset, start, shape[0], tuple(row_shape)), shape


def _count_values(source: h5a.AttrID | h5d.DatasetID) -> int:
    space = source.get_space()
    return 0 if space.get_simple_extent_type() == h5s.NULL else space.get_simple_extent_npoints()


def _make_buffer(shape: tuple[int, ...], tid: h5t.TypeID) -> tuple[_Array, h5t.TypeID]:
    """Return an array for values, and their type in it: the stored bytes, or objects of h5py if the length varies."""
    if holds_variable_length(tid):
        values = np.zeros(shape, tid.dtype)
        return values, h5t.py_create(values.dtype)
    return np.zeros(prod(shape) * tid.get_size(), np.uint8), tid


def find_type(source: h5a.AttrID | h5d.DatasetID, types: Mapping[int, h5t.TypeID]) -> h5t.TypeID:
    """Return the type of the copy of an attribute or a dataset: the same named type, or a copy of its own.

    `types` are the copies of named types, by their address in the source's file.
    """
    tid = source.get_type()
    return (types.get(find_address(tid)) if tid.committed() else None) or tid.copy()


def copy_attributes(
    source: h5py.HLObject,
    target: h5py.HLObject,
    name: str,
    types: Mapping[int, h5t.TypeID],
    *,
    lenient: bool,
    keys: Iterable[str] | None = None,
) -> None:
    """Copy all attributes of an object, or those with some `keys`, except those that attach dimension scales to datasets.

    `types` are as of `find_type`. If lenient, attributes that hold references are left out instead of refused.
    """
    for key in source.attrs if keys is None else keys:
        place = f"attribute {key!r} of {source.name!r}"
        with reading(name, place):
            attribute = h5a.open(source.id, _encode_name(key))
            tid = find_type(attribute, types)
            if not tid.detect_class(h5t.REFERENCE):
                copy = _make_attribute(attribute, tid, target, _encode_name(key))
                if copy is None:
                    problem = "is larger than an attribute that recshuf can write, 64 KB"
                    remedy = "delete it, or make it a dataset and give --keep-others"
                    raise InputError(name, problem, place=place, remedy=remedy)
                copy_values(attribute, copy, tid)
            elif key not in BOOKKEEPING and not lenient:
                problem = "holds references, which mean nothing in another file"
                remedy = "delete it, or name the datasets of the record with --datasets, without --keep-others, which leaves it out"
                raise InputError(name, problem, place=place, remedy=remedy)


def _encode_name(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _make_attribute(
    source: h5a.AttrID, tid: h5t.TypeID, target: h5py.HLObject, key: bytes
) -> h5a.AttrID | None:
    """Return a new attribute like another one; None if it is too large."""
    try:
        return h5a.create(target.id, key, tid, source.get_space())
    except (OSError, RuntimeError, ValueError):
        # Shards have the form of files that all versions of HDF5 read, in which it is part of a header.
        if source.get_storage_size() < _MOST_ATTRIBUTE_BYTES // 2:
            raise
        return None


def attach_scales(source: h5py.Dataset, target: h5py.Dataset, copies: Mapping[int, h5py.Dataset]) -> None:
    """Attach the copied dimension scales of a dataset to its copy.

    `copies` are those of all datasets, by their address in the source's file.
    """
    if not h5a.exists(source.id, _SCALES):
        return
    # The following calls read this attribute without checking its type.
    kind_of(h5a.open(source.id, _SCALES).get_type())
    for axis in range(len(source.shape)):
        scales: list[h5d.DatasetID] = []
        if h5ds.get_num_scales(source.id, axis) > 0:
            h5ds.iterate(source.id, axis, scales.append)
        for scale in scales:
            copy = copies.get(find_address(scale))
            if copy is not None:
                _check_class(copy.id)
                h5ds.attach_scale(target.id, copy.id, axis)


def _check_class(scale: h5d.DatasetID) -> None:
    """Raise `ValueError` if a dataset is marked as a scale with an unknown text, on which HDF5 aborts."""
    if not h5a.exists(scale, _CLASS):
        return
    mark = h5a.open(scale, _CLASS)
    tid = mark.get_type()
    if tid.get_class() != h5t.STRING or tid.is_variable_str() or tid.get_strpad() != h5t.STR_NULLTERM:
        return
    raw = np.zeros(mark.get_storage_size(), np.uint8)
    mark.read(raw, tid)
    if raw.tobytes().partition(b"\0")[0] != _SCALE_MARK:
        raise ValueError("a dimension scale is damaged")
