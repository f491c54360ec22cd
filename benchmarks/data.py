"""Test data of any size, the same bytes for the same seed: text, JSONL, Parquet and HDF5.

    python -m benchmarks.data lines140 2GB big.jsonl.zst
    python -m benchmarks.data parquet 2GB folder/ --codec zstd

All data is sorted by `id` and `label`, so that a missing shuffle can be seen. Records are made by the block, and
no more than a few blocks are in memory.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from benchmarks.option_types import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

LABELS = 1000
WORDS = 5000
POOL_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20
FILE_BYTES = 250_000_000
TEXT_KINDS = ("lines140", "documents", "lines20", "csv")
KINDS = (*TEXT_KINDS, "parquet", "hdf5")

MEAN_DOCUMENT_BYTES = 2000
DOCUMENT_SIGMA = 1.0
PARQUET_TEXT_BYTES = 200
PARQUET_GROUP_ROWS = 50_000
IMAGE_SHAPE = (48, 48)
IMAGE_BYTES = 4 * 48 * 48
CHUNK_ROWS = 64
BLOCK_CHUNKS = 16
GZIP_LEVEL = 4
ROW_BYTES = {
    "lines140": 140,
    "documents": MEAN_DOCUMENT_BYTES + 45,
    "lines20": 20,
    "csv": 230,
    "parquet": 250,
    "hdf5": IMAGE_BYTES + 8,
}
"""Bytes of a record, about."""
SUFFIXES = {
    "lines140": ".jsonl",
    "documents": ".jsonl",
    "lines20": ".txt",
    "csv": ".csv",
    "parquet": ".parquet",
    "hdf5": ".h5",
}
"""Of the files in a folder."""


def make_data(
    kind: str,
    size: int,
    out: Path,
    *,
    seed: int = 0,
    codec: str | None = None,
    file_bytes: int = FILE_BYTES,
    group_rows: int = PARQUET_GROUP_ROWS,
) -> list[Path]:
    """Write about `size` bytes of data (before compression) and return the files, in order.

    Parameters
    ----------
    kind
        One of `KINDS`.
    out
        A folder; for the text kinds a file if it has a suffix, compressed if that is ``.zst`` or ``.gz``.
    codec
        Parquet: ``snappy`` (default), ``zstd``, ``none``...; HDF5: ``gzip`` (level 4, default), ``lzf`` or ``none``.
    file_bytes
        Bytes of data in one file of a folder.
    group_rows
        Rows in a row group of Parquet.
    """
    rows = Rows(seed, count_rows(kind, size))
    if kind in TEXT_KINDS and out.suffix:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(kind, out, rows, 0, rows.row_count)
        return [out]
    out.mkdir(parents=True, exist_ok=True)
    file_rows = max(1, file_bytes // ROW_BYTES[kind])
    files = []
    for index, (first, count) in enumerate(cut_rows(rows.row_count, file_rows)):
        files.append(out / f"part-{index:05d}{SUFFIXES[kind]}")
        if kind == "parquet":
            write_parquet(files[-1], rows, first, count, codec, group_rows)
        elif kind == "hdf5":
            write_hdf5(files[-1], rows, first, count, codec)
        else:
            write_text(kind, files[-1], rows, first, count)
    return files


def count_rows(kind: str, size: int) -> int:
    """Return the number of records that `make_data` writes."""
    return max(1, size // ROW_BYTES[kind])


def cut_rows(row_count: int, part_rows: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each part."""
    for start in range(0, row_count, part_rows):
        yield first + start, min(part_rows, row_count - start)


class Rows:
    """Makes the columns of rows; what it makes depends on the seed and the first row alone.

    Parameters
    ----------
    seed
        Any integer from 0.
    row_count
        Rows of all the data together, over which the labels are spread.
    """

    def __init__(self, seed: int, row_count: int) -> None:
        self.row_count = row_count
        self._seed = seed
        self._labels = pa.array([f"label {label:04d}" for label in range(LABELS)])

    @cached_property
    def _words(self) -> pa.StringArray:
        return make_words(self._seed)

    @cached_property
    def _pool(self) -> pa.Buffer:
        return make_pool(self._seed, self._words)

    def rng(self, first: int) -> np.random.Generator:
        """Return the generator of the block that begins at row `first`."""
        return np.random.default_rng([self._seed, first])

    def label_numbers(self, first: int, count: int) -> NDArray[np.int64]:
        """Return sorted labels, shape ``(count,)``."""
        return np.arange(first, first + count) * LABELS // self.row_count

    def labels(self, first: int, count: int) -> pa.StringArray:
        """Return sorted labels as strings."""
        return self._labels.take(pa.array(self.label_numbers(first, count)))

    def texts(self, rng: np.random.Generator, lengths: NDArray[np.int64]) -> pa.LargeStringArray:
        """Return pieces of the pool of those lengths in bytes, from a random place on, without copying."""
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        if offsets[-1] >= POOL_BYTES:
            raise ValueError(f"a block of {offsets[-1]} bytes exceeds the pool")
        offsets += rng.integers(0, POOL_BYTES - offsets[-1])
        buffers = [None, pa.py_buffer(offsets), self._pool]
        return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)

    def tags(self, rng: np.random.Generator, count: int) -> pa.ListArray:
        """Return lists of 0 to 4 words."""
        offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 5, count)))).astype(np.int32)
        words = self._words.take(pa.array(rng.integers(0, len(self._words), offsets[-1])))
        return pa.ListArray.from_arrays(pa.array(offsets), words)


