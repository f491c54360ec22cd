"""HDF5 datatypes: whether they are supported, their width, and their names for messages."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import h5py
from h5py import h5t

if TYPE_CHECKING:
    import numpy as np


_VLEN_KIND_PLACE = 3
"""Byte of an encoded variable-length type that holds its kind: 0 for arrays, 1 for strings."""


class Kind(Enum):
    """Native form of the elements of a dataset."""

    FIXED = "fixed"
    """The bytes that HDF5 stores, of a fixed number."""
    STRING = "string"
    """Variable-length strings: their bytes."""
    ARRAY = "array"
    """Variable-length arrays: the bytes of their elements."""


def find_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why a type is not supported, or None if it is."""
    if tid.detect_class(h5t.REFERENCE):
        return "holds references, which mean nothing in another file"
    kind = kind_of(tid)
    if kind is Kind.STRING:
        return None
    if kind is Kind.ARRAY:
        return _find_element_obstacle(tid.get_super())
    if holds_variable_length(tid):
        return "holds variable-length values inside other values"
    return None


def find_copy_obstacle(tid: h5t.TypeID) -> str | None:
    """Return the reason why values that only h5py can read are not written back as they are; None if they are."""
    if tid.get_class() == h5t.COMPOUND and holds_variable_length(tid):
        parts = [tid.get_member_type(index) for index in range(tid.get_nmembers())]
    elif _is_array(tid):
        parts = [tid.get_super()]
    else:
        inside = tid.get_class() == h5t.ARRAY and holds_variable_length(tid)
        return "holds arrays of variable-length values" if inside else None
    obstacles = [
        find_copy_obstacle(part) if holds_variable_length(part) else _find_element_obstacle(part)
        for part in parts
    ]
    return next(filter(None, obstacles), None)


def _find_element_obstacle(element: h5t.TypeID) -> str | None:
    if holds_variable_length(element):
        return "holds variable-length values inside other values"
    # Only then does h5py return the stored bytes of the elements.
    dtype = find_dtype(element)
    if (
        dtype is None
        or dtype.kind in "Mm"
        or dtype.subdtype
        or not h5t.py_create(dtype, logical=True).equal(element)
    ):
        return "holds, in or beside variable-length values, a type that h5py would convert"
    return None


def kind_of(tid: h5t.TypeID) -> Kind:
    """Return the native form of elements of a type.

    Raises
    ------
    ValueError
        When the type is damaged.
    """
    if _is_variable_string(tid):
        return Kind.STRING
    return Kind.ARRAY if _is_array(tid) else Kind.FIXED


def holds_variable_length(tid: h5t.TypeID) -> bool:
    """Tell whether a type is or holds a variable-length type."""
    kind = tid.get_class()
    if kind == h5t.COMPOUND:
        return any(holds_variable_length(tid.get_member_type(i)) for i in range(tid.get_nmembers()))
    if kind == h5t.ARRAY:
        return holds_variable_length(tid.get_super())
    return _is_array(tid) or _is_variable_string(tid)


def _is_array(tid: h5t.TypeID) -> bool:
    """Tell whether a type is of variable-length arrays; an unknown variable-length kind aborts the process."""
    if tid.get_class() != h5t.VLEN:
        return False
    if tid.encode()[_VLEN_KIND_PLACE] & 0xF != 0:
        raise ValueError("a type of variable length is damaged")
    return True


def _is_variable_string(tid: h5t.TypeID) -> bool:
    return isinstance(tid, h5t.TypeStringID) and bool(tid.is_variable_str())


def find_dtype(tid: h5t.TypeID) -> np.dtype[Any] | None:
    """Return the NumPy type with the layout of an HDF5 type, or None if there is none."""
    if tid.get_class() == h5t.BITFIELD:  # h5py reads some of these as numbers
        return None
    try:
        dtype: np.dtype[Any] = tid.dtype
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None
    return dtype if dtype.hasobject or dtype.itemsize == tid.get_size() else None


def describe_type(tid: h5t.TypeID) -> str:
    """Return the name of a type for messages."""
    kind = kind_of(tid)
    if kind is Kind.STRING:
        return "variable-length string"
    if kind is Kind.ARRAY:
        return f"variable-length {describe_type(tid.get_super())}"
    dtype = find_dtype(tid)
    if dtype is None:
        return f"{type(tid).__name__.removeprefix('Type').removesuffix('ID').lower()}{8 * tid.get_size()}"
    enum = h5py.check_enum_dtype(dtype)
    return f"enum {enum}" if enum else str(dtype)
