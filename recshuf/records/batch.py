"""Records between the passes: a native batch with its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.records.byte_sizes import count_bytes, count_bytes_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Records:
    """Keys of shape ``(n,)`` and the native batch of the same n records, in the same order."""

    keys: NDArray[np.uint64]
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def byte_count(self) -> int:
        """Bytes of the keys and of the batch."""
        return self.keys.nbytes + count_bytes(self.batch)

    def bytes_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records before each row number, in the shape of `rows`."""
        return rows * self.keys.itemsize + count_bytes_before(self.batch, rows)

    def take(self, index: NDArray[np.intp]) -> Records:
        """Return the records at `index`, copied."""
        return Records(self.keys[index], take_rows(self.batch, index))

    def slice(self, start: int, stop: int) -> Records:
        """Return records ``start:stop`` as a view."""
        return Records(self.keys[start:stop], self.batch.slice(start, stop - start))

    def select(self, column_count: int) -> Records:
        """Return the first columns of the records as a view."""
        return Records(self.keys, self.batch.select(range(column_count)))

    def copy_prefix(self, stop: int) -> Records:
        """Return the first `stop` records as a copy, so that the rest can be freed."""
        return concat_records([self.slice(0, stop), self.slice(0, 0)])


def take_rows(
    batch: pa.RecordBatch, index: NDArray[np.intp], pool: pa.MemoryPool | None = None
) -> pa.RecordBatch:
    """Return the rows of a batch at `index`, copied.

    Parameters
    ----------
    pool
        Where to allocate them. Default: Arrow's default pool.
    """
    if batch.num_columns == 0:
        return batch.slice(0, len(index))  # take would lose the number of rows
    if any(column.offset and _holds_fixed_lists(column.type) for column in batch.columns):
        # Arrow's take picks wrong values from a slice of fixed-size lists in fixed-size lists.
        columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    from pyarrow import compute  # late: commands that take nothing start faster

    return compute.take(batch, _wrap_index(index), memory_pool=pool)


def _wrap_index(index: NDArray[np.intp]) -> pa.Array:
    # Without pa.array(), which imports the whole of numpy.ma.
    return pa.Array.from_buffers(pa.int64(), len(index), [None, pa.py_buffer(np.ascontiguousarray(index))])


def _holds_fixed_lists(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_fixed_lists(kind.storage_type)
    return pa.types.is_fixed_size_list(kind) or any(
        _holds_fixed_lists(kind.field(child).type) for child in range(kind.num_fields)
    )


def concat_records(parts: Sequence[Records]) -> Records:
    """Return all records of one or more parts, in order, copied unless there is just one."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    return Records(keys, concat_batches([part.batch for part in parts]))


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all rows of one or more batches of one schema, in order, copied unless there is just one."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    if not len(schema):
        return empty_rows(schema, sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches)


def empty_rows(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Return `count` rows of a schema without columns."""
    rows = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(rows).replace_schema_metadata(schema.metadata)
