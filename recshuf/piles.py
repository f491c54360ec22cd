"""Piles: where records wait between the passes.

A pile set is one file of M regions, one for each pile, each with room for what is expected to fall into it and
six standard deviations more. A region holds slices one behind the other:

    input (4) | records (4) | first row (8) | payload bytes (8) | xxh3 of these and the payload (8) | payload | 0-7 zeros

A slice is what one batch contributes to one pile, its records in their old order; its first row is that of the
batch, so that slices sorted by (input, first row) hold a pile's records in the order of the inputs. A region
that is full goes on in an extent at the end of the file. A set that is complete gets an index of all its parts at
the end, by which a later run can take it over:

    magic (8) | piles M (8) | parts n (8) | n x (pile, start, bytes) (24 n) | records of each region (8 M) | records,
    bytes and fingerprints of each pile (24 M) | xxh3 of all of it (8)
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.digests import PileDigests
from recshuf.errors import CheckError, PileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.scratch import Scratch

_HEADER = struct.Struct("<IIQQ")
_CHECKSUM = struct.Struct("<Q")
PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
"""What a slice has before its payload."""
EXTENT_BYTES = 64 << 10
"""Least room that a region gets when it must go on elsewhere."""
_ALIGNMENT = 8
_ZEROS = bytes(_ALIGNMENT)
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
_INDEX = struct.Struct("<8sQQ")
_MAGIC = b"rspiles1"


@dataclass(frozen=True, slots=True)
class Slice:
    """What one batch contributes to one pile, as bytes."""

    input_index: int
    first_row: int
    count: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Origin:
    """The batch that a slice comes from."""

    input_index: int
    first_row: int


class _Regions:
    """Where in the file each region's bytes are, and where its next ones go.

    Parameters
    ----------
    capacities
        Bytes set aside for each region, shape ``(M,)``.
    """

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        capacities = -(-capacities // _ALIGNMENT) * _ALIGNMENT
        ends = np.cumsum(capacities)
        self.end = int(ends[-1])
        self._capacities = capacities
        self._starts = ends - capacities
        self._used = np.zeros(len(capacities), np.int64)
        self._full: dict[int, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    @classmethod
    def restore(cls, pile_count: int, parts: NDArray[np.int64]) -> _Regions:
        """Return regions that hold given parts, rows of pile, start and bytes, and have no room for more."""
        regions = cls(np.zeros(pile_count, np.int64))
        for pile, start, used in parts.tolist():
            regions._full.setdefault(pile, []).append((start, used))
        return regions

    def reserve(self, piles: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each new slice; piles are distinct."""
        with self._lock:
            overflowing = self._used[piles] + sizes > self._capacities[piles]
            for pile, size in zip(piles[overflowing].tolist(), sizes[overflowing].tolist(), strict=True):
                self._extend(pile, size)
            places = self._starts[piles] + self._used[piles]
            self._used[piles] += sizes
            return places

    def _extend(self, pile: int, size: int) -> None:
        """Let a full region go on at the end of the file."""
        used = int(self._used[pile])
        if used:
            self._full.setdefault(pile, []).append((int(self._starts[pile]), used))
        capacity = max(size, used // 2, EXTENT_BYTES)
        self._starts[pile], self._capacities[pile], self._used[pile] = self.end, capacity, 0
        self.end += capacity

    def parts(self, pile: int) -> list[tuple[int, int]]:
        """Return start and bytes of everything that was written to a region."""
        own = (int(self._starts[pile]), int(self._used[pile]))
        return [*self._full.get(pile, []), *([own] if own[1] else [])]

    def to_array(self) -> NDArray[np.int64]:
        """Return the parts of all regions, shape ``(n, 3)``: pile, start and bytes."""
        piles = sorted({*self._full, *np.flatnonzero(self._used).tolist()})
        rows = [(pile, *part) for pile in piles for part in self.parts(pile)]
        return np.array(rows, np.int64).reshape(-1, 3)


class PileSet:
    """One file of regions. Slices are written by many threads, and read when all are written.

    Parameters
    ----------
    descriptor, path
        The file, which belongs to `scratch`.
    counts
        Records in each region, shape ``(M,)``.
    """

    def __init__(
        self, scratch: Scratch, descriptor: int, path: Path, regions: _Regions, counts: NDArray[np.int64]
    ) -> None:
        self._scratch = scratch
        self._descriptor = descriptor
        self._path = path
        self._regions = regions
        self._counts = counts
        self._lock = threading.Lock()

    @classmethod
    def create(cls, scratch: Scratch, capacities: NDArray[np.int64], name: str | None = None) -> PileSet:
        """Return a new set with so many bytes set aside for each region.

        Parameters
        ----------
        name
            What the file is called, if a later run may take it over.

        Raises
        ------
        OutputError
            When the file cannot be created.
        """
        counts = np.zeros(len(capacities), np.int64)
        return cls(scratch, *scratch.create(name), _Regions(capacities), counts)

    @classmethod
    def adopt(cls, scratch: Scratch, name: str, index_place: int) -> tuple[PileSet, PileDigests]:
        """Take over a set of an earlier run, and return it with the digests of its piles.

        Raises
        ------
        PileError
            When the file is not there, or any part of it does not read back as it was written.
        """
        try:
            descriptor, path = scratch.reopen(name)
        except OSError as error:
            raise PileError(f"{name}: cannot be opened: {error.strerror}") from error
        try:
            parts, counts, digests = _read_index(descriptor, path, index_place)
            found = cls(scratch, descriptor, path, _Regions.restore(len(counts), parts), counts)
            found.check()
        except PileError:
            scratch.release(descriptor)
            raise
        return found, digests

    def check(self) -> None:
        """Read every slice, and compare the numbers of records with what was written.

        Raises
        ------
        PileError
            When something differs.
        """
        for pile, count in enumerate(self._counts.tolist()):
            if sum(piece.count for piece in self.read(pile)) != count:
                raise _damaged(self._path, pile)

    def write(
        self, piles: list[int], slices: list[list[memoryview]], counts: list[int], origin: Origin
    ) -> int:
        """Append one slice to each of these regions and return the bytes written.

        Raises
        ------
        DiskFullError
            When there is no space left for them.
        """
        framed = [_frame(buffers, count, origin) for buffers, count in zip(slices, counts, strict=True)]
        sizes = np.fromiter((size for size, _ in framed), np.int64, len(framed))
        where = np.asarray(piles, np.int64)
        places = self._regions.reserve(where, sizes)
        try:
            for place, (size, buffers) in zip(places.tolist(), framed, strict=True):
                _write_fully(self._descriptor, buffers, place, size)
        except OSError as error:
            raise self._scratch.explain(error) from error
        with self._lock:
            self._counts[where] += counts
        return int(sizes.sum())

    def seal(self, digests: PileDigests, wanted: int, number: int) -> int:
        """Write the index of a set that is complete, and return where it lies.

        Parameters
        ----------
        digests
            What was thrown on each pile. Piles from `wanted` on may have been dropped.
        number
            What errors call the set.

        Raises
        ------
        CheckError
            When a region does not hold as many records as were thrown on its pile.
        OutputError
            When the index cannot be written.
        """
        wrong = np.flatnonzero(self._counts[:wanted] != digests.counts[:wanted])
        if wrong.size:
            pile = int(wrong[0])
            raise CheckError(
                f"scatter: pile {pile} of pile set {number}: {self._counts[pile]:,} records spilled, "
                f"{digests.counts[pile]:,} given; run again, and report this as a fault"
            )
        index = _pack_index(self._regions.to_array(), self._counts, digests)
        try:
            _write_fully(self._descriptor, [memoryview(index)], self._regions.end, len(index))
        except OSError as error:
            raise self._scratch.explain(error) from error
        return self._regions.end

    def region_bytes(self, pile: int) -> int:
        """Return the bytes written to a region."""
        return sum(used for _, used in self._regions.parts(pile))

    def read(self, pile: int) -> Iterator[Slice]:
        """Yield the slices of a region, in no particular order.

        Raises
        ------
        PileError
            When a slice does not read back as it was written.
        """
        for start, used in self._regions.parts(pile):
            yield from _parse(_read_fully(self._descriptor, start, used, self._path), self._path, pile)

    def close(self) -> None:
        """Close the file; it is gone then, unless it has a name. Idempotent."""
        self._scratch.release(self._descriptor)


def _pack_index(parts: NDArray[np.int64], counts: NDArray[np.int64], digests: PileDigests) -> bytes:
    arrays = (parts, counts, digests.counts, digests.byte_counts, digests.fingerprints)
    content = _INDEX.pack(_MAGIC, len(counts), len(parts)) + b"".join(array.tobytes() for array in arrays)
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))


