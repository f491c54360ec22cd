"""Sizes of rows of a batch in memory.

Arrow's `nbytes` does the same for a whole batch, but visits every list of a column of lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.arrow_views import has_offsets, is_variable_list, view_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64] | int


def count_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows of a batch: values, offsets and validity."""
    rows = int(batch.num_rows)
    return (sum(int(_bits_before(column, rows)) for column in batch.columns) + 7) >> 3


def count_bytes_before(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the rows before each row number, in the shape of `rows`.

    >>> batch = pa.record_batch({"a": pa.array(["x", "yyy"])})
    >>> count_bytes_before(batch, np.array([0, 1, 2])).tolist()
    [0, 5, 12]
    """
    bits = np.zeros(len(rows), np.int64)
    for column in batch.columns:
        bits += _bits_before(column, rows)
    return (bits + 7) >> 3


def _bits_before(column: pa.Array, rows: Rows) -> Rows:
    """Return the bits before one row number or many; a plain int, because NumPy is slow with single numbers."""
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _bits_before(column.storage, rows)
    validity = 0 if column.buffers()[0] is None else rows
    if types.is_struct(kind):
        fields = (column.field(index) for index in range(kind.num_fields))
        return sum((_bits_before(field, rows) for field in fields), 0 * rows + validity)
    if types.is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size)
        return _bits_before(values, rows * kind.list_size) + validity
    if not has_offsets(kind):
        return rows * _value_bits(column) + validity
    offsets = view_offsets(column)
    inner = _from_first(offsets, rows)
    if is_variable_list(kind) or types.is_map(kind):
        content = _bits_before(column.values.slice(int(offsets[0])), inner)
    else:
        content = inner * 8
    return content + rows * (8 * offsets.itemsize) + validity


def _from_first(offsets: NDArray[Any], rows: Rows) -> Rows:
    if isinstance(rows, int):
        return int(offsets[rows]) - int(offsets[0])
    distances: NDArray[np.int64] = np.subtract(offsets[rows], offsets[0], dtype=np.int64)
    return distances


def _value_bits(column: pa.Array) -> int:
    """Return the bits of each value, or their mean if they vary."""
    kind = column.type
    try:
        if not pa.types.is_dictionary(kind):
            return int(kind.bit_width)
    except ValueError:
        pass
    return 8 * int(column.nbytes) // max(1, len(column))
