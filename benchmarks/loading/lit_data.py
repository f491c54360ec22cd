"""LitData: its chunks of 64 MB, shuffled, and the samples within each."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.floors import write as write_arrow
from benchmarks.loading.rows import iterate_samples, stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Reader:
    """Yields the samples of a file; a process of its own calls it."""

    path: str

    def __call__(self, _: int) -> Iterator[Any]:
        with pa.memory_map(self.path) as source:
            for sample in iterate_samples([pa.ipc.open_file(source).read_all()]):
                # It would take bytes for an image.
                yield {n: v.decode() if isinstance(v, bytes) else v for n, v in sample.items()}


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write its chunks."""
    import litdata

    rows = folder.with_suffix(".rows")
    write_arrow(rows, tables)
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(folder.with_suffix(".cache"))
    reader = _Reader(str(next(rows.iterdir())))
    litdata.optimize(reader, [0], str(folder), chunk_bytes="64MB", num_workers=1, keep_data_ordered=True)


def load(folder: Path) -> Iterator[Any]:
    """Yield batches."""
    yield from _load(str(folder))


def load_far(url: str, endpoint: str, scratch: Path) -> Iterator[Any]:
    """Yield batches of chunks that are fetched to a folder."""
    from litdata.streaming import downloader

    with suppress(AttributeError):  # its own settings refuse a server without TLS
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - as above
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    yield from _load(url, cache_dir=str(scratch), storage_options={"endpoint_url": endpoint} | keys)


def _load(place: str, **options: Any) -> Iterator[Any]:
    import litdata

    samples = litdata.StreamingDataset(place, shuffle=True, seed=SEED, drop_last=False, **options)
    yield from litdata.StreamingDataLoader(samples, batch_size=BATCH, num_workers=0, collate_fn=stack)
