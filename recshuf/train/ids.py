"""The `_id` column: the source and the row of each record, by which anybody can check an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.arrow_views import view_bytes, wrap_values
from recshuf.records.provenance import find_origins, unpack_provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

ID = "_id"
"""Name of the column."""
ID_TYPE = pa.struct(
    [pa.field("source", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)]
)
"""Number of the source in the store's list of sources, and number of the row there, from 0."""


def make_ids(batch: pa.RecordBatch) -> pa.StructArray:
    """Return the `ID` column of native records."""
    sources, rows = unpack_provenance(find_origins(batch))
    columns = [wrap_values(sources.astype(np.int32), pa.int32()), wrap_values(rows, pa.int64())]
    return pa.StructArray.from_arrays(columns, fields=list(ID_TYPE))


def stack_ids(column: pa.StructArray) -> NDArray[np.int64]:
    """Return source and row of each record, shape ``(n, 2)``."""
    kinds = (np.int32, np.int64)
    parts = [view_bytes(part).view(kind) for part, kind in zip(column.flatten(), kinds, strict=True)]
    return np.stack(parts, axis=1, dtype=np.int64)
