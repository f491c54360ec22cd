"""One dataset of the record: its type in HDF5, its field in native batches, and where a file keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import pyarrow as pa
from h5py import h5d, h5p, h5s, h5t

from recshuf.formats.hdf5.file.types import Kind, describe_type, kind_of

_CACHE_SLOTS = 521


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of the record, as all files of a run have it."""

    name: str
    """Path in the file, without the leading slash; the name of its native field."""
    kind: Kind
    type_code: bytes
    """The HDF5 type, encoded."""
    row_shape: tuple[int, ...]
    """Shape without the first axis."""
    row_bytes: int
    """Bytes of a row in the file; the values of a variable-length row come on top."""
    arrow_type: str | None = None
    """Arrow type that a conversion to HDF5 noted down."""

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
        """Bytes of a row that do not depend on its value: all of it, or the offset of a variable-length value."""
        return self.native_width if self.kind is Kind.FIXED else 8

    @property
    def field(self) -> pa.Field:
        """The native field, with type and row shape as metadata for the reader's eye."""
        metadata = {"hdf5.type": self.describe(), "hdf5.row_shape": str(self.row_shape)}
        kind = pa.binary(self.native_width) if self.kind is Kind.FIXED else pa.large_binary()
        return pa.field(self.name, kind, nullable=False, metadata=metadata)

    def describe(self) -> str:
        """Return what to call the type in a message."""
        return describe_type(self.tid)

    def holds_same(self, other: Column) -> bool:
        """Tell whether rows of both are interchangeable."""
        return self.row_shape == other.row_shape and bool(self.tid.equal(other.tid))


@dataclass(frozen=True, slots=True)
class Storage:
    """Where and how one file keeps a column."""

    path: str
    """Where the dataset is found without following a link."""
    row_count: int
    chunk_rows: int | None
    """Rows of a chunk; None where there are no chunks."""
    chunk_bytes: int
    """Size of a chunk before compression; 0 where there are no chunks."""
    stored_bytes: int
    """Size in the file, without the values of variable-length rows."""


def read_column(dataset: h5d.DatasetID, name: str, arrow_type: str | None = None) -> Column:
    """Return the column that a dataset with a first axis makes."""
    tid = dataset.get_type().copy()
    row_shape = tuple(dataset.shape[1:])
    row_bytes = prod(row_shape) * tid.get_size()
    return Column(name, kind_of(tid), tid.encode(), row_shape, row_bytes, arrow_type)


def read_storage(dataset: h5d.DatasetID, path: str) -> Storage:
    """Return how a dataset with a first axis is kept."""
    chunk = find_chunk(dataset)
    chunk_bytes = prod(chunk) * dataset.get_type().get_size() if chunk else 0
    chunk_rows = chunk[0] if chunk else None
    return Storage(path, dataset.shape[0], chunk_rows, chunk_bytes, dataset.get_storage_size())


def find_chunk(dataset: h5d.DatasetID) -> tuple[int, ...] | None:
    """Return the chunk shape of a dataset, or None if it has no chunks."""
    plist = dataset.get_create_plist()
    return tuple(plist.get_chunk()) if plist.get_layout() == h5d.CHUNKED else None


def access_plist(cache_bytes: int) -> h5p.PropDAID:
    """Return how to open a dataset so that HDF5 keeps that many bytes of its chunks, full ones leaving first."""
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
