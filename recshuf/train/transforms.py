"""Batches that a function of the trainer changes, with a seed for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrow_views import view_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from recshuf.train.columns import Block

    Transform = Callable[[Any, NDArray[np.uint64]], Any]
    """Gets a batch and the seeds of its records, of shape ``(n,)``, and returns what the trainer gets."""

_SEEDS = "seeds"


def append_seeds(records: pa.RecordBatch, seeds: NDArray[np.uint64]) -> pa.RecordBatch:
    """Return records with their seeds as the last column."""
    column = pa.Array.from_buffers(pa.uint64(), len(seeds), [None, pa.py_buffer(seeds)])
    return records.append_column(_SEEDS, column)


class TransformedBlock:
    """A block whose batches are transformed; see `Block`.

    Parameters
    ----------
    records
        Records whose last column is their seeds.
    make_block
        Makes the block of the other columns.
    """

    def __init__(
        self,
        records: pa.RecordBatch,
        make_block: Callable[[pa.RecordBatch], Block],
        transform: Transform,
    ) -> None:
        self.records = records
        self._seeds = view_bytes(records.columns[-1]).view(np.uint64)
        self._inner = make_block(records.select(range(records.num_columns - 1)))
        self._transform = transform

    def cut(self, start: int, stop: int) -> Any:
        """See `Block`."""
        return self._transform(self._inner.cut(start, stop), self._seeds[start:stop].copy())
