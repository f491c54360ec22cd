"""HDF5 shards of a conversion: their image from a schema, and the conversion of records to native batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from h5py import h5d, h5p, h5s

from recshuf.errors import ConversionError
from recshuf.formats.hdf5.filters.names import set_compression
from recshuf.formats.hdf5.tables.arrow_types import ARROW_TYPE_ATTRIBUTE
from recshuf.formats.hdf5.tables.encoder import LeafEncoder, find_encoders, flatten_structs
from recshuf.formats.hdf5.writing.template import CHUNK_BYTES, Layout, link_plist, new_image

if TYPE_CHECKING:
    import h5py

    from recshuf.interfaces import WriteOptions

_MOST_CHUNKS_BYTES = 8 << 20
_VARIABLE_BYTES = 64
"""Assumed bytes of a variable-length value."""
_DEFAULT_COMPRESSION = "gzip"


class TableEncoder:
    """Turns batches of a schema into native batches.

    Raises
    ------
    ConversionError
        When there are no fields, or HDF5 cannot hold one.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.leaves = find_encoders(schema)
        if not self.leaves:
            remedy = "choose another format, or name the fields with --schema"
            raise ConversionError("", "records without a single field have no place in HDF5", remedy=remedy)
        self._names = schema.names

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same records as a native batch.

        Raises
        ------
        ConversionError
            When a value is null or cannot be represented.
        """
        arrays = flatten_structs(batch.columns, self._names)
        rows = [leaf.encode(array) for leaf, array in zip(self.leaves, arrays, strict=True)]
        return pa.RecordBatch.from_arrays(rows, names=["/".join(leaf.path) for leaf in self.leaves])


def make_layout(leaves: list[LeafEncoder], options: WriteOptions) -> Layout:
    """Return the layout of shards with one dataset per encoder, chunked and by default compressed."""
    chunk_rows = _find_chunk_rows(leaves)
    with new_image() as (file, result):
        for leaf in leaves:
            _create_dataset(file, leaf, chunk_rows, options)
    return Layout(result[0], tuple("/".join(leaf.path) for leaf in leaves))


def _find_chunk_rows(leaves: list[LeafEncoder]) -> int:
    """Return the same rows for all chunks, so that every step ends with whole chunks."""
    sizes = [_VARIABLE_BYTES if leaf.is_variable else max(1, leaf.row_bytes) for leaf in leaves] or [1]
    return max(1, min(CHUNK_BYTES // max(sizes), _MOST_CHUNKS_BYTES // sum(sizes)))


def _create_dataset(file: h5py.File, leaf: LeafEncoder, chunk_rows: int, options: WriteOptions) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((chunk_rows, *(max(1, width) for width in leaf.row_shape)))
    plist.set_obj_track_times(False)
    if not leaf.is_variable:
        plist.set_shuffle()
        set_compression(plist, options.compression or _DEFAULT_COMPRESSION, options.compression_level)
    most = (h5s.UNLIMITED, *(width or h5s.UNLIMITED for width in leaf.row_shape))
    space = h5s.create_simple((0, *leaf.row_shape), most)
    path = "/".join(leaf.path)
    h5d.create(file.id, path.encode(), leaf.tid, space, plist, link_plist())
    if leaf.noted_type is not None:
        file[path].attrs[ARROW_TYPE_ATTRIBUTE] = leaf.noted_type
