"""Hugging Face datasets: the Arrow format, rows taken by a shuffled index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.rows import view_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Save the rows in its format."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(pa.concat_tables(tables)).save_to_disk(str(folder))


def load(folder: Path) -> Iterator[Any]:
    """Yield batches."""
    import datasets

    shuffled = datasets.load_from_disk(str(folder)).shuffle(seed=SEED)
    for table in shuffled.with_format("arrow").iter(BATCH):
        yield view_batch(table.combine_chunks().to_batches()[0])
