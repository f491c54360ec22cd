"""Small valid files of every format, of several kinds each: what mutants are made from."""

import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.formats import sample_folders
from tests.support.golden_inputs import RICH, null_some

FORMATS = ("parquet", "hdf5", "jsonl", "csv", "text", "arrow", "npy", "npz", "tfrecord", "webdataset")
ROWS = 40


@dataclass(frozen=True)
class Seed:
    """One valid file."""

    name: str
    """File name, which tells the kind."""
    data: bytes
    edges: tuple[int, ...]
    """Places where a structure of the format begins or ends."""


@cache
def make_seeds(name: str) -> tuple[Seed, ...]:
    """Return the seed files of a format; the same ones in every call and every process."""
    makers = {"parquet": _parquet, "hdf5": _hdf5, "jsonl": _jsonl, "csv": _csv, "text": _text}
    return tuple(makers[name]() if name in makers else _samples(name))


def _parquet() -> Iterator[Seed]:
    for name, table, options in _parquet_kinds():
        stream = io.BytesIO()
        pq.write_table(table, stream, **options)
        data = stream.getvalue()
        yield Seed(f"{name}.parquet", data, _parquet_edges(data))


def _parquet_kinds() -> Iterator[tuple[str, pa.Table, dict[str, Any]]]:
    whole = pa.Table.from_pylist([null_some(row) for row in range(ROWS)], RICH)
    nested = whole.select(["id", *(field.name for field in RICH if field.type.num_fields)])
    flat = whole.drop_columns(nested.column_names[1:])
    checked = {"row_group_size": 15, "write_page_checksum": True}
    yield "flat-snappy", flat, {"compression": "snappy", **checked}
    yield "flat-plain-unchecked", flat, {"compression": "none", "use_dictionary": False}
    yield "flat-gzip-paged", flat, {"compression": "gzip", "data_page_size": 64, **checked}
    yield "nested-zstd-v2", nested, {"compression": "zstd", "data_page_version": "2.0", **checked}
    yield "nested-lz4-unchecked", nested, {"compression": "lz4", "row_group_size": 9}
    encodings = {"id": "DELTA_BINARY_PACKED", "name": "DELTA_BYTE_ARRAY", "double": "BYTE_STREAM_SPLIT"}
    yield "delta", flat, {"use_dictionary": False, "column_encoding": encodings, **checked}
    yield "int96", flat, {"use_deprecated_int96_timestamps": True}
    yield "indexed", flat, {"write_page_index": True, "store_schema": False, **checked}
    yield "empty", flat.slice(0, 0), {}


def _parquet_edges(data: bytes) -> tuple[int, ...]:
    metadata = pq.read_metadata(io.BytesIO(data))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    pages = {chunk.data_page_offset for chunk in chunks} | {
        chunk.dictionary_page_offset or 4 for chunk in chunks
    }
    return (4, *sorted(pages), footer, len(data) - 8, len(data) - 4)


_HDF5_SIGNATURES = re.compile(rb"TREE|SNOD|HEAP|OHDR|OCHK|FRHP|FHDB|FSHD|BTHD|BTLF|GCOL|EAHD|FAHD|FADB|OFDR")


def _hdf5() -> Iterator[Seed]:
    for libver in ("earliest", "latest"):
        for name, options in _hdf5_kinds():
            stream = io.BytesIO()
            with h5py.File(stream, "w", libver=libver) as file:
                _fill_hdf5(file, options)
            data = stream.getvalue()
            edges = tuple(match.start() for match in _HDF5_SIGNATURES.finditer(data))
            yield Seed(f"{name}-{libver}.h5", data, (8, *edges))


def _hdf5_kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "contiguous", {}
    yield "chunked", {"chunks": True}
    yield "gzip", {"chunks": True, "compression": "gzip", "shuffle": True}
    yield "checked", {"chunks": True, "fletcher32": True, "maxshape": True}
    yield "lzf", {"chunks": True, "compression": "lzf"}


