"""Columns of batches as the trainer gets them, unless it wants record batches.

A column is, by its type:

    numbers, booleans               array of shape (n,)
    dates, times, durations         array of datetime64 or timedelta64, shape (n,); a time is the duration since midnight
    lists of a fixed size of these  array of shape (n, size), lists in lists (n, size, size) ...
    `_id`                           array of int64 of shape (n, 2): source and row
    binary of a fixed size          array of uint8 of shape (n, size)
    text                            list of str
    binary                          list of bytes
    all others                      Arrow array

A column of numbers is an Arrow array, too, if it has nulls: in all batches, if a store knows that it has some. In lists of text, a null is None. By `_id` anybody
can check an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.stored import ID_TYPE
from recshuf.records.arrays import unpack_bits, view_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def stack_ids(column: pa.StructArray) -> NDArray[np.int64]:
    """Return source and row of each record, shape ``(n, 2)``."""
    kinds = (np.int32, np.int64)
    parts = [view_bytes(part).view(kind) for part, kind in zip(column.flatten(), kinds, strict=True)]
    return np.stack(parts, axis=1, dtype=np.int64)


_UNITS = ("s", "ms", "us", "ns")
_DTYPES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("u1", "?"),
    **{
        getattr(pa, f"{kind}{8 * size}")(): (f"{kind[0]}{size}",) * 2
        for kind in ("int", "uint", "float")
        for size in (1, 2, 4, 8)
        if (kind, size) != ("float", 1)
    },
    pa.date32(): ("i4", "M8[D]"),
    pa.date64(): ("i8", "M8[ms]"),
    **{pa.duration(unit): ("i8", f"m8[{unit}]") for unit in _UNITS},
    **{pa.time32(unit): ("i4", f"m8[{unit}]") for unit in _UNITS[:2]},
    **{pa.time64(unit): ("i8", f"m8[{unit}]") for unit in _UNITS[2:]},
    **{pa.timestamp(unit): ("i8", f"M8[{unit}]") for unit in _UNITS},
}
"""Types that arrays hold: the type of their values in Arrow's memory, and that of the array."""
_TEXTS = {kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())}


class _Layout(NamedTuple):
    """How an array holds the values of a type."""

    depth: int
    """Number of lists of a fixed size around the values."""
    shape: tuple[int, ...]
    """Shape of a value."""
    stored: np.dtype[Any]
    """Type of its numbers in Arrow's memory."""
    wanted: np.dtype[Any]
    """Type of the numbers of the array."""


def show_column(column: pa.Array, *, may_be_array: bool = True) -> Any:
    """Return a column in the form of the table above. See `view_values` for arrays."""
    if column.type.id in _TEXTS:
        return column.to_pylist()
    values = view_values(column) if may_be_array else None
    return column if values is None else values


def view_values(column: pa.Array) -> NDArray[Any] | None:
    """Return the values of a column as an array that can be written to; None where the table above names none.

    It is a view if the memory of the column can be written to, and its type allows.
    """
    if column.type == ID_TYPE:
        return stack_ids(column)
    # Extension types may have no hash.
    layout = None if isinstance(column.type, pa.BaseExtensionType) else _find_layout(column.type)
    if layout is None or column.null_count:
        return None
    count = len(column)
    for _ in range(layout.depth):
        size = column.type.list_size
        column = column.values.slice(column.offset * size, len(column) * size)
        if column.null_count:
            return None
    if layout.wanted == np.bool_:
        values = unpack_bits(column.buffers()[1], column).view(np.bool_)
    else:
        values = view_bytes(column).view(layout.stored)
        is_wider = layout.wanted.itemsize > layout.stored.itemsize
        values = values.astype(layout.wanted) if is_wider else values.view(layout.wanted)
    return (values if values.flags.writeable else values.copy()).reshape(count, *layout.shape)


def iterate_rows(batch: Any) -> Iterator[dict[str, Any]]:
    if isinstance(batch, pa.RecordBatch):
        yield from batch.to_pylist()
        return
    if not isinstance(batch, Mapping):
        raise UsageError(
            f"records: the transform returned {type(batch).__name__}, no dictionary of columns; iterate over the loader"
        )
    columns = [one.to_pylist() if isinstance(one, pa.Array) else one for one in batch.values()]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch, values, strict=True))


@lru_cache(maxsize=256)
def _find_layout(kind: pa.DataType) -> _Layout | None:
    """Return how an array holds the values of a type; None if it does not."""
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    depth = len(shape)
    if pa.types.is_fixed_size_binary(kind):
        shape.append(kind.byte_width)
        dtypes: tuple[str, str] | None = ("u1", "u1")
    else:
        dtypes = _DTYPES.get(pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind)
    return None if dtypes is None else _Layout(depth, tuple(shape), *map(np.dtype, dtypes))
