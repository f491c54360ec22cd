"""Batches that a function of the trainer changes, with a seed for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.arrow_views import view_bytes, wrap_values
from recshuf.train.blocks import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from recshuf.train.blocks import Block

    Transform = Callable[[Any, NDArray[np.uint64]], Any]
    """Gets a batch and the seeds of its records, of shape ``(n,)``, and returns what the trainer gets."""

_SEEDS = "seeds"


def append_seeds(records: pa.RecordBatch, seeds: NDArray[np.uint64]) -> pa.RecordBatch:
    """Return records with their seeds as the last column."""
    return records.append_column(_SEEDS, wrap_values(seeds, pa.uint64()))


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
        self.seeds: NDArray[np.uint64] = view_bytes(records.columns[-1]).view(np.uint64)
        self.inner = make_block(records.select(range(records.num_columns - 1)))
        self.transform = transform

    @staticmethod
    def cut(parts: Sequence[Part]) -> Any:
        """See `Block`."""
        first = parts[0].block
        seeds = np.concatenate([block.seeds[start:stop] for block, start, stop in parts])
        batch = first.inner.cut([Part(block.inner, start, stop) for block, start, stop in parts])
        return first.transform(batch, seeds)
