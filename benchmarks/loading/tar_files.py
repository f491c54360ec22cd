"""WebDataset: tar files of samples, in a random order, through a shuffle buffer of 10,000 samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.rows import iterate_samples, stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.loading.rows import Sample

_BUFFER = 10_000


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write one tar file for each table."""
    import webdataset

    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        with webdataset.TarWriter(str(folder / f"{number:02}.tar")) as writer:
            for sample in iterate_samples([table]):
                key = f"{sample.pop('id'):09}"
                writer.write({"__key__": key} | {name: _to_bytes(value) for name, value in sample.items()})


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def load(folder: Path) -> Iterator[Any]:
    """Yield batches."""
    return _load([str(path) for path in sorted(folder.iterdir())])


def load_far(folder: Path, url: str) -> Iterator[Any]:
    """Yield batches of the files of a folder, which curl fetches from a URL."""
    return _load([f"pipe:curl -s {url}/{path.name}" for path in sorted(folder.iterdir())])


def _load(files: list[str]) -> Iterator[Any]:
    import webdataset

    samples = webdataset.WebDataset(files, shardshuffle=len(files), seed=SEED, empty_check=False)
    yield from samples.shuffle(_BUFFER).map(_parse).batched(BATCH, collation_fn=stack, partial=True)


def _parse(sample: dict[str, Any]) -> Sample:
    values: Sample = {"id": int(sample["__key__"])}
    if "text" in sample:
        return values | {"vector": np.frombuffer(sample["vector"], np.float32), "text": sample["text"]}
    label = np.frombuffer(sample["label"], np.int64)[0]
    return values | {"image": np.frombuffer(sample["image"], np.uint8), "label": label}
