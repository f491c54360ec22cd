"""Pile sets: files in which records wait between the passes.

A pile set is one file of R regions. A region holds the slices of one pile, or of several consecutive small ones. Its
capacity is the expected size and six standard deviations more.

A slice holds the records of one batch for one region, grouped by pile and else in input order. It carries the first row
of the batch: slices sorted by (input, first row) hold a pile's records in the order of the inputs. A full region
continues in an extent at the end of the file. A complete set ends in an index of all parts, by which a later run can
adopt it:

    magic (8) | regions R (8) | piles M (8) | parts n (8) | compression (8) | n x (region, start, bytes) (24 n) | records
    of each region (8 R) | bytes of its slices before compression (8 R) | records, bytes and fingerprints of each pile
    (24 M) | xxh3 of all of it (8)
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.errors import CheckError, PileError
from recshuf.piles.layout import SPILL_COMPRESSIONS
from recshuf.piles.regions import RegionSpace
from recshuf.piles.slices import PREFIX_BYTES, SliceFormat, damaged
from recshuf.records.digests import Digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.piles.scratch import Scratch
    from recshuf.piles.slices import Origin, Slice

_SHORT_BYTES = 32 << 10
"""Shorter slices take less time to copy than the call that writes them."""
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
_INDEX = struct.Struct("<8sQQQQ")
_CHECKSUM = struct.Struct("<Q")
_MAGIC = b"rspiles3"


class PileSet:
    """One file of regions. Slices are written by many threads, and read when all are written.

    Parameters
    ----------
    descriptor, path
        The file, which belongs to `scratch`.
    compression
        Compression of slices, one of `SPILL_COMPRESSIONS`.
    sums
        Records in each region, and bytes of its slices before compression, shape ``(2, R)``.
    """

    def __init__(
        self,
        scratch: Scratch,
        descriptor: int,
        path: Path,
        regions: RegionSpace,
        compression: str,
        sums: NDArray[np.int64],
    ) -> None:
        self._scratch = scratch
        self._descriptor = descriptor
        self._path = path
        self._regions = regions
        self._format = SliceFormat(compression)
        self._counts, self._byte_counts = sums
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while short slices are written, because concurrent short calls compete for the interpreter lock."""

    @classmethod
    def create(
        cls, scratch: Scratch, capacities: NDArray[np.int64], compression: str, name: str | None = None
    ) -> PileSet:
        """Create a set with `capacities` bytes reserved for the regions.

        Parameters
        ----------
        name
            File name, if a later run may adopt the set.

        Raises
        ------
        OutputError
            When the file cannot be created.
        """
        sums = np.zeros((2, len(capacities)), np.int64)
        return cls(scratch, *scratch.create(name), RegionSpace(capacities), compression, sums)

    @classmethod
    def adopt(cls, scratch: Scratch, name: str, index_offset: int) -> tuple[PileSet, Digests]:
        """Open and verify a set of an earlier run, and return it with the digests of its piles.

        Raises
        ------
        PileError
            When the file is missing or damaged.
        """
        try:
            descriptor, path = scratch.reopen(name)
        except OSError as error:
            raise PileError(f"{name}: cannot be opened: {error.strerror}") from error
        try:
            compression, parts, sums, digests = _read_index(descriptor, path, index_offset)
            regions = RegionSpace.restore(sums.shape[1], parts)
            found = cls(scratch, descriptor, path, regions, compression, sums)
            for region, count in enumerate(sums[0].tolist()):
                if sum(piece.record_count for piece in found.read(region)) != count:
                    raise damaged(path, region)
        except PileError:
            scratch.release(descriptor)
            raise
        return found, digests

    def write(
        self, regions: list[int], slices: list[list[memoryview]], counts: list[int], origin: Origin
    ) -> int:
        """Append one slice to each of these regions and return the bytes written.

        Raises
        ------
        DiskFullError
            When there is no space left for them.
        """
        sizes = [PREFIX_BYTES + sum(map(len, buffers)) for buffers in slices]
        written = 0
        try:
            with self._turn if sum(sizes) < len(sizes) * _SHORT_BYTES else nullcontext():
                for region, buffers, count in zip(regions, slices, counts, strict=True):
                    # One at a time: a whole compressed batch would exceed the memory limit.
                    framed = self._format.frame(buffers, count, origin)
                    size = sum(map(len, framed))
                    _write_fully(self._descriptor, framed, self._regions.reserve(region, size), size)
                    written += size
        except OSError as error:
            raise self._scratch.explain(error) from error
        with self._lock:
            self._counts[regions] += counts
            self._byte_counts[regions] += sizes
        return written

    def seal(self, digests: Digests, given: NDArray[np.int64], set_index: int) -> int:
        """Write the index of a set that is complete, and return its byte offset in the file.

        Parameters
        ----------
        digests
            Digests of the records added to each pile.
        given
            Records added to the piles of each region. Later regions may have been dropped.
        set_index
            Number of the set, for errors.

        Raises
        ------
        CheckError
            When a region does not hold as many records as were added to its piles.
        OutputError
            When the index cannot be written.
        """
        wrong = np.flatnonzero(self._counts[: len(given)] != given)
        if wrong.size:
            region = int(wrong[0])
            raise CheckError(
                f"scatter: region {region} of pile set {set_index}: {self._counts[region]:,} records spilled, "
                f"{given[region]:,} given; run again, and report this as a fault"
            )
        sums = np.stack((self._counts, self._byte_counts))
        index = _pack_index(self._format.compression, self._regions.to_array(), sums, digests)
        try:
            _write_fully(self._descriptor, [index], self._regions.end, len(index))
        except OSError as error:
            raise self._scratch.explain(error) from error
        return self._regions.end

    def region_bytes(self, region: int) -> int:
        """Return the bytes of a region's slices before compression."""
        return int(self._byte_counts[region])

    def read(self, region: int) -> Iterator[Slice]:
        """Yield the slices of a region, in no particular order.

        Raises
        ------
        PileError
            When a slice is damaged.
        """
        for start, used in self._regions.parts(region):
            content = _read_fully(self._descriptor, start, used, self._path)
            yield from self._format.parse(content, self._path, region)

    def close(self) -> None:
        """Close the file; an unnamed file is then deleted. Idempotent."""
        self._scratch.release(self._descriptor)


