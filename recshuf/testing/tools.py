"""Tools of the conformance suite: reading sources, cutting batches, looking around the code under test."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.formats.compression import split_suffix
from recshuf.interfaces import InputFile, Stamp
from recshuf.storage.reading.local import LocalFile

if TYPE_CHECKING:
    from recshuf.interfaces import Source

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


def find_open_files(folder: Path, process: int | str = "self") -> list[Path]:
    """Return the files under a folder that a process, by default this one, holds open."""
    links = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            links.append(link.readlink())
        except FileNotFoundError:  # closed meanwhile, as is the descriptor of this very listing
            continue
    return [path for path in links if path.is_relative_to(folder)]


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


def make_object(path: Path) -> InputFile:
    """Return a file as the object of a bucket, which has no path."""
    name, stamp = f"s3://bucket/{path.name}", Stamp.of(path.stat())
    return InputFile(name, None, stamp=stamp, suffix=split_suffix(path.name), opener=LocalFile(name, path))
