r"""Reads chunks without HDF5's own filters, in many threads, and checks references to values before HDF5 follows them.

Values of variable length lie in global heaps, and HDF5 walks through the objects of a heap when it loads one. If zeros replaced
its contents, as after a lost sector, the walk does not end, and no signal stops it.

A heap begins with its signature and size. The object with index 0 is the free space up to the end::

    GCOL\1\0\0\0 | size || index, count, 0 | size | value, up to 8 bytes || ... || 0, 0, 0 | size | anything
"""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5s
from h5py._objects import phil

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import Pipeline, find_pipeline
from recshuf.formats.hdf5.types import ADDRESS_BYTES, Kind, find_chunk, kind_of, measure_element

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.storage import Column
    from recshuf.interfaces import Handle

    _Numbers = NDArray[np.int64]
    _Bytes = NDArray[np.uint8]
    _Offset = tuple[int, ...]


_SIGNATURE = b"GCOL\x01\0\0\0"
_WORD = 8
_HEADER_WORDS = 2
_SMALLEST_BYTES = 4096
SMALL_FILE_BYTES = 4 << 20
"""Largest file whose heaps are all checked when it is opened."""
_WINDOW_BYTES = 1 << 20
_REFERENCE_BYTES = 16
"""Bytes of a reference: a length of 4, an address of 8, and an index of 4."""
_STEP_ROWS = 1 << 16
_HEAP_EXTRA_BYTES = 1 << 20
"""Most bytes of a heap beyond its largest value."""