def _pack_index(
    compression: str, parts: NDArray[np.int64], sums: NDArray[np.int64], digests: Digests
) -> bytes:
    arrays = (parts, sums, digests.counts, digests.byte_counts, digests.fingerprints)
    counts = (sums.shape[1], len(digests.counts), len(parts))
    head = _INDEX.pack(_MAGIC, *counts, SPILL_COMPRESSIONS.index(compression))
    content = head + b"".join(array.tobytes() for array in arrays)
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))


def _read_index(
    descriptor: int, path: Path, offset: int
) -> tuple[str, NDArray[np.int64], NDArray[np.int64], Digests]:
    """Return compression, parts (shape ``(n, 3)``) and sums (shape ``(2, R)``) of a set, and its piles' digests."""
    size = os.fstat(descriptor).st_size - offset
    if offset < 0 or size < _INDEX.size + _CHECKSUM.size:
        raise PileError(f"{path}: is cut short")
    index = _read_fully(descriptor, offset, size, path).data
    content = index[: -_CHECKSUM.size]
    magic, region_count, pile_count, part_count, compression = _INDEX.unpack_from(content)
    if (
        _CHECKSUM.unpack_from(index, len(content))[0] != xxhash.xxh3_64_intdigest(content)
        or magic != _MAGIC
        or len(content) != _INDEX.size + 24 * part_count + 16 * region_count + 24 * pile_count
    ):
        raise PileError(f"{path}: its index does not read back as it was written")
    numbers = np.frombuffer(content, np.int64, offset=_INDEX.size)
    parts, sums, rows = np.split(numbers, np.cumsum([3 * part_count, 2 * region_count]))
    digests = Digests(pile_count)
    digests.counts, digests.byte_counts, fingerprints = rows.reshape(3, -1).copy()
    digests.fingerprints = fingerprints.view(np.uint64)
    sums = sums.reshape(2, -1).copy()
    return SPILL_COMPRESSIONS[compression], parts.reshape(-1, 3), sums, digests


def _write_fully(descriptor: int, buffers: Sequence[bytes | memoryview], offset: int, size: int) -> None:
    if len(buffers) > _MOST_BUFFERS:
        buffers = [b"".join(buffers)]
    written = os.pwritev(descriptor, buffers, offset)
    if written < size:
        rest = memoryview(b"".join(buffers))
        while written < size:
            written += os.pwrite(descriptor, rest[written:], offset + written)


def _read_fully(descriptor: int, offset: int, size: int, path: Path) -> NDArray[np.uint8]:
    region = np.empty(size, np.uint8)
    view = region.data
    done = 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise PileError(f"{path}: ends at byte {offset + done}, before the end of a region; run again")
        done += count
    return region
