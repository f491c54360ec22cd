"""Reading gzip chunks without HDF5's own filters.

HDF5 inflates all that a chunk's bytes hold, be it a thousand times the chunk; and where they hold less than the
chunk, it takes whatever lies behind them in memory for data. Here a chunk is inflated up to its size, and must
fill it. HDF5 does one thing at a time, besides; this runs in many threads.
"""

from __future__ import annotations

import zlib
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5s, h5z

from recshuf.formats._hdf5_column import find_chunk
from recshuf.formats._hdf5_types import Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from h5py import h5d
    from numpy.typing import NDArray

    _Offset = tuple[int, ...]

_REFERENCE_BYTES = 16
_CHECKSUM_BYTES = 4
_HIGHEST_LEVEL = 9
_CHECKSUM_MODULUS = 65535
_ROW_WORDS = 128
"""Words that are summed up, weighted, without overflow of 32 bits."""


def make_inflater(dataset: h5d.DatasetID, *, keeps: bool) -> ChunkReader | None:
    """Return what reads a dataset of gzip chunks, or None where HDF5 has to.

    Parameters
    ----------
    keeps
        Whether the last chunk stays in memory for the next read.
    """
    item_bytes = dataset.get_type().get_size()
    codes = _find_filters(dataset, item_bytes)
    if codes is None or h5z.FILTER_DEFLATE not in codes:
        return None
    return ChunkReader(dataset, codes, item_bytes, keeps=keeps)


def make_reference_reader(dataset: h5d.DatasetID) -> ChunkReader | None:
    """Return what reads the references to the values of a chunked dataset of variable length, if possible.

    References come as zeros where they cannot be read.
    """
    codes = _find_filters(dataset, _REFERENCE_BYTES)
    return None if codes is None else ChunkReader(dataset, codes, _REFERENCE_BYTES, keeps=True)


def _find_filters(dataset: h5d.DatasetID, item_bytes: int) -> list[int] | None:
    """Return the filters of a dataset in the order in which they were applied; None if some are unusual."""
    if find_chunk(dataset) is None:
        return None
    plist = dataset.get_create_plist()
    filters = [plist.get_filter(index) for index in range(plist.get_nfilters())]
    codes = [code for code, _, _, _ in filters]
    if len(set(codes)) < len(codes) or h5z.FILTER_SHUFFLE in codes[1:]:
        return None
    return codes if all(_is_usual(code, values, item_bytes) for code, _, values, _ in filters) else None


def _is_usual(code: int, values: tuple[int, ...], item_bytes: int) -> bool:
    """Tell whether a filter is one that is undone here, with parameters that HDF5 accepts."""
    if code == h5z.FILTER_SHUFFLE:
        return values == (item_bytes,)
    if code == h5z.FILTER_DEFLATE:
        return len(values) == 1 and values[0] <= _HIGHEST_LEVEL
    return bool(code == h5z.FILTER_FLETCHER32)


