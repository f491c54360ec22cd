"""Independent readers: what records a file holds, by the libraries of each format alone and without recshuf.

They are slow and obvious. A damaged file may well crash the library: call them in a child.
"""

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from recshuf.output.manifest import manifest_path
from tests.formats.tfrecord.test_suite import parse
from tests.formats.webdataset.test_suite import read_tar

Records = Counter[bytes]
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def read_records(name: str, path: Path) -> Records:
    """Return the multiset of records of one file; raise whatever the library raises."""
    readers = {
        "parquet": _read_parquet,
        "hdf5": _read_hdf5,
        "jsonl": _read_lines,
        "csv": _read_csv,
        "text": _read_lines,
        "arrow": _read_arrow,
        "npy": lambda path: _rows({"": np.load(path)}),
        "npz": _read_npz,
        "tfrecord": lambda path: parse(path.read_bytes()),
        "webdataset": read_tar,
    }
    return Counter(repr(record).encode() for record in readers[name](path))


def compare(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Return how the records of the outputs differ from those of the inputs; nothing if they do not."""
    sides = []
    for side, paths in (("input", inputs), ("output", outputs)):
        try:
            sides.append(sum((read_records(name, Path(path)) for path in paths), Counter()))
        except Exception as error:
            return f"the independent reader fails on the {side}: {type(error).__name__}: {str(error)[:200]}"
    missing, extra = sides[0] - sides[1], sides[1] - sides[0]
    if not missing and not extra:
        return ""
    samples = [repr(next(iter(one)))[:150] for one in (missing, extra) if one]
    return f"{missing.total()} records are missing, {extra.total()} extra: {' / '.join(samples)}"


def count(name: str, inputs: Sequence[str], outputs: Sequence[str], to: str) -> str:
    """Return how the number of records of the outputs, of format `to`, differs from that of the inputs."""
    try:
        numbers = [
            sum(read_records(kind, Path(path)).total() for path in paths)
            for kind, paths in ((name, inputs), (to, outputs))
        ]
    except Exception as error:
        return f"the independent reader fails: {type(error).__name__}: {str(error)[:200]}"
    return "" if numbers[0] == numbers[1] else f"{numbers[0]} records became {numbers[1]}"


def _read_lines(path: Path) -> list[bytes]:
    *lines, rest = _decompress(path).split(b"\n")
    return [*lines, rest] if rest else lines


def _read_csv(path: Path) -> list[bytes]:
    """Return the records of CSV with commas, double quotes and a header, byte after byte."""
    data = _decompress(path).removeprefix(b"\xef\xbb\xbf")
    place, begin, records = "start", 0, []
    for position, byte in enumerate(data):
        if place == "quoted":
            place = "closed" if byte == ord('"') else "quoted"
        elif byte == ord('"'):
            place = "quoted" if place in ("start", "closed") else "plain"
        else:
            place = "start" if byte in b",\r\n" else "plain"
        if place == "start" and byte == ord("\n"):
            records.append(data[begin:position])
            begin = position + 1
    if place == "quoted":
        raise ValueError("a quoted field is not closed")
    return [*records, data[begin:]][1:] if data[begin:] else records[1:]


def _decompress(path: Path) -> bytes:
    data = path.read_bytes()
    suffix = path.suffix if path.suffix in (".zst", ".gz", ".txt", ".jsonl", ".csv") else None
    is_skippable = data[1:4] == b"\x2a\x4d\x18" and data[:1] and data[0] >> 4 == 5
    if suffix == ".gz" or (suffix is None and data[:3] == b"\x1f\x8b\x08"):
        return gzip.decompress(data)
    if suffix == ".zst" or (suffix is None and (data[:4] == _ZSTD_MAGIC or is_skippable)):
        return _decompress_frames(data)
    return data


def _decompress_frames(data: bytes) -> bytes:
    parts = []
    while data:
        if data[0] >> 4 == 5 and data[1:4] == b"\x2a\x4d\x18":
            size = 8 + int.from_bytes(data[4:8], "little")
            if len(data) < max(8, size):
                raise ValueError("truncated skippable frame")
            data = data[size:]
            continue
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(data))
        if not frame.eof:
            raise ValueError("truncated frame")
        data = frame.unused_data
    return b"".join(parts)


def _read_parquet(path: Path) -> list[Any]:
    return _read_table(pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False))


def _read_arrow(path: Path) -> list[Any]:
    data = pa.py_buffer(path.read_bytes())
    open_any = pa.ipc.open_file if data[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
    return _read_table(open_any(data).read_all())


def _read_table(table: pa.Table) -> list[Any]:
    columns = [list(chain.from_iterable(map(_values, column.chunks))) for column in table.columns]
    # A column that some files lack is null there; and the order of columns may follow another file.
    return [
        sorted(
            (name, value) for name, value in zip(table.column_names, row, strict=True) if value is not None
        )
        for row in (zip(*columns, strict=True) if columns else ())
    ]


def _values(array: pa.Array) -> list[Any]:
    """Return comparable Python values: floats and times as their bits, text as bytes."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        rows = zip(*map(_values, array.flatten()), strict=True) if kind.num_fields else [()] * len(array)
        return [row if ok else None for ok, row in zip(array.is_valid().to_pylist(), rows, strict=True)]
    if pa.types.is_fixed_size_list(kind):
        step, values = kind.list_size, _values(array.values)
        begins = [(array.offset + i) * step for i in range(len(array))]
        rows = [values[begin : begin + step] for begin in begins]
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _values(
            pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
            if pa.types.is_map(kind)
            else array.values
        )
        rows = [values[begin:end] for begin, end in pairwise(array.offsets.to_pylist())]
    else:
        return _plain_values(array)
    return [row if ok else None for ok, row in zip(array.is_valid().to_pylist(), rows, strict=True)]


def _plain_values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).to_pylist()
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return array.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]).to_pylist()
    return array.to_pylist()


def _read_hdf5(path: Path) -> list[Any]:
    with h5py.File(path, "r") as file:
        return _rows(dict(_hdf5_columns(file)))


def _read_npz(path: Path) -> list[Any]:
    with np.load(io.BytesIO(path.read_bytes())) as archive:
        return _rows(dict(archive))


def _rows(columns: dict[str, np.ndarray]) -> list[Any]:
    names = sorted(columns)
    lengths = {len(columns[name]) for name in names}
    if len(lengths) > 1:
        raise ValueError("lengths differ")
    return [[(name, _row(columns[name][i])) for name in names] for i in range(next(iter(lengths), 0))]


def _hdf5_columns(group: h5py.Group) -> Iterator[tuple[str, np.ndarray]]:
    # Name by name: `visititems` also reads what belongs to no dataset, and fails where that is damaged.
    for name, one in group.items():
        if isinstance(one, h5py.Dataset):
            yield f"{group.name}/{name}".lstrip("/"), one[...]
        else:
            yield from _hdf5_columns(one)


def _row(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(np.asarray(value).tobytes())


def check_manifest(folder: str) -> str:
    """Return how the manifest of a folder of shards differs from the files there; nothing if it fits."""
    content = json.loads(manifest_path(Path(folder)).read_bytes())
    named = sorted(shard["name"] for shard in content["shards"])
    there = sorted(path.name for path in Path(folder).iterdir())
    return "" if named == there else f"the manifest names {named}, there are {there}"