def _read_index(
    descriptor: int, path: Path, place: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], PileDigests]:
    """Return the parts of a set, shape ``(n, 3)``, the records of each region, and the digests of its piles."""
    size = os.fstat(descriptor).st_size - place
    if place < 0 or size < _INDEX.size + _CHECKSUM.size:
        raise PileError(f"{path}: is cut short")
    index = _read_fully(descriptor, place, size, path)
    content = index[: -_CHECKSUM.size]
    magic, pile_count, part_count = _INDEX.unpack_from(content)
    if (
        _CHECKSUM.unpack_from(index, len(content))[0] != xxhash.xxh3_64_intdigest(content)
        or magic != _MAGIC
        or len(content) != _INDEX.size + 24 * part_count + 32 * pile_count
    ):
        raise PileError(f"{path}: its index does not read back as it was written")
    numbers = np.frombuffer(content, np.int64, offset=_INDEX.size)
    digests = PileDigests(pile_count)
    counts, digests.counts, digests.byte_counts, prints = numbers[3 * part_count :].reshape(4, -1).copy()
    digests.fingerprints = prints.view(np.uint64)
    return numbers[: 3 * part_count].reshape(-1, 3), counts, digests


def _frame(buffers: list[memoryview], count: int, origin: Origin) -> tuple[int, list[memoryview]]:
    """Return the bytes of a slice, header and padding included, and their number."""
    payload_bytes = sum(len(buffer) for buffer in buffers)
    header = _HEADER.pack(origin.input_index, count, origin.first_row, payload_bytes)
    digest = xxhash.xxh3_64(header)
    for buffer in buffers:
        digest.update(buffer)
    prefix = memoryview(header + _CHECKSUM.pack(digest.intdigest()))
    padding = memoryview(_ZEROS)[: -payload_bytes % _ALIGNMENT]
    return PREFIX_BYTES + payload_bytes + len(padding), [prefix, *buffers, padding]