class ChunkReader:
    """Reads rows of a dataset whose chunks are byte-shuffled or not, deflated or not, with checksums or not.

    Parameters
    ----------
    dataset
        The dataset.
    codes
        Its filters, in the order in which they were applied.
    item_bytes
        Size of an element in the file.
    keeps
        Whether the last chunk stays in memory for the next read.
    """

    def __init__(self, dataset: h5d.DatasetID, codes: list[int], item_bytes: int, *, keeps: bool) -> None:
        self._dataset = dataset
        self._codes = codes
        self._keeps = keeps
        self._kept: tuple[_Offset, NDArray[np.uint8]] | None = None
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk = find_chunk(dataset) or ()
        self._item_bytes = item_bytes
        self._chunk_bytes = prod(self._chunk) * item_bytes

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of rows ``start:stop``.

        Raises
        ------
        ValueError
            When a chunk does not inflate to its size.
        """
        rows = np.empty((stop - start, *self._shape[1:], self._item_bytes), np.uint8)
        for offset in self._list_offsets(start, stop):
            low = (max(offset[0], start), *offset[1:])
            ends = map(min, map(int.__add__, offset, self._chunk), (stop, *self._shape[1:]))
            self._fill(rows[low[0] - start :], offset, low, tuple(ends))
        return rows.reshape(-1)

    def _list_offsets(self, start: int, stop: int) -> Iterator[_Offset]:
        """Yield where each chunk begins that has some of these rows."""
        first = start - start % self._chunk[0]
        others = (range(0, width, step) for width, step in zip(self._shape[1:], self._chunk[1:], strict=True))
        return product(range(first, stop, self._chunk[0]), *others)

    def _fill(self, rows: NDArray[np.uint8], offset: _Offset, low: _Offset, high: _Offset) -> None:
        """Copy what lies from `low` up to `high` of a chunk; `rows` begin where it does."""
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
        """Return a chunk, its bytes on the last axis; None where only HDF5 knows what to make of it."""
        kept = self._kept
        if kept is not None and kept[0] == offset:
            return kept[1]
        try:
            mask, stored = self._dataset.read_direct_chunk(offset)
        except (RuntimeError, OSError, ValueError):  # never written, so all fill value, or out of reach
            return None
        codes = [code for index, code in enumerate(self._codes) if not mask >> index & 1]
        inflated = self._undo_filters(stored, codes)
        if inflated is None:
            return None
        chunk = self._arrange(inflated, is_shuffled=h5z.FILTER_SHUFFLE in codes)
        if self._keeps:
            self._kept = (offset, chunk)
        return chunk

    def _undo_filters(self, stored: bytes, codes: list[int]) -> bytes | None:
        """Return a chunk without checksums and compression; None if HDF5 shall say what is wrong with it."""
        for code in reversed(codes):
            if code == h5z.FILTER_FLETCHER32:
                if not has_right_checksum(stored):
                    return None
                stored = stored[:-_CHECKSUM_BYTES]
            elif code == h5z.FILTER_DEFLATE:
                inflated = self._inflate(stored)
                if inflated is None:
                    return None
                stored = inflated
        if len(stored) != self._chunk_bytes:
            amount = f"{len(stored)} bytes" if len(stored) < self._chunk_bytes else "more"
            raise ValueError(f"a chunk of {self._chunk_bytes} bytes inflates to {amount}")
        return stored

    def _arrange(self, inflated: bytes, *, is_shuffled: bool) -> NDArray[np.uint8]:
        flat = np.frombuffer(inflated, np.uint8)
        if is_shuffled:
            return np.moveaxis(flat.reshape(self._item_bytes, *self._chunk), 0, -1)
        return flat.reshape(*self._chunk, self._item_bytes)

    def _inflate(self, stored: bytes) -> bytes | None:
        """Return what a stream holds, as far as it fits a chunk and a checksum; None if it is damaged."""
        stream = zlib.decompressobj()
        try:
            inflated = stream.decompress(stored, self._chunk_bytes + _CHECKSUM_BYTES + 1)
        except zlib.error:
            return None
        return inflated if stream.eof or len(inflated) > self._chunk_bytes + _CHECKSUM_BYTES else None

    def _read_plainly(self, low: _Offset, counts: _Offset) -> NDArray[np.uint8]:
        in_file = self._dataset.get_space()
        in_file.select_hyperslab(low, counts)
        raw = np.zeros(prod(counts) * self._item_bytes, np.uint8)
        if kind_of(self._dataset.get_type()) is Kind.FIXED:
            self._dataset.read(h5s.create_simple(counts), in_file, raw, self._dataset.get_type())
        return raw


def has_right_checksum(stored: bytes) -> bool:
    """Tell whether bytes end with their checksum, as HDF5 reckons it: Fletcher's, over big-endian words."""
    body, given = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    words = _view_words(body)
    sums = words.sum(axis=1, dtype=np.uint64)
    # A word counts as often as there are words from it on: inside its row, and once for each word of later rows.
    weighted = (words * np.arange(_ROW_WORDS, 0, -1, dtype=np.uint32)).sum(axis=1, dtype=np.uint64)
    later = (
        np.arange(len(words) - 1, -1, -1, dtype=np.uint64)
        * np.uint64(_ROW_WORDS)
        % np.uint64(_CHECKSUM_MODULUS)
    )
    first = int(sums.sum()) % _CHECKSUM_MODULUS
    second = int((weighted + sums * later).sum()) % _CHECKSUM_MODULUS
    # Zero has two forms in these sums, 0 and 65535.
    return (first, second) == tuple(int(part) % _CHECKSUM_MODULUS for part in np.frombuffer(given, "<u2"))


def _view_words(body: bytes) -> NDArray[np.uint32]:
    """Return big-endian words in rows of `_ROW_WORDS`, after zeros, which change no sum."""
    given = np.frombuffer(body + bytes(len(body) % 2), ">u2")
    words = np.zeros(-(-len(given) // _ROW_WORDS) * _ROW_WORDS, np.uint32)
    words[len(words) - len(given) :] = given
    return words.reshape(-1, _ROW_WORDS)
