"""What an output file holds, as a hash that does not depend on the versions of libraries.

Lines
    The bytes after decompression: codecs of other versions compress otherwise and give the same bytes back.
Parquet
    Schema, metadata, codec of each column, rows of each row group, and the values as Python objects. Times, dates and
    half floats become integers and floats first: their Python objects vary with what else is installed.
HDF5
    Every group, dataset, link and attribute in order of names: type, shape, chunks, the numbers of the filters, fill
    value, and the raw bytes of the values.
The manifest
    Everything but the version of recshuf, sizes and checksums of files, which compression decides, and the types of fields,
    which are as pyarrow prints them.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - importing it registers its filters
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import recshuf
from tests.support.formats.format_tools import decompress_file

MANIFEST = ".out.recshuf.json"


def hash_bytes(path: Path) -> str:
    """Return a hash of a file's bytes; in the manifest, the version of recshuf does not count."""
    content = path.read_bytes()
    if path.name == MANIFEST:
        version = f'"recshuf": "{recshuf.__version__}"'.encode()
        assert content.count(version) == 1
        content = content.replace(version, b"")
    return hashlib.sha256(content).hexdigest()


def hash_contents(path: Path) -> str:
    """Return a hash of what a file holds, in order."""
    if path.name == MANIFEST:
        return hash_manifest(path)
    if path.suffix == ".parquet":
        return hash_lines(describe_parquet(path))
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return hash_lines(describe_group(file))
    return hashlib.sha256(decompress_file(path)).hexdigest()


def hash_lines(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def hash_manifest(path: Path) -> str:
    def keep(values: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value for key, value in values.items() if key not in ("recshuf", "bytes", "xxh3", "type")
        }

    manifest = json.loads(path.read_bytes(), object_hook=keep)
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()


def describe_parquet(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        table, footer = file.read(), file.metadata
    yield from map(describe_field, table.schema)
    yield describe_metadata(table.schema)
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        codecs = [group.column(column).compression for column in range(group.num_columns)]
        yield f"{group.num_rows} {codecs}"
    for column in table.columns:
        yield from map(repr, make_plain(column).to_pylist())


def describe_field(field: pa.Field) -> str:
    """Return a field with its children; how pyarrow prints nested types differs between versions."""
    kind, inner = field.type, []
    if pa.types.is_nested(kind):
        inner = [describe_field(kind.field(index)) for index in range(kind.num_fields)]
        kind = f"{type(kind).__name__} {getattr(kind, 'list_size', '')}"
    return f"{field.name!r} {kind} {field.nullable} {describe_metadata(field)} {inner}"


def describe_metadata(described: pa.Field | pa.Schema) -> str:
    return repr(sorted((described.metadata or {}).items()))


def make_plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are objects of Python's own types."""
    if pa.types.is_temporal(column.type):
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        return column.cast(width)
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column


def describe_group(group: h5py.Group) -> Iterator[str]:
    yield from describe_attributes(group)
    for name in sorted(group):
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink):
            yield f"{name} -> {link.path}"
        elif isinstance(group[name], h5py.Group):
            yield f"{name}/"
            yield from describe_group(group[name])
        else:
            yield name
            yield from describe_dataset(group[name])


def describe_dataset(dataset: h5py.Dataset) -> Iterator[str]:
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(index)[0] for index in range(plist.get_nfilters())]
    yield f"{dataset.shape} {dataset.maxshape} {dataset.chunks} {filters}"
    yield repr(np.asarray(dataset.fillvalue).tolist())
    yield from describe_values(dataset.dtype, dataset[()])
    yield from describe_attributes(dataset)


def describe_attributes(described: h5py.Group | h5py.Dataset) -> Iterator[str]:
    for name in sorted(described.attrs):
        value = described.attrs[name]
        yield f"@{name} {type(value).__name__}"
        yield from describe_values(described.attrs.get_id(name).dtype, value)


def describe_values(kind: np.dtype[Any], values: Any) -> Iterator[str]:
    """Yield the type of values, with what numpy does not know of it, and their bytes."""
    special = h5py.check_string_dtype(kind), h5py.check_vlen_dtype(kind), h5py.check_enum_dtype(kind)
    yield f"{kind} {special}"
    array = np.asarray(values)
    if array.dtype.hasobject:
        yield from (repr(np.asarray(each).tolist()) for each in array.ravel())
    else:
        yield array.tobytes().hex()
