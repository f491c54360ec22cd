"""Grain: records of an ArrayRecord file, read one by one at the places of an index permutation."""

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

_NAME = "rows.arrayrecord"
_VECTOR_BYTES = 256


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write one file of records that are not compressed."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir(parents=True)
    writer = ArrayRecordWriter(str(folder / _NAME), "group_size:1,uncompressed")
    for sample in iterate_samples(tables):
        writer.write(b"".join(map(_to_bytes, sample.values())))
    writer.close()


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def _parse_text(record: bytes) -> Sample:
    end = 8 + _VECTOR_BYTES
    vector = np.frombuffer(record, np.float32, _VECTOR_BYTES // 4, 8)
    return {"id": np.frombuffer(record, np.int64, 1)[0], "vector": vector, "text": record[end:]}


def _parse_image(record: bytes) -> Sample:
    numbers = np.frombuffer(record[:8] + record[-8:], np.int64)
    return {"id": numbers[0], "image": np.frombuffer(record[8:-8], np.uint8), "label": numbers[1]}


def load(folder: Path) -> Iterator[Any]:
    """Yield batches, read by the thread that takes them."""
    import grain

    source = grain.sources.ArrayRecordDataSource([str(folder / _NAME)])
    parse = _parse_image if len(source[0]) > 3072 else _parse_text
    rows = grain.MapDataset.source(source).shuffle(seed=SEED).map(parse)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    yield from rows.batch(BATCH, batch_fn=stack).to_iter_dataset(options)
