"""Lance: random rows of a data set, a batch each time, in the order of a permutation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.rows import view_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write a data set."""
    import lance

    for table in tables:
        lance.write_dataset(table, str(folder), mode="append" if folder.exists() else "create")


def load_far(url: str, endpoint: str) -> Iterator[Any]:
    """Yield batches; up to four are fetched ahead."""
    import lance

    from recshuf.train.loading import compute_ahead

    rows = lance.dataset(url, storage_options={"aws_endpoint": endpoint, "allow_http": "true"})
    order = np.random.default_rng(SEED).permutation(rows.count_rows())
    parts = (order[begin : begin + BATCH].tolist() for begin in range(0, len(order), BATCH))
    for table in compute_ahead(rows.take, parts, 4):
        yield view_batch(table.combine_chunks().to_batches()[0])
