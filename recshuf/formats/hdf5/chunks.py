r"""Reads chunks without HDF5's own filters, in many threads, and checks references to values before HDF5 follows them.

Values of variable length lie in global heaps, and HDF5 walks through the objects of a heap when it loads one. If zeros replaced
its contents, as after a lost sector, the walk does not end, and no signal stops it.

A heap begins with its signature and size. The object with index 0 is the free space up to the end::

    GCOL\1\0\0\0 | size || index, count, 0 | size | value, up to 8 bytes || ... || 0, 0, 0 | size | anything
"""

from __future__ import annotations

from itertools import product
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5s
from h5py._objects import phil

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import Pipeline, find_pipeline
from recshuf.formats.hdf5.types import ADDRESS_BYTES, Kind, find_chunk, kind_of, measure_element

if TYPE_CHECKING:
    import h5py
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.storage import Column
    from recshuf.interfaces import Handle

    _Bytes = NDArray[np.uint8]
    _Offset = tuple[int, ...]


_SIGNATURE = b"GCOL\x01\0\0\0"
_SMALLEST_BYTES = 4096
_HEADER_BYTES = 16
"""Those of a heap, and of an object in it."""
_read_header = Struct("<H6xQ").unpack_from
SMALL_FILE_BYTES = 4 << 20
"""Largest file whose heaps are all checked when it is opened."""
_REFERENCE_BYTES = 16
"""Bytes of a reference: a length of 4, an address of 8, and an index of 4."""
_STEP_ROWS = 1 << 16
_HEAP_EXTRA_BYTES = 1 << 20
"""Most bytes of a heap beyond its largest value."""


def check_small_file(file: Handle) -> None:
    """Raise `ValueError` if a heap of a small file is damaged.

    This is the only way to check heaps of attributes: HDF5 does not expose their references.
    """
    file_bytes = file.stamp.size
    content = file.read_at(0, file_bytes) if file_bytes <= SMALL_FILE_BYTES else b""
    place = content.find(_SIGNATURE)
    while place >= 0:
        place = content.find(_SIGNATURE, place + _check_heap(file, place, file_bytes))


def _check_heap(file: Handle, place: int, most_bytes: int) -> int:
    """Return the size of a heap; raise `ValueError` if it is damaged, has more bytes, or a walk through it does not end."""
    left = file.stamp.size - place
    heap = file.read_at(place, _SMALLEST_BYTES) if place >= 0 and left >= _SMALLEST_BYTES else b""
    size = int.from_bytes(heap[8:_HEADER_BYTES], "little")
    if not heap.startswith(_SIGNATURE) or not _SMALLEST_BYTES <= size <= left:
        raise _damage(place)
    if size > most_bytes:
        raise ValueError(f"a heap has {size} bytes, more than the {most_bytes} that fit")
    if size > _SMALLEST_BYTES:
        heap = file.read_at(place, size)
    at = _HEADER_BYTES
    while at <= size - _HEADER_BYTES:
        index, value_bytes = _read_header(heap, at)
        if index:
            at += _HEADER_BYTES + (value_bytes + 7 & -8)
        elif value_bytes and value_bytes % 8 == 0:  # else HDF5 skips free space byte by byte
            at += value_bytes
        else:
            raise _damage(place)
    if at > size:
        raise _damage(place)
    return size


def _damage(place: int) -> ValueError:
    return ValueError(f"the heap of variable-length values at byte {place} is damaged")


