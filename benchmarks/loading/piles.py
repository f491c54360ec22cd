"""The loaders of recshuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import recshuf
from benchmarks.loading import BATCH, SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa


def write(folder: Path, _: list[pa.Table]) -> None:
    """Scatter the files of the rows into a store."""
    recshuf.scatter(sorted((folder.parent / "parquet").iterdir()), folder, seed=SEED)


def load(output: str) -> Callable[[Path], Iterable[Any]]:
    """Return a function that opens a `PileLoader`."""
    return lambda folder: recshuf.PileLoader(folder, BATCH, output=output, drop_last=False)


def load_records(folder: Path) -> Iterator[Any]:
    """Yield record after record."""
    yield from recshuf.PileLoader(folder, BATCH, drop_last=False).records()


def load_dataset(workers: int) -> Callable[[Path], Iterable[Any]]:
    """Return a function that opens a `PileDataset` with a number of workers."""

    def open_dataset(folder: Path) -> Iterable[Any]:
        from recshuf.torch import PileDataLoader, PileDataset

        return PileDataLoader(PileDataset(folder, BATCH, drop_last=False), num_workers=workers)

    return open_dataset
