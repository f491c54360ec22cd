"""Arrow arrays as NumPy arrays and back, and the kinds of lists: what offsets and values lie where. Only bits are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NARROW = (pa.binary(), pa.string(), pa.list_(pa.int8()), pa.map_(pa.int8(), pa.int8()))
_WIDE = (pa.large_binary(), pa.large_string(), pa.large_list(pa.int8()))
# By the id of a type: batches may be small, and each predicate of pyarrow takes a call.
_OFFSETS: dict[int, np.dtype[Any]] = {
    **{kind.id: np.dtype(np.int32) for kind in _NARROW},
    **{kind.id: np.dtype(np.int64) for kind in _WIDE},
}
_VARIABLE_LISTS = {pa.list_(pa.int8()).id, pa.large_list(pa.int8()).id}
_CONTIGUOUS_LISTS = {*_VARIABLE_LISTS, pa.list_(pa.int8(), 1).id}
_LIST_VIEWS = {pa.list_view(pa.int8()).id, pa.large_list_view(pa.int8()).id}


def has_offsets(kind: pa.DataType) -> bool:
    """Tell whether arrays of a type have offsets: binary, text, lists and maps, but no views."""
    return kind.id in _OFFSETS


def is_variable_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets, of either width; maps are not."""
    return kind.id in _VARIABLE_LISTS


def is_contiguous_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets or of a fixed size."""
    return kind.id in _CONTIGUOUS_LISTS


def is_list_view(kind: pa.DataType) -> bool:
    """Tell whether a type is a list view of either width."""
    return kind.id in _LIST_VIEWS


def is_any_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets, a list of a fixed size, or a list view; maps are not."""
    return is_contiguous_list(kind) or is_list_view(kind)


def view_offsets(array: pa.Array) -> NDArray[Any]:
    """Return where each value begins and the last one ends, shape ``(n + 1,)``, for a type that `has_offsets`."""
    kind, buffer = _OFFSETS[array.type.id], array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, kind)
    return np.frombuffer(buffer, kind, len(array) + 1, array.offset * kind.itemsize)


def view_data(array: pa.Array) -> NDArray[np.uint8]:
    """Return the data buffer of a binary or text array, into which its offsets point; the array may use a part."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def view_bytes(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of all values of a binary, text or fixed-width array, back to back; null slots included."""
    if has_offsets(array.type):
        offsets = view_offsets(array)
        return view_data(array)[offsets[0] : offsets[-1]]
    width = array.type.bit_width // 8
    return np.frombuffer(array.buffers()[1] or b"", np.uint8, len(array) * width, array.offset * width)


def unpack_bits(bits: pa.Buffer | None, array: pa.Array) -> NDArray[np.uint8]:
    """Return one byte, 0 or 1, for each value of an array, from its buffer of validity or of booleans."""
    if bits is None:
        return np.zeros(len(array), np.uint8)
    first, skipped = divmod(array.offset, 8)
    content = np.frombuffer(bits, np.uint8)[first:]
    return np.unpackbits(content, count=skipped + len(array), bitorder="little")[skipped:]


def wrap_values(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array of a type of their width, without nulls."""
    # Without pa.array(), which imports pandas where there is one, and the whole of numpy.ma.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
