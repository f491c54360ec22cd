"""Lengths of the values in columns: the bytes of text, the elements of lists. Fields of a fixed size have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.piles.encoding.planes import plain_type
from recshuf.records.arrays.arrow_views import has_offsets, view_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray


def list_variable_columns(schema: pa.Schema) -> tuple[int, ...]:
    """Return the numbers of the columns whose values have lengths in slices: text, binary, lists and maps.

    Nested ones do not count. A dictionary counts as its values, an extension type as its storage.
    """
    return tuple(
        index for index, kind in enumerate(schema.types) if has_offsets(_storage_type(plain_type(kind)))
    )


def _storage_type(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def sum_lengths(
    batch: pa.RecordBatch, columns: tuple[int, ...], edges: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the sums of the lengths in some columns of a plain batch, shape ``(C, n)``.

    Part k is rows ``edges[k]:edges[k + 1]``. A null counts as what its slot holds.
    """
    sums = np.empty((len(columns), len(edges) - 1), np.int64)
    for row, index in enumerate(columns):
        column = batch.column(index)
        while isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        sums[row] = np.diff(view_offsets(column)[edges])
    return sums
