"""Tools of the HDF5 tests: raw bytes in and out of datasets, around the code under test."""

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5g, h5p, h5s, h5t

from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile, Source, WriteOptions
from tests.support.formats.format_tools import reading

LONGEST = 1 << 30


def given(path: Path) -> InputFile:
    return InputFile(name=str(path), path=path)


def store(path: Path, datasets: Mapping[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


def open_source(*paths: Path, datasets: tuple[str, ...] | None = None) -> Source:
    return FORMAT.open_source([given(path) for path in paths], reading(datasets=datasets))


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


def patch(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


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


def read_column(path: Path, block_bytes: int = 1 << 20) -> bytes:
    """Return the bytes of the first dataset of the record, as recshuf reads them."""
    batches = read_all(open_source(path), block_bytes)
    return b"".join(value for batch in batches for value in batch.column(0).to_pylist())


def read_grown(path: Path) -> dict[str, bytes]:
    """Return the bytes of datasets after they have grown in all directions: what chunks hold beyond their edges."""
    with h5py.File(path, "a") as file:
        for each in file.values():
            each.resize([width + 5 for width in each.shape])
        return {name: read_raw(each) for name, each in file.items()}


def outline(path: Path, *records: str) -> dict[str, Any]:
    """Return all that a file holds, by path and in order, but for the rows of datasets of the record.

    Objects of several paths are told once; named types, and datasets that are scales, by their paths.
    """
    with h5py.File(path) as file:
        paths: dict[int, str] = {_place_of(file.id): "/"}
        links: dict[str, Any] = {}
        _walk(file, "", paths, links)
        return {name: _describe(found, paths, name in records) for name, found in {"": file, **links}.items()}


def _place_of(found: Any) -> int:
    low, high = h5g.get_objinfo(found, b".").objno
    return low | high << 32


def _walk(group: h5py.Group, prefix: str, paths: dict[int, str], links: dict[str, Any]) -> None:
    for name in group:
        link, path = group.get(name, getlink=True), prefix + name
        links[path] = f"{type(link).__name__} {getattr(link, 'path', '')}"
        if isinstance(link, h5py.HardLink):
            place = _place_of(group[name].id)
            links[path] = f"also {paths[place]}" if place in paths else group[name]
            if paths.setdefault(place, path) == path and isinstance(group[name], h5py.Group):
                _walk(group[name], path + "/", paths, links)


def _describe(found: Any, paths: dict[int, str], is_record: bool) -> Any:
    if isinstance(found, str):
        return found
    attributes = [(key, _describe_attribute(found, key, paths)) for key in found.attrs]
    if isinstance(found, h5py.Group):
        return "group", found.id.get_create_plist().get_link_creation_order(), attributes
    if isinstance(found, h5py.Datatype):
        return "type", found.id.encode(), attributes
    scales = (
        [[paths[_place_of(scale.id)] for scale in axis.values()] for axis in found.dims]
        if found.shape
        else []
    )
    plist = found.id.get_create_plist()
    storage = plist.get_layout(), found.chunks, found.maxshape, list_filters(found), found.fillvalue
    kept = storage[3] if is_record else (found.shape, storage, _list_values(found[()]))
    return "dataset", _describe_type(found.id.get_type(), paths), scales, attributes, repr(kept)


def _describe_attribute(found: Any, key: str, paths: dict[int, str]) -> Any:
    if key in ("DIMENSION_LIST", "REFERENCE_LIST", "shape"):
        return None  # references, told as scales; and what counts the rows of a sparse matrix
    return _describe_type(found.attrs.get_id(key).get_type(), paths), repr(_list_values(found.attrs[key]))


def _describe_type(tid: h5t.TypeID, paths: dict[int, str]) -> Any:
    return paths[_place_of(tid)] if tid.committed() else tid.encode()


def _list_values(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    return values.tolist() if values.dtype.hasobject else hashlib.sha256(values.tobytes()).hexdigest()


def list_filters(dataset: h5py.Dataset) -> list[Any]:
    """Return code, flags, parameters and name of each filter."""
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(index) for index in range(plist.get_nfilters())]