def make_words(seed: int) -> pa.StringArray:
    """Return the words of the language that all texts are in."""
    rng = np.random.default_rng([seed])
    letters = rng.integers(ord("a"), ord("z") + 1, (WORDS, 9), np.uint8)
    lengths = rng.integers(2, 10, WORDS).tolist()
    return pa.array([row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)])


def make_pool(seed: int, words: pa.StringArray) -> pa.Buffer:
    """Return `POOL_BYTES` or more of text, frequent words as frequent as in a language."""
    ranks = np.random.default_rng([seed]).random(POOL_BYTES // 3, np.float32)
    ranks *= np.float32(np.log(len(words)))
    np.exp(ranks, out=ranks)
    ranks -= 1
    spaced = pc.binary_join_element_wise(words, pa.scalar(""), pa.scalar(" "))
    text = spaced.take(pa.array(np.minimum(ranks.astype(np.int16), len(words) - 1))).buffers()[2]
    if text.size < POOL_BYTES:
        raise ValueError(f"the pool has only {text.size} bytes")
    return text


# Text


def write_text(kind: str, out: Path, rows: Rows, first: int, count: int) -> None:
    """Write one file of rows `first` to ``first + count`` of a text kind."""
    make_lines = LINE_MAKERS[kind]
    with open_text(out) as stream:
        for start, block_rows in cut_rows(count, BLOCK_BYTES // ROW_BYTES[kind], first):
            stream.write(join_lines(make_lines(rows, start, block_rows)))


@contextlib.contextmanager
def open_text(out: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, compressed as its suffix says, always in the same bytes."""
    with out.open("wb") as file:
        if out.suffix == ".zst":
            compressor = zstandard.ZstdCompressor(3, write_checksum=True, threads=2)
            with compressor.stream_writer(file, closefd=False) as stream:
                yield stream
        elif out.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, file, mtime=0) as stream:
                yield stream
        else:
            yield file


def join_lines(lines: pa.LargeStringArray) -> memoryview:
    """Return the bytes of all lines in a row."""
    _, offsets, values = lines.buffers()
    bounds = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(values)[bounds[0] : bounds[-1]]


def join_parts(*parts: str | pa.Array) -> pa.LargeStringArray:
    """Return the parts of each row joined; a string is the same in every row."""
    kind = pa.large_string()
    typed = [pa.scalar(part, kind) if isinstance(part, str) else part.cast(kind) for part in parts]
    return pc.binary_join_element_wise(*typed, pa.scalar("", kind))


def make_objects(rows: Rows, first: int, texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return JSON objects of id, label and text."""
    ids = pa.array(np.arange(first, first + len(texts)))
    labels = rows.labels(first, len(texts))
    return join_parts('{"id": ', ids, ', "label": "', labels, '", "text": "', texts, '"}\n')


def make_short_objects(rows: Rows, first: int, count: int) -> pa.LargeStringArray:
    """Return objects of about 140 bytes."""
    rng = rows.rng(first)
    return make_objects(rows, first, rows.texts(rng, rng.integers(60, 130, count)))


def make_documents(rows: Rows, first: int, count: int) -> pa.LargeStringArray:
    """Return objects with a text of about 2 kB, log-normal."""
    rng = rows.rng(first)
    mean = np.log(MEAN_DOCUMENT_BYTES) - DOCUMENT_SIGMA**2 / 2
    lengths = np.clip(rng.lognormal(mean, DOCUMENT_SIGMA, count), 1, 100_000).astype(np.int64)
    return make_objects(rows, first, rows.texts(rng, lengths))


def make_short_lines(rows: Rows, first: int, count: int) -> pa.LargeStringArray:
    """Return lines of about 20 bytes: a number and a text."""
    rng = rows.rng(first)
    return join_parts(
        pa.array(np.arange(first, first + count)), " ", rows.texts(rng, rng.integers(5, 18, count)), "\n"
    )


def make_records(rows: Rows, first: int, count: int) -> pa.LargeStringArray:
    """Return records of CSV with the columns of Parquet but the tags; the first one has the header above it."""
    table = make_table(rows, first, count)
    above = pa.array(["id,label,value,text\n" if first == 0 else "", *[""] * (count - 1)], pa.large_string())
    ids, labels, values, texts = (table[name].combine_chunks() for name in ("id", "label", "value", "text"))
    return join_parts(above, ids, ',"', labels, '",', values, ',"', texts, '"\n')


LINE_MAKERS = {
    "lines140": make_short_objects,
    "documents": make_documents,
    "lines20": make_short_lines,
    "csv": make_records,
}

# Parquet


def write_parquet(path: Path, rows: Rows, first: int, count: int, codec: str | None, group_rows: int) -> None:
    """Write one Parquet file of rows `first` to ``first + count``."""
    schema = make_table(rows, first, 1).schema
    with pq.ParquetWriter(path, schema, compression=codec or "snappy") as writer:
        for start, rows_of_group in cut_rows(count, group_rows, first):
            blocks = cut_rows(rows_of_group, PARQUET_GROUP_ROWS, start)
            group = pa.concat_tables(make_table(rows, place, block_rows) for place, block_rows in blocks)
            writer.write_table(group, row_group_size=rows_of_group)


def make_table(rows: Rows, first: int, count: int) -> pa.Table:
    """Return rows as a table: id, label, value, text, tags."""
    rng = rows.rng(first)
    return pa.table(
        {
            "id": pa.array(np.arange(first, first + count)),
            "label": rows.labels(first, count),
            "value": pa.array(rng.random(count)),
            "text": rows.texts(rng, rng.integers(100, 2 * PARQUET_TEXT_BYTES - 100, count)).cast(pa.string()),
            "tags": rows.tags(rng, count),
        }
    )


# HDF5


def write_hdf5(path: Path, rows: Rows, first: int, count: int, codec: str | None) -> None:
    """Write one HDF5 file of rows `first` to ``first + count``."""
    codec = codec or "gzip"
    filters: dict[str, dict[str, Any]] = {
        "gzip": {"compression": GZIP_LEVEL},
        "lzf": {"compression": "lzf"},
        "none": {},
    }
    storage = filters[codec]
    with h5py.File(path, "w") as file, ThreadPoolExecutor() as pool:
        shape = (count, *IMAGE_SHAPE)
        chunks = (min(CHUNK_ROWS, count), *IMAGE_SHAPE)
        images = file.create_dataset("images", shape, np.float32, chunks=chunks, **storage)
        file.create_dataset("labels", data=rows.label_numbers(first, count))
        for start, block_rows in cut_rows(count, BLOCK_CHUNKS * CHUNK_ROWS, first):
            block = make_images(rows, start, block_rows)
            if codec == "gzip":
                store_deflated(images, start - first, block, pool)
            else:
                images[start - first : start - first + block_rows] = block


def make_images(rows: Rows, first: int, count: int) -> NDArray[np.float32]:
    """Return rows of `IMAGE_SHAPE` that deflate to about half: 16 random bits in 32."""
    values = rows.rng(first).integers(0, 1 << 16, (count, *IMAGE_SHAPE), np.uint16).astype(np.float32)
    values /= np.float32(1 << 16)
    return values


def store_deflated(
    images: h5py.Dataset, first_row: int, block: NDArray[np.float32], pool: ThreadPoolExecutor
) -> None:
    """Write a block that begins at a chunk's edge; many threads deflate, which h5py itself does in one."""
    chunk_rows = images.chunks[0]
    starts = range(0, len(block), chunk_rows)
    deflated = pool.map(lambda start: deflate_chunk(block[start : start + chunk_rows], chunk_rows), starts)
    for start, content in zip(starts, deflated, strict=True):
        images.id.write_direct_chunk((first_row + start, 0, 0), content)


def deflate_chunk(values: NDArray[np.float32], chunk_rows: int) -> bytes:
    """Return a chunk as HDF5's gzip filter stores it, the last one filled up with zeros."""
    missing = chunk_rows - len(values)
    padded = np.pad(values, ((0, missing), (0, 0), (0, 0))) if missing else values
    return zlib.compress(padded, GZIP_LEVEL)


@click.command(help=__doc__.partition("\n")[0])
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("size", type=SIZE)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True)
@click.option("--codec", help="Parquet: snappy (default), zstd, none; HDF5: gzip (default), lzf, none.")
@click.option("--file-bytes", type=SIZE, default=str(FILE_BYTES), help="Bytes of data in a file of a folder.")
@click.option("--group-rows", default=PARQUET_GROUP_ROWS, help="Rows in a row group of Parquet.")
def main(
    kind: str, size: int, out: Path, seed: int, codec: str | None, file_bytes: int, group_rows: int
) -> None:
    """Write test data."""
    limits = {"file_bytes": file_bytes, "group_rows": group_rows}
    for path in make_data(kind, size, out, seed=seed, codec=codec, **limits):
        click.echo(path)


if __name__ == "__main__":
    main()
