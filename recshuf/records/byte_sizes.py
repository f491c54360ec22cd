"""Bytes that rows of a batch take in memory, for many row numbers at once.

Arrow's own `nbytes` does as much for a whole batch, but looks at every single list of a column of lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrow_views import has_offsets, is_variable_list, view_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64] | int


def count_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes that the rows of a batch take, values, offsets and validity."""
    rows = int(batch.num_rows)
    return (sum(int(_bits_before(column, rows)) for column in batch.columns) + 7) >> 3


def count_bytes_before(batch: pa.RecordBatch, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that the rows before each of these places take, in the shape of `places`.

    >>> batch = pa.record_batch({"a": pa.array(["x", "yyy"])})
    >>> count_bytes_before(batch, np.array([0, 1, 2])).tolist()
    [0, 5, 12]
    """
    bits = np.zeros(len(places), np.int64)
    for column in batch.columns:
        bits += _bits_before(column, places)
    return (bits + 7) >> 3


def _bits_before(column: pa.Array, places: Places) -> Places:
    """Return what `count_bytes_before` does, for one place or many: NumPy takes its time with a single number."""
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _bits_before(column.storage, places)
    validity = 0 if column.buffers()[0] is None else places
    if types.is_struct(kind):
        fields = (column.field(index) for index in range(kind.num_fields))
        return sum((_bits_before(field, places) for field in fields), 0 * places + validity)
    if types.is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size)
        return _bits_before(values, places * kind.list_size) + validity
    if not has_offsets(kind):
        return places * _value_bits(column) + validity
    offsets = view_offsets(column)
    inner = _from_first(offsets, places)
    if is_variable_list(kind) or types.is_map(kind):
        content = _bits_before(column.values.slice(int(offsets[0])), inner)
    else:
        content = inner * 8
    return content + places * (8 * offsets.itemsize) + validity


def _from_first(offsets: NDArray[Any], places: Places) -> Places:
    if isinstance(places, int):
        return int(offsets[places]) - int(offsets[0])
    distances: NDArray[np.int64] = np.subtract(offsets[places], offsets[0], dtype=np.int64)
    return distances


def _value_bits(column: pa.Array) -> int:
    """Return the bits of each value, or their mean where they vary in a way that offsets do not tell."""
    kind = column.type
    try:
        if not pa.types.is_dictionary(kind):
            return int(kind.bit_width)
    except ValueError:
        pass
    return 8 * int(column.nbytes) // max(1, len(column))