class _HeapValues(NamedTuple):
    """Variable-length values, as addresses of heaps and indices in them."""

    places: _Numbers
    indexes: _Numbers
    sizes: _Numbers
    """Bytes of each value."""

    def take(self, part: slice | _Numbers) -> _HeapValues:
        return _HeapValues(*(each[part] for each in self))

    def sorted(self) -> _HeapValues:
        rises = np.diff(self.places)
        if ((rises > 0) | ((rises == 0) & (np.diff(self.indexes) > 0))).all():
            return self
        return self.take(np.lexsort((self.indexes, self.places)))

    def windows(self) -> Iterator[_HeapValues]:
        cuts = np.flatnonzero(np.diff(self.places // _WINDOW_BYTES)) + 1
        bounds = [0, *cuts.tolist(), len(self.places)]
        for start, stop in pairwise(bounds):
            yield self.take(slice(start, stop))


def check_small_file(file: Handle, file_bytes: int) -> None:
    """Raise `ValueError` if a heap of a small file is damaged.

    This is the only way to check heaps of attributes: HDF5 does not expose their references.
    """
    if file_bytes > SMALL_FILE_BYTES:
        return
    content = file.read_at(0, file_bytes)
    place = content.find(_SIGNATURE)
    while place >= 0:
        size = int.from_bytes(content[place + _WORD : place + 2 * _WORD], "little")
        if not _SMALLEST_BYTES <= size <= len(content) - place:
            raise _damage(place)
        _walk(np.frombuffer(content, np.uint8, size, place), place)
        place = content.find(_SIGNATURE, place + size)


def _check_heaps(file: Handle, values: _HeapValues, file_bytes: int, most_bytes: int) -> None:
    """Raise `ValueError` if a heap of some values, which are in order, is damaged or has more than `most_bytes`."""
    if len(values.places) == 0:
        return
    lowest, highest = int(values.places[0]), int(values.places[-1])
    if lowest < 0 or highest > file_bytes - _SMALLEST_BYTES:
        raise _damage(lowest if lowest < 0 else highest)
    for window in values.windows():
        _check_window(file, window, file_bytes, most_bytes)


def _check_window(file: Handle, values: _HeapValues, file_bytes: int, most_bytes: int) -> None:
    firsts = np.append(0, np.flatnonzero(np.diff(values.places)) + 1)
    places = values.places[firsts]
    origin = int(places[0])
    content = _read(file, origin, int(places[-1]) + _SMALLEST_BYTES - origin)
    starts = places - origin
    sizes = _read_sizes(content, starts, origin)
    if (sizes > file_bytes - places).any():
        raise _damage(int(places[(sizes > file_bytes - places).argmax()]))
    if sizes.max() > most_bytes:
        raise ValueError(f"a heap has {sizes.max()} bytes, more than the {most_bytes} that fit")
    if starts[-1] + sizes[-1] > len(content):
        content = _read(file, origin, int((starts + sizes).max()))
    proven = _find_proven(content, values, firsts, starts, starts + sizes)
    for start, size in zip(starts[~proven].tolist(), sizes[~proven].tolist(), strict=True):
        _walk(content[start : start + size], origin + start)


def _read_sizes(content: NDArray[np.uint8], starts: _Numbers, origin: int) -> _Numbers:
    headers = content[starts[:, None] + np.arange(_HEADER_WORDS * _WORD)]
    sizes: _Numbers = headers[:, _WORD:].copy().view("<i8")[:, 0]
    wrong = (headers[:, :_WORD] != np.frombuffer(_SIGNATURE, np.uint8)).any(axis=1) | (
        sizes < _SMALLEST_BYTES
    )
    if wrong.any():
        raise _damage(origin + int(starts[wrong.argmax()]))
    return sizes


def _find_proven(
    content: NDArray[np.uint8], values: _HeapValues, firsts: _Numbers, starts: _Numbers, stops: _Numbers
) -> NDArray[np.bool_]:
    """Tell which heaps hold exactly these values in order, so that a walk ends.

    Other heaps may hold more values, or in another order.
    """
    words = content[: len(content) // _WORD * _WORD].view("<u8")
    counts = np.diff(firsts, append=len(values.places))
    steps = _HEADER_WORDS + -(-values.sizes // _WORD)
    before = np.cumsum(steps) - steps
    begins = starts // _WORD + _HEADER_WORDS
    places = before + np.repeat(begins - before[firsts], counts)
    at = np.minimum(places, len(words) - _HEADER_WORDS)
    met = (
        (at == places)
        & (words[at] & 0xFFFF == values.indexes)
        & (words[at + 1] == values.sizes.view(np.uint64))
    )
    lasts = firsts + counts - 1
    ends_well = _is_tail(words, places[lasts] + steps[lasts], stops // _WORD)
    proven: NDArray[np.bool_] = np.logical_and.reduceat(met, firsts) & ends_well & (starts % _WORD == 0)
    return proven


def _is_tail(words: NDArray[np.uint64], places: _Numbers, ends: _Numbers) -> NDArray[np.bool_]:
    """Tell for which heaps the rest is free space or too small for a header."""
    rest = ends - places
    at = np.minimum(places, len(words) - _HEADER_WORDS)
    is_free = (words[at] & 0xFFFF == 0) & (words[at + 1] == (np.maximum(rest, 0) * _WORD).view(np.uint64))
    tail: NDArray[np.bool_] = (rest >= 0) & ((rest < _HEADER_WORDS) | is_free)
    return tail


def _walk(heap: NDArray[np.uint8], place: int) -> None:
    """Raise `ValueError` if a walk through the objects of a heap does not end."""
    words = heap[: len(heap) // _WORD * _WORD].view("<u8").tolist()
    end, at = len(words) - 1, _HEADER_WORDS
    while at < end:
        size = words[at + 1]
        step = -(-size // _WORD) + (_HEADER_WORDS if words[at] & 0xFFFF else 0)
        strays = size % _WORD > 0 and not words[at] & 0xFFFF  # HDF5 skips free space byte by byte
        if strays or step == 0 or at + step > len(words):
            raise _damage(place)
        at += step


def _read(file: Handle, place: int, size: int) -> NDArray[np.uint8]:
    content = file.read_at(place, size)
    if len(content) < size:
        raise ValueError(f"the file ends before byte {place + size}")
    return np.frombuffer(content, np.uint8)


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
        indexes = references[:, 12:].copy().view("<u4")[:, 0].astype(np.int64)
        lengths[addresses == 0] = 0  # no value
        limit.check(lengths, start, self._label, self._name)
        file_bytes = self._content.stamp.size
        if file_bytes > SMALL_FILE_BYTES:
            unseen = (addresses != 0) & (addresses != self._checked)
            values = _HeapValues(addresses[unseen] + self._base, indexes[unseen], lengths[unseen]).sorted()
            _check_heaps(self._content, values, file_bytes, limit.max_bytes + _HEAP_EXTRA_BYTES)
            self._checked = int(addresses[-1])  # the last heap, which the next rows may begin with

    def _read(self, start: int, stop: int) -> _Bytes | None:
        if self._chunks is not None:
            return self._chunks.read(start, stop)
        if self._offset is None:
            return None
        size = (stop - start) * self._row_bytes
        raw = self._content.read_at(self._offset + start * self._row_bytes, size)
        return np.frombuffer(raw, np.uint8) if len(raw) == size else None
