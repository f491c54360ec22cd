"""Tools for tests of formats: those of `recshuf.testing`, and decompression around the code under test."""

import bz2
import gzip
import io
import lzma
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import lz4.frame
import pyarrow as pa
import zstandard

from recshuf.interfaces import ReadOptions, Source, WriteOptions
from recshuf.testing.runs import LONGEST as LONGEST
from recshuf.testing.runs import OneWayReader as OneWayReader
from recshuf.testing.runs import OneWayWriter as OneWayWriter
from recshuf.testing.runs import cut_batch as cut_batch
from recshuf.testing.runs import find_open_files as find_open_files
from recshuf.testing.runs import place_batches as place_batches
from recshuf.testing.runs import read_input as read_input


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


def decode_all(source: Source, block_bytes: int = 1 << 20) -> pa.Table:
    """Return the table form of all records, observed from the last batch to the first."""
    decoder, placed = source.decoder(), place_batches(source, block_bytes)
    for one in reversed(placed):
        decoder.observe(*one)
    schema = decoder.finish()
    return pa.Table.from_batches([decoder.decode(batch) for batch, _, _ in placed], schema)


# Options for a format's `open_source` and `open_target`, as a run makes them of what is given

_Options = TypeVar("_Options", ReadOptions, WriteOptions)


def _make(kind: type[_Options], options: dict[str, Any]) -> _Options:
    shared = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
    own = tuple((name, value) for name, value in options.items() if value is not None)
    return kind(**{"own": own} | shared)


def reading(**options: Any) -> ReadOptions:
    """Return options for inputs, those of formats by their names."""
    return _make(ReadOptions, options)


def writing(**options: Any) -> WriteOptions:
    """Return options for shards."""
    return _make(WriteOptions, options)


def reading_csv(**options: Any) -> ReadOptions:
    """Return options for CSV of which nothing but the delimiter is to be found: it has no header, and double quotes."""
    return reading(**{"header": 0, "quote": b'"'} | options)