def _parse(region: memoryview, path: Path, pile: int) -> Iterator[Slice]:
    place = 0
    while place < len(region):
        payload_place = place + PREFIX_BYTES
        if payload_place > len(region):
            raise _damaged(path, pile)
        header = region[place : place + _HEADER.size]
        input_index, count, first_row, payload_bytes = _HEADER.unpack(header)
        payload = region[payload_place : payload_place + payload_bytes]
        digest = xxhash.xxh3_64(header)
        digest.update(payload)
        if (
            len(payload) != payload_bytes
            or _CHECKSUM.unpack_from(region, place + _HEADER.size)[0] != digest.intdigest()
        ):
            raise _damaged(path, pile)
        yield Slice(input_index, first_row, count, payload)
        place = payload_place + payload_bytes + -payload_bytes % _ALIGNMENT


def _damaged(path: Path, pile: int) -> PileError:
    return PileError(
        f"{path}: pile {pile} does not read back as it was written: the disk or its memory is faulty; "
        "run again with another --temp-dir"
    )


def _write_fully(descriptor: int, buffers: list[memoryview], place: int, size: int) -> None:
    if len(buffers) > _MOST_BUFFERS:
        buffers = [memoryview(b"".join(buffers))]
    written = os.pwritev(descriptor, buffers, place)
    if written < size:
        rest = memoryview(b"".join(buffers))
        while written < size:
            written += os.pwrite(descriptor, rest[written:], place + written)


def _read_fully(descriptor: int, place: int, size: int, path: Path) -> memoryview:
    region = np.empty(size, np.uint8)
    view = region.data
    done = 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], place + done)
        if not count:
            raise PileError(f"{path}: ends at byte {place + done}, before the end of a region; run again")
        done += count
    return view
