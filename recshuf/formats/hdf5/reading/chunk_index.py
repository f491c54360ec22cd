"""Checks the chunks that the index of a dataset lists, before any is read.

HDF5 trusts the index: for a chunk too short for its checksum or rows, it reads beyond its buffers.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from h5py import h5z

from recshuf.errors import InputError
from recshuf.formats.hdf5.file.dataset import find_chunk
from recshuf.formats.hdf5.filters.fletcher32 import CHECKSUM_BYTES

if TYPE_CHECKING:
    from h5py import h5d

_SIZE_KEEPING_FILTERS = {h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# No filter enlarges a chunk that much, and a reader holds the whole chunk in memory.
_MOST_GROWTH = 2
_MOST_EXTRA_BYTES = 64 << 10


def check_chunks(dataset: h5d.DatasetID, item_bytes: int, path: str, name: str, file_bytes: int) -> None:
    """Raise `InputError` if the index of a dataset lists an impossible chunk.

    Parameters
    ----------
    item_bytes
        Size of an element in the file.
    """
    chunk = find_chunk(dataset)
    # The oldest HDF5 libraries cannot list chunks.
    if chunk is None or not hasattr(dataset, "chunk_iter"):
        return
    found: list[str] = []
    checker = _ChunkChecker(dataset, chunk, item_bytes, file_bytes)

    def visit(info: h5d.StoreInfo) -> bool | None:
        problem = checker.find_problem(info)
        if problem is None:
            return None
        found.append(f"the chunk at {info.chunk_offset} {problem}")
        return True

    dataset.chunk_iter(visit)
    if found:
        raise InputError(name, f"{found[0]}: the file is damaged", place=f"dataset {path!r}")


class _ChunkChecker:
    def __init__(
        self, dataset: h5d.DatasetID, chunk: tuple[int, ...], item_bytes: int, file_bytes: int
    ) -> None:
        plist = dataset.get_create_plist()
        self._codes = [plist.get_filter(index)[0] for index in range(plist.get_nfilters())]
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk = chunk
        self._chunk_bytes = prod(chunk) * item_bytes
        self._most_bytes = _MOST_GROWTH * self._chunk_bytes + _MOST_EXTRA_BYTES
        self._file_bytes = file_bytes
        self._sizes: dict[int, int | None] = {}

    def find_problem(self, info: h5d.StoreInfo) -> str | None:
        """Return the problem of a chunk, or None."""
        if info.byte_offset + info.size > self._file_bytes:
            return f"ends at byte {info.byte_offset + info.size}, beyond the end of the file"
        mask = info.filter_mask
        if mask not in self._sizes:
            self._sizes[mask] = self._find_size(mask)
        expected = self._sizes[mask]
        if expected is None:
            return None if CHECKSUM_BYTES < info.size <= self._most_bytes else f"has {info.size} bytes"
        if info.size == expected or (info.size == self._chunk_bytes and self._is_cut(info.chunk_offset)):
            return None
        return f"has {info.size} bytes instead of {expected}"

    def _find_size(self, mask: int) -> int | None:
        """Return the size of a chunk to which these filters were not applied; None if it varies."""
        codes = [code for index, code in enumerate(self._codes) if not mask >> index & 1]
        if not _SIZE_KEEPING_FILTERS.issuperset(codes):
            return None
        return self._chunk_bytes + CHECKSUM_BYTES * codes.count(h5z.FILTER_FLETCHER32)

    def _is_cut(self, offset: tuple[int, ...]) -> bool:
        """Tell whether a chunk extends over the edge: HDF5 can leave such chunks unfiltered."""
        return any(
            start + width > end for start, width, end in zip(offset, self._chunk, self._shape, strict=True)
        )
