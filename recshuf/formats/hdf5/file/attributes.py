"""Attributes and dimension scales, copied from one open HDF5 file to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from h5py import h5a, h5ds, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.file.contents import find_address
from recshuf.formats.hdf5.file.opening import reading
from recshuf.formats.hdf5.file.types import kind_of
from recshuf.formats.hdf5.file.values import copy_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    import h5py
    from h5py import h5d

_MOST_ATTRIBUTE_BYTES = 1 << 16  # with its name, type and shape
_SCALES = b"DIMENSION_LIST"
_CLASS = b"CLASS"
_SCALE_MARK = b"DIMENSION_SCALE"
_SCALE_BOOKKEEPING = ("DIMENSION_LIST", "REFERENCE_LIST")


def find_type(source: h5a.AttrID | h5d.DatasetID, types: Mapping[int, h5t.TypeID]) -> h5t.TypeID:
    """Return the type of the copy of an attribute or a dataset: the same named type, or a copy of its own.

    Parameters
    ----------
    types
        Copy of each named type, by its address in the source's file.
    """
    tid = source.get_type()
    return (types.get(find_address(tid)) if tid.committed() else None) or tid.copy()


def copy_attributes(
    source: h5py.HLObject, target: h5py.HLObject, name: str, types: Mapping[int, h5t.TypeID], *, lenient: bool
) -> None:
    """Copy all attributes of an object, except those that attach dimension scales to datasets.

    Parameters
    ----------
    types
        As of `find_type`.
    name
        Name of the source's file for messages.
    lenient
        Leave out attributes that hold references instead of refusing them.

    Raises
    ------
    InputError
        When an attribute cannot be copied.
    """
    for key in source.attrs:
        place = f"attribute {key!r} of {source.name!r}"
        with reading(name, place):
            attribute = h5a.open(source.id, _encode_name(key))
            tid = find_type(attribute, types)
            if not tid.detect_class(h5t.REFERENCE):
                made = _make_attribute(attribute, tid, target, _encode_name(key))
                if made is None:
                    problem = "is larger than an attribute that recshuf can write, 64 KB"
                    remedy = "delete it, or make it a dataset and give --keep-others"
                    raise InputError(name, problem, place=place, remedy=remedy)
                copy_values(attribute, made, tid)
            elif key not in _SCALE_BOOKKEEPING and not lenient:
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
    """Attach the copied dimension scales of a dataset to its copy, if there are any.

    Parameters
    ----------
    copies
        Copy of each dataset, by its address in the source's file.
    """
    if not h5a.exists(source.id, _SCALES):
        return
    kind_of(
        h5a.open(source.id, _SCALES).get_type()
    )  # the following calls read this attribute without checking its type
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
