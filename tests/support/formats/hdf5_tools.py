"""Tools of the HDF5 tests: raw bytes in and out of datasets, around the code under test."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile, ReadOptions, Source, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

LONGEST = 1 << 30


def given(path: Path) -> InputFile:
    return InputFile(name=str(path), path=path)


def open_source(*paths: Path, datasets: tuple[str, ...] | None = None) -> Source:
    return FORMAT.open_source([given(path) for path in paths], ReadOptions(datasets=datasets))


def read_all(source: Source, block_bytes: int = 1 << 20) -> list[pa.RecordBatch]:
    return [
        batch
        for index in range(len(source.inputs))
        for fragment in source.fragments(index, block_bytes, LONGEST)
        for batch in fragment.batches()
    ]


def write_shard(
    source: Source,
    path: Path,
    batches: Sequence[pa.RecordBatch],
    options: WriteOptions | None = None,
    threads: int = 1,
) -> Path:
    target = FORMAT.open_target(source.schema, source.layout, options or WriteOptions())
    with target.open(path, threads) as sink:
        for batch in batches:
            sink.write(batch)
    return path


def write_table(path: Path, batches: Sequence[pa.RecordBatch], schema: pa.Schema, **options: Any) -> Path:
    with FORMAT.open_target(schema, None, WriteOptions(**options)).open(path, 1) as sink:
        for batch in batches:
            sink.write(batch)
    return path


def copy_through(
    path: Path, out: Path, *, datasets: tuple[str, ...] | None = None, block_bytes: int = 1 << 20
) -> Path:
    """Read a file and write all of its records, in order, to another."""
    source = open_source(path, datasets=datasets)
    return write_shard(source, out, read_all(source, block_bytes))


def create_raw(
    file: h5py.File, name: str, tid: h5t.TypeID, shape: tuple[int, ...], seed: int = 0, chunk_rows: int = 0
) -> bytes:
    """Create a dataset of random bytes, whatever its type makes of them, and return the bytes."""
    plist = h5p.create(h5p.DATASET_CREATE)
    space = h5s.create_simple(shape)
    if chunk_rows:
        plist.set_chunk((chunk_rows, *(max(1, width) for width in shape[1:])))
        most = (h5s.UNLIMITED, *(width or h5s.UNLIMITED for width in shape[1:]))
        space = h5s.create_simple(shape, most)
    raw = np.random.default_rng(seed).integers(0, 256, prod(shape) * tid.get_size(), np.uint8)
    dataset = h5d.create(file.id, name.encode(), tid, space, plist)
    if raw.size:
        dataset.write(h5s.ALL, h5s.ALL, raw, tid)
    return raw.tobytes()


def read_raw(dataset: h5py.Dataset) -> bytes:
    """Return the bytes of a whole dataset as HDF5 stores them."""
    tid = dataset.id.get_type()
    raw = np.zeros(prod(dataset.shape) * tid.get_size(), np.uint8)
    if raw.size:
        dataset.id.read(h5s.ALL, h5s.ALL, raw, tid)
    return raw.tobytes()


def read_values(dataset: h5py.Dataset) -> list[bytes]:
    """Return the bytes of each variable-length value of a dataset."""
    return [each if isinstance(each, bytes) else each.tobytes() for each in dataset[()].ravel()]