class ChunkReader:
    """Reads rows of a chunked dataset, undoing its filters without HDF5. References that cannot be read are zeros.

    It `keeps` the last chunk in memory for the next read.
    """

    def __init__(self, dataset: h5d.DatasetID, pipeline: Pipeline, *, keeps: bool) -> None:
        self._dataset = dataset
        self._pipeline = pipeline
        self._keeps = keeps
        self._kept: tuple[_Offset, _Bytes] | None = None
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk = pipeline.chunk
        self._item_bytes = pipeline.item_bytes

    def read(self, start: int, stop: int) -> _Bytes:
        rows = np.empty((stop - start, *self._shape[1:], self._item_bytes), np.uint8)
        others = (range(0, width, step) for width, step in zip(self._shape[1:], self._chunk[1:], strict=True))
        for offset in product(range(start - start % self._chunk[0], stop, self._chunk[0]), *others):
            low = (max(offset[0], start), *offset[1:])
            ends = map(min, map(int.__add__, offset, self._chunk), (stop, *self._shape[1:]))
            self._fill(rows[low[0] - start :], offset, low, tuple(ends))
        return rows.reshape(-1)

    def _fill(self, rows: _Bytes, offset: _Offset, low: _Offset, high: _Offset) -> None:
        """Copy the elements from `low` up to `high` of a chunk; `rows` begin at the row of `low`."""
        counts = tuple(map(int.__sub__, high, low))
        target = rows[(slice(counts[0]), *map(slice, low[1:], high[1:]))]
        chunk = self._load(offset)
        if chunk is None:
            target[...] = self._read_plainly(low, counts).reshape(target.shape)
            return
        taken = chunk[
            tuple(slice(a - start, b - start) for a, b, start in zip(low, high, offset, strict=True))
        ]
        if taken.strides[-1] == 1:
            target[...] = taken
            return
        for index in range(self._item_bytes):  # shuffled: a plane of first bytes, one of second bytes...
            target[..., index] = taken[..., index]

    def _load(self, offset: _Offset) -> _Bytes | None:
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

    def _read_plainly(self, low: _Offset, counts: _Offset) -> _Bytes:
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

    def check(self, sizes: NDArray[np.int64], first_row: int, path: str, name: str) -> None:
        if sizes.max() > self.max_bytes:
            row = int(sizes.argmax())
            problem = f"{sizes[row]} bytes are more than the {self.max_bytes} allowed"
            place = f"row {first_row + row} of dataset {path!r}"
            raise InputError(name, problem, place=place, remedy=f"raise {self.option}")


class ValueGuard:
    """Checks the variable-length values of a dataset.

    References that cannot be read are not checked: in datasets with filters other than HDF5's own, in dataset headers, and
    in files with unusual address sizes.
    """

    def __init__(
        self, file: h5py.File, content: Handle, dataset: h5d.DatasetID, column: Column, name: str
    ) -> None:
        self._content = content
        self._base = int(file.userblock_size)
        self._name = name
        self._label = column.name
        self._row_bytes, self._references = measure_element(column.tid)
        self._checked = 0
        self._chunks: ChunkReader | None = None
        self._offset: int | None = None
        if file.id.get_create_plist().get_sizes()[0] != ADDRESS_BYTES:
            return
        if find_chunk(dataset) is None:
            self._offset = dataset.get_offset()
        elif pipeline := find_pipeline(dataset, self._row_bytes):
            self._chunks = ChunkReader(dataset, pipeline, keeps=True)

    def check(self, start: int, stop: int, limit: SizeLimit) -> None:
        for low in range(start, stop, _STEP_ROWS):
            raw = self._read(low, min(low + _STEP_ROWS, stop))
            if raw is None:
                continue
            rows = raw.reshape(-1, self._row_bytes)
            for place, item_bytes in self._references:
                self._check_references(rows[:, place : place + _REFERENCE_BYTES], item_bytes, low, limit)

    def _check_references(self, references: _Bytes, item_bytes: int, start: int, limit: SizeLimit) -> None:
        lengths = references[:, :4].copy().view("<u4")[:, 0].astype(np.int64) * item_bytes
        addresses = references[:, 4:12].copy().view("<i8")[:, 0]
        lengths[addresses == 0] = 0  # no value
        limit.check(lengths, start, self._label, self._name)
        if self._content.stamp.size > SMALL_FILE_BYTES:
            unseen = (addresses != 0) & (addresses != self._checked)
            for place in np.unique(addresses[unseen] + self._base).tolist():
                _check_heap(self._content, place, limit.max_bytes + _HEAP_EXTRA_BYTES)
            self._checked = int(addresses[-1])  # the last heap, which the next rows may begin with

    def _read(self, start: int, stop: int) -> _Bytes | None:
        if self._chunks is not None:
            return self._chunks.read(start, stop)
        if self._offset is None:
            return None
        size = (stop - start) * self._row_bytes
        raw = self._content.read_at(self._offset + start * self._row_bytes, size)
        return np.frombuffer(raw, np.uint8) if len(raw) == size else None
