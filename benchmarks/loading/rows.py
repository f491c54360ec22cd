"""The rows that all loaders load: 64 floats and about 500 bytes of text, or images of 3 KB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.loading import SEED
from recshuf.train.blocks import Part, choose_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KINDS = ("text", "image")
Sample = dict[str, Any]


def make_table(kind: str, first: int, count: int) -> pa.Table:
    """Return `count` rows from number `first` on."""
    random = np.random.default_rng((SEED, first))
    ids = pa.array(np.arange(first, first + count))
    if kind == "image":
        pixels = pa.array(random.integers(0, 256, count * 3072, dtype=np.uint8))
        images = pa.FixedSizeListArray.from_arrays(pixels, 3072)
        return pa.table({"id": ids, "image": images, "label": pa.array(random.integers(0, 10, count))})
    vectors = pa.array(random.standard_normal(count * 64, dtype=np.float32))
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.cumsum(random.integers(400, 601, count))
    letters = random.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    texts = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(vectors, 64), "text": texts})


def view_batch(records: pa.RecordBatch) -> Sample:
    """Return what `PileLoader` yields of a record batch."""
    block = choose_block("numpy")(records)
    return block.cut([Part(block, 0, records.num_rows)])


def iterate_samples(tables: Iterable[pa.Table]) -> Iterator[Sample]:
    """Yield each row: numbers as int, arrays, and bytes."""
    for table in tables:
        columns = view_batch(table.combine_chunks().to_batches()[0])
        lists = [c.tolist() if getattr(c, "ndim", 2) == 1 else c for c in columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(columns, values, strict=True))


def stack(samples: Sequence[Sample]) -> Sample:
    """Return a batch of samples: arrays, and a list of texts."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {
        name: column if isinstance(column[0], bytes | str) else np.stack(column)
        for name, column in columns.items()
    }
