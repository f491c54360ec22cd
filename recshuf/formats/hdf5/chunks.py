"""Reads chunks without HDF5's own filters, in many threads, and checks references to values before HDF5 follows them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5s
from h5py._objects import phil

from recshuf.errors import InputError
from recshuf.formats.hdf5.heap import SMALL_FILE_BYTES, HeapValues, check_heaps
from recshuf.formats.hdf5.opening import content_of
from recshuf.formats.hdf5.pipeline import Pipeline, find_pipeline
from recshuf.formats.hdf5.types import (
    Column,
    Kind,
    find_chunk,
    find_file_bytes,
    kind_of,
    list_references,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.interfaces import Stamp

    _Offset = tuple[int, ...]

_REFERENCE_BYTES = 16
"""Bytes of a reference: a length of 4, an address of 8, and an index of 4."""
_ADDRESS_BYTES = 8
_STEP_ROWS = 1 << 16
_HEAP_EXTRA_BYTES = 1 << 20
"""Most bytes of a heap beyond its largest value."""


class ChunkReader:
    """Reads rows of a chunked dataset, undoing its filters without HDF5. References that cannot be read are zeros.

    Parameters
    ----------
    keeps
        Whether the last chunk stays in memory for the next read.
    """

    def __init__(self, dataset: h5d.DatasetID, pipeline: Pipeline, *, keeps: bool) -> None:
        self._dataset = dataset
        self._pipeline = pipeline
        self._keeps = keeps
        self._kept: tuple[_Offset, NDArray[np.uint8]] | None = None
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk = pipeline.chunk
        self._item_bytes = pipeline.item_bytes

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of rows ``start:stop``."""
        rows = np.empty((stop - start, *self._shape[1:], self._item_bytes), np.uint8)
        for offset in self._list_offsets(start, stop):
            low = (max(offset[0], start), *offset[1:])
            ends = map(min, map(int.__add__, offset, self._chunk), (stop, *self._shape[1:]))
            self._fill(rows[low[0] - start :], offset, low, tuple(ends))
        return rows.reshape(-1)

    def _list_offsets(self, start: int, stop: int) -> Iterator[_Offset]:
        """Yield the offset of each chunk that has some of these rows."""
        first = start - start % self._chunk[0]
        others = (range(0, width, step) for width, step in zip(self._shape[1:], self._chunk[1:], strict=True))
        return product(range(first, stop, self._chunk[0]), *others)

    def _fill(self, rows: NDArray[np.uint8], offset: _Offset, low: _Offset, high: _Offset) -> None:
        """Copy the elements from `low` up to `high` of a chunk; `rows` begin at the row of `low`."""
        counts = tuple(high[axis] - low[axis] for axis in range(len(low)))
        target = rows[(slice(counts[0]), *map(slice, low[1:], high[1:]))]
        chunk = self._load(offset)
        if chunk is None:
            target[...] = self._read_plainly(low, counts).reshape(target.shape)
            return
        taken = chunk[
            tuple(slice(low[axis] - offset[axis], high[axis] - offset[axis]) for axis in range(len(low)))
        ]
        if taken.strides[-1] == 1:
            target[...] = taken
            return
        for index in range(self._item_bytes):  # shuffled: a plane of first bytes, one of second bytes...
            target[..., index] = taken[..., index]

    def _load(self, offset: _Offset) -> NDArray[np.uint8] | None:
        """Return a chunk, its bytes on the last axis; None if only HDF5 can read it."""
        kept = self._kept
        if kept is not None and kept[0] == offset:
            return kept[1]
        try:
            with phil:  # h5py before 3.16 does not accept it here
                mask, stored = self._dataset.read_direct_chunk(offset)
        # Never written, so all fill value, or out of range. Without a single chunk, the error is one of memory.
        except (RuntimeError, OSError, ValueError, MemoryError):
            return None
        chunk = self._pipeline.decode(stored, mask)
        if self._keeps and chunk is not None:
            self._kept = (offset, chunk)
        return chunk

    def _read_plainly(self, low: _Offset, counts: _Offset) -> NDArray[np.uint8]:
        in_file = self._dataset.get_space()
        in_file.select_hyperslab(low, counts)
        raw = np.zeros(prod(counts) * self._item_bytes, np.uint8)
        if kind_of(self._dataset.get_type()) is Kind.FIXED:
            self._dataset.read(h5s.create_simple(counts), in_file, raw, self._dataset.get_type())
        return raw