def _fill_hdf5(file: h5py.File, options: dict[str, Any]) -> None:
    columns = {
        "images": np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3),
        "labels": np.arange(ROWS, dtype=">i2"),
        "group/pairs": np.array([(i, i / 2) for i in range(ROWS)], [("a", "i4"), ("b", "f8")]),
        "words": np.array([f"word {i}" for i in range(ROWS)], h5py.string_dtype()),
        "codes": np.array([f"c{i}" for i in range(ROWS)], "S4"),
    }
    for name, values in columns.items():
        own = dict(options)
        if own.get("chunks"):
            own["chunks"] = (16, *values.shape[1:])
        if own.get("maxshape"):
            own["maxshape"] = (None, *values.shape[1:])
        if values.dtype.kind == "O" and own.get("fletcher32"):
            del own["fletcher32"]
        file.create_dataset(name, data=values, **own)
        file[name].attrs["unit"] = "none"
    file.attrs["title"] = "for tests"


def _jsonl() -> Iterator[Seed]:
    objects = [
        {
            "id": i,
            "text": f"line {i} \u00e9\u2028",
            "tags": ["a", "b"][: i % 3],
            "meta": {"x": i / 3, "n": None},
        }
        for i in range(ROWS)
    ]
    plain = [json.dumps(one, ensure_ascii=i % 2 == 0).encode() for i, one in enumerate(objects)]
    yield from _line_kinds(plain, ".jsonl")


def _csv() -> Iterator[Seed]:
    texts = ["plain", '"two\nlines"', '"a ""word"", and more"', '""', "", '5" tall', '"crlf\r\n"']
    rows = [f"{i},{texts[i % 7]} é,{i / 3}".replace('" é', '"') for i in range(ROWS)]
    yield from _line_kinds([line.encode() for line in ["id,text,x", *rows]], ".csv")


def _text() -> Iterator[Seed]:
    lines = [b"line %d" % i + b"x" * (i % 13) for i in range(ROWS)]
    lines[3:7] = [b"", b"\r", b"\xff\x00", b"\xef\xbb\xbf"]
    yield from _line_kinds(lines, ".txt")


def _samples(name: str) -> Iterator[Seed]:
    for kind in (one for one in sample_folders.KINDS if one.startswith(name)):
        suffix, write, _ = sample_folders.KINDS[kind]
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{kind.replace(' ', '-')}{suffix}"
            write(path, 0, ROWS)
            data = path.read_bytes()
        yield Seed(path.name, data, tuple(range(0, len(data), 512)))


def _line_kinds(lines: list[bytes], suffix: str) -> Iterator[Seed]:
    whole = b"".join(line + b"\n" for line in lines)
    ends = tuple(accumulate(len(line) + 1 for line in lines))
    yield Seed(f"plain{suffix}", whole, ends)
    yield Seed(f"unended{suffix}", whole[:-1], ends)
    half = ends[len(ends) // 2]
    pieces = (whole[:half], whole[half:])
    yield _joined(f"one{suffix}.zst", [_zstd(whole, checksum=True)])
    skippable = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
    frames = [
        _zstd(pieces[0], checksum=True),
        skippable,
        _zstd(b"", checksum=True),
        _zstd(pieces[1], checksum=True),
    ]
    yield _joined(f"frames{suffix}.zst", frames)
    yield _joined(f"unchecked{suffix}.zst", [_zstd(piece, checksum=False) for piece in pieces])
    yield _joined(f"streamed{suffix}.zst", [_zstd_streamed(whole)])
    yield _joined(f"one{suffix}.gz", [gzip.compress(whole, mtime=0)])
    yield _joined(f"members{suffix}.gz", [gzip.compress(piece, mtime=0) for piece in pieces])
    yield _joined("bare-zstd", [_zstd(whole, checksum=True)])
    yield _joined("bare-gzip", [gzip.compress(whole, mtime=0)])


def _joined(name: str, parts: list[bytes]) -> Seed:
    ends = list(accumulate(len(part) for part in parts))
    near = [end + step for end in [0, *ends] for step in (-8, -4, 4, 5, 6, 8, 10)]
    data = b"".join(parts)
    return Seed(name, data, tuple(sorted({edge for edge in [*ends, *near] if 0 < edge < len(data)})))


def _zstd(data: bytes, *, checksum: bool) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=True).compress(data)


def _zstd_streamed(data: bytes) -> bytes:
    """Return a frame without content size, in several blocks."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    parts = [
        compressor.compress(data[at : at + 300]) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for at in range(0, len(data), 300)
    ]
    return b"".join([*parts, compressor.flush()])
