"""One dataset of the record: its HDF5 type, its field in native batches, and its storage in a file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import pyarrow as pa
from h5py import h5d, h5p, h5s, h5t

from recshuf.formats.hdf5.file.types import Kind, describe_type, kind_of

if TYPE_CHECKING:
    from recshuf.formats.hdf5.file.index_nodes import IndexRoot

_CACHE_SLOTS = 521


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of the record, the same in all files of a run."""

    name: str
    """Path in the file, without the leading slash; the name of its native field."""
    kind: Kind
    type_code: bytes
    """The HDF5 type, encoded."""
    row_shape: tuple[int, ...]
    """Shape without the first axis."""
    row_bytes: int
    """Bytes of a row in the file, without variable-length values."""
    arrow_type: str | None = None
    """Arrow type recorded by a conversion to HDF5."""

    @property
    def tid(self) -> h5t.TypeID:
        """The HDF5 type, not tied to a file."""
        return h5t.decode(self.type_code)

    @property
    def native_width(self) -> int:
        """Bytes of a row in a native batch, at least 1 so that rows without bytes can be counted."""
        return max(self.row_bytes, 1)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a row that do not depend on its value: all of them, or the offset of a variable-length value."""
        return self.native_width if self.kind is Kind.FIXED else 8

    @property
    def field(self) -> pa.Field:
        """The native field, with type and row shape as informative metadata."""
        metadata = {"hdf5.type": self.describe(), "hdf5.row_shape": str(self.row_shape)}
        kind = pa.binary(self.native_width) if self.kind is Kind.FIXED else pa.large_binary()
        return pa.field(self.name, kind, nullable=False, metadata=metadata)

    def describe(self) -> str:
        """Return the name of the type for messages."""
        return describe_type(self.tid)

    def holds_same(self, other: Column) -> bool:
        """Tell whether the rows of both datasets are interchangeable."""
        return self.row_shape == other.row_shape and bool(self.tid.equal(other.tid))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a column in one file."""

    path: str
    """Path of the dataset without links."""
    row_count: int
    chunk_rows: int | None
    """Rows of a chunk; None without chunks."""
    chunk_bytes: int
    """Size of a chunk before compression; 0 without chunks."""
    stored_bytes: int
    """Size in the file, without the values of variable-length rows; uncompressed if there is an `index_root`."""
    begin: int | None
    """Place in the file where the rows begin, if that is known."""
    index_root: IndexRoot | None
    """The root of the index of chunks, if the index is read and checked with the rows."""


def read_column(dataset: h5d.DatasetID, name: str, arrow_type: str | None = None) -> Column:
    """Return the column of a dataset with a first axis."""
    tid = dataset.get_type().copy()
    row_shape = tuple(dataset.shape[1:])
    row_bytes = prod(row_shape) * tid.get_size()
    return Column(name, kind_of(tid), tid.encode(), row_shape, row_bytes, arrow_type)


def read_storage(dataset: h5d.DatasetID, path: str, index_root: IndexRoot | None = None) -> Storage:
    """Return the storage of a dataset with a first axis; reads its index of chunks, unless it is given its root."""
    chunk = find_chunk(dataset)
    item_bytes = dataset.get_type().get_size()
    chunk_bytes = prod(chunk) * item_bytes if chunk else 0
    chunk_rows = chunk[0] if chunk else None
    if index_root is None:
        begin, stored_bytes = dataset.get_offset(), dataset.get_storage_size()
    else:
        # A dataset gets its index just before its first chunk.
        begin, stored_bytes = index_root.place, prod(dataset.shape) * item_bytes
    return Storage(path, dataset.shape[0], chunk_rows, chunk_bytes, stored_bytes, begin, index_root)


def find_chunk(dataset: h5d.DatasetID) -> tuple[int, ...] | None:
    """Return the chunk shape of a dataset, or None if it has no chunks."""
    plist = dataset.get_create_plist()
    return tuple(plist.get_chunk()) if plist.get_layout() == h5d.CHUNKED else None


def access_plist(cache_bytes: int) -> h5p.PropDAID:
    """Return access properties with a chunk cache of so many bytes, which evicts fully used chunks first."""
    plist = h5p.create(h5p.DATASET_ACCESS)
    plist.set_chunk_cache(_CACHE_SLOTS, cache_bytes, 1.0)
    return plist


def select_rows(
    dataset: h5d.DatasetID, start: int, row_count: int, row_shape: tuple[int, ...]
) -> tuple[h5s.SpaceID, h5s.SpaceID]:
    """Return the dataspaces, in memory and in the file, of `row_count` rows from `start` on."""
    shape = (row_count, *row_shape)
    in_file = dataset.get_space()
    in_file.select_hyperslab((start, *(0 for _ in row_shape)), shape)
    return h5s.create_simple(shape), in_file