class SizeLimit(NamedTuple):
    """The longest record or variable-length value that is accepted."""

    max_bytes: int
    option: str
    """The command line option that raises the limit."""


class ValueGuard:
    """Checks the variable-length values of a dataset.

    References that cannot be read are not checked: in datasets with filters other than HDF5's own, in dataset headers, and
    in files with unusual address sizes.
    """

    def __init__(
        self, file: h5py.File, dataset: h5d.DatasetID, column: Column, name: str, stamp: Stamp
    ) -> None:
        self._content = content_of(file)
        self._base = int(file.userblock_size)
        self._name = name
        self._label = column.name
        self._file_bytes = stamp.size
        self._references = list_references(column.tid)
        self._row_bytes = find_file_bytes(column.tid)
        self._checked = 0
        self._chunks: ChunkReader | None = None
        self._offset: int | None = None
        if file.id.get_create_plist().get_sizes()[0] != _ADDRESS_BYTES:
            return
        if find_chunk(dataset) is None:
            self._offset = dataset.get_offset()
        elif pipeline := find_pipeline(dataset, self._row_bytes):
            self._chunks = ChunkReader(dataset, pipeline, keeps=True)

    def check(self, start: int, stop: int, limit: SizeLimit) -> None:
        """Check rows ``start:stop``."""
        for low in range(start, stop, _STEP_ROWS):
            raw = self._read(low, min(low + _STEP_ROWS, stop))
            if raw is None:
                continue
            rows = raw.reshape(-1, self._row_bytes)
            for place, item_bytes in self._references:
                self._check_references(rows[:, place : place + _REFERENCE_BYTES], item_bytes, low, limit)

    def _check_references(
        self, references: NDArray[np.uint8], item_bytes: int, start: int, limit: SizeLimit
    ) -> None:
        lengths = references[:, :4].copy().view("<u4")[:, 0].astype(np.int64) * item_bytes
        addresses = references[:, 4:12].copy().view("<i8")[:, 0]
        indexes = references[:, 12:].copy().view("<u4")[:, 0].astype(np.int64)
        lengths[addresses == 0] = 0  # no value
        if lengths.max() > limit.max_bytes:
            row = int(lengths.argmax())
            problem = f"{lengths[row]} bytes are more than the {limit.max_bytes} allowed"
            place = f"row {start + row} of dataset {self._label!r}"
            raise InputError(self._name, problem, place=place, remedy=f"raise {limit.option}")
        if self._file_bytes > SMALL_FILE_BYTES:
            self._check_heaps(addresses, indexes, lengths, limit.max_bytes)

    def _check_heaps(
        self,
        addresses: NDArray[np.int64],
        indexes: NDArray[np.int64],
        sizes: NDArray[np.int64],
        most_bytes: int,
    ) -> None:
        """Check the heaps of some values, except the last one checked before."""
        unseen = (addresses != 0) & (addresses != self._checked)
        values = HeapValues(addresses[unseen] + self._base, indexes[unseen], sizes[unseen])
        check_heaps(self._content, values.sorted(), self._file_bytes, most_bytes + _HEAP_EXTRA_BYTES)
        self._checked = int(addresses[-1])

    def _read(self, start: int, stop: int) -> NDArray[np.uint8] | None:
        if self._chunks is not None:
            return self._chunks.read(start, stop)
        if self._offset is None:
            return None
        size = (stop - start) * self._row_bytes
        raw = self._content.read_at(self._offset + start * self._row_bytes, size)
        return np.frombuffer(raw, np.uint8) if len(raw) == size else None
