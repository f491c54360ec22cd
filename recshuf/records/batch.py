"""Records between the passes: a native batch with its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.byte_sizes import count_bytes, count_bytes_before
from recshuf.records.arrays.taking import take_rows

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
