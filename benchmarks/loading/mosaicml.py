"""MosaicML Streaming: its shards, shuffled by `py1e`, its default."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.rows import iterate_samples, stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

_COLUMNS = {
    "id": "int64",
    "vector": "ndarray:float32:64",
    "text": "bytes",
    "image": "ndarray:uint8:3072",
    "label": "int64",
}


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write its shards."""
    from streaming import MDSWriter

    columns = {name: _COLUMNS[name] for name in tables[0].schema.names}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for sample in iterate_samples(tables):
            writer.write(sample)


def _open(folder: Path, remote: str | None = None) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return StreamingDataset(
        remote=remote,
        local=str(folder),
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=SEED,
        batch_size=BATCH,
    )


def load(folder: Path) -> Iterator[Any]:
    """Yield batches."""
    yield from _load(_open(folder))


def load_far(url: str, endpoint: str, scratch: Path) -> Iterator[Any]:
    """Yield batches of shards that are fetched to a folder."""
    os.environ["S3_ENDPOINT_URL"] = endpoint
    yield from _load(_open(scratch, url))


def _load(samples: Any) -> Iterator[Any]:
    from streaming import StreamingDataLoader

    return iter(StreamingDataLoader(samples, batch_size=BATCH, collate_fn=stack))


def load_records(folder: Path) -> Iterator[Any]:
    """Yield record after record."""
    yield from _open(folder)
