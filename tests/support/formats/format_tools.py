"""Tools of the conformance suite: reading sources, cutting batches, looking around the code under test."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import pyarrow as pa
import zstandard

if TYPE_CHECKING:
    from recshuf.interfaces import InputFile, Source

MANY_BYTES = 1 << 20
LONGEST = 1 << 30


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def path_of(file: InputFile) -> Path:
    assert file.path is not None
    return file.path


def read_input(
    source: Source, index: int, block_bytes: int, *, max_record_bytes: int = LONGEST
) -> list[pa.RecordBatch]:
    """Return all batches of an input in order; the fragments are read after the iterator has ended."""
    fragments = list(source.fragments(index, block_bytes, max_record_bytes))
    return [batch for fragment in fragments for batch in fragment.batches()]


def place_batches(source: Source, block_bytes: int) -> list[tuple[pa.RecordBatch, int, int]]:
    """Return all batches of all inputs, each with its input and first row."""
    placed = []
    for index in range(len(source.inputs)):
        first_row = 0
        for batch in read_input(source, index, block_bytes):
            placed.append((batch, index, first_row))
            first_row += batch.num_rows
    return placed


def merge_batches(source: Source, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    merged = pa.Table.from_batches(batches, schema=source.schema).combine_chunks().to_batches()
    return merged[0] if merged else pa.RecordBatch.from_pylist([], schema=source.schema)


def cut_batch(batch: pa.RecordBatch, pieces: int, seed: int) -> list[pa.RecordBatch]:
    """Return the batch as that many slices, some of them perhaps empty."""
    inner = np.sort(
        np.random.default_rng(seed).integers(0, batch.num_rows, pieces - 1, endpoint=True)
    ).tolist()
    edges = [0, *inner, batch.num_rows]
    return [batch.slice(start, end - start) for start, end in itertools.pairwise(edges)]


def find_open_files(folder: Path) -> list[Path]:
    """Return the files under a folder that this process holds open."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(link.readlink())
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return [path for path in links if path.is_relative_to(folder)]


def decompress_file(path: Path) -> bytes:
    """Return the content of a plain or compressed file; raise if its end is missing."""
    kinds = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
    content = path.read_bytes()
    return decompress(content, kinds[path.suffix]) if path.suffix in kinds else content


def decompress(content: bytes, kind: str) -> bytes:
    """Decompress with the library of the compression alone; raise if the end is missing."""
    whole = {"gzip": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}
    whole |= {"zstd": _decompress_frames, "lz4": _decompress_lz4}
    return whole[kind](content)


def _decompress_lz4(content: bytes) -> bytes:
    with lz4.frame.open(io.BytesIO(content)) as stream:
        return stream.read()


def _decompress_frames(content: bytes) -> bytes:
    parts = []
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(content))
        assert frame.eof, "truncated frame"
        content = frame.unused_data
    return b"".join(parts)


class OneWayReader(io.RawIOBase):
    """Bytes as a pipe gives them: little at a time, no seeking, no file number."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), len(self._content), 997)
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count


class OneWayWriter(io.RawIOBase):
    """Collects what is written; cannot seek and has no file number."""

    def __init__(self) -> None:
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.content += bytes(data)
        return len(data)
