"""Piles: where records wait between the passes. The only code that touches scratch files.

A pile set is one file of M regions, one for each pile, each with room for what is expected to fall into it and
six standard deviations more. A region holds slices one behind the other:

    input (4) | records (4) | first row (8) | payload bytes (8) | xxh3 of these and the payload (8) | payload | 0-7 zeros

A slice is what one batch contributes to one pile, its records in their old order; its first row is that of the
batch, so that slices sorted by (input, first row) hold a pile's records in the order of the inputs. A region
that is full goes on in an extent at the end of the file.

`PileStore` keeps the lowest piles in memory as long as they fit a limit, and the others in pile sets.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
import threading
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.errors import DiskFullError, OutputError, PileError
from recshuf.memory import format_size
from recshuf.order import KeyRange, find_piles, sort_by_pile
from recshuf.plans import region_bytes
from recshuf.records import Records, concat_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.records import RecordCodec

_HEADER = struct.Struct("<IIQQ")
_CHECKSUM = struct.Struct("<Q")
_PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
_ALIGNMENT = 8
_EXTENT_BYTES = 64 << 10
_ZEROS = bytes(_ALIGNMENT)
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Slice:
    """What one batch contributes to one pile, as bytes."""

    input_index: int
    first_row: int
    count: int
    payload: memoryview


class Scratch:
    """The folder of a run's pile sets: made when the first file is, private to the user, removed by `remove`."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._open: dict[int, Path] = {}
        self._made = 0

    def create(self) -> tuple[int, Path]:
        """Create the next scratch file and return its descriptor and path.

        Raises
        ------
        OutputError
            When the folder cannot be written.
        """
        with self._lock:
            try:
                if self._folder is None:
                    self._folder = type(self.parent)(
                        tempfile.mkdtemp(prefix="recshuf-piles-", dir=self.parent)
                    )
                path = self._folder / f"set-{self._made:05d}.piles"
                self._made += 1
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._open[descriptor] = path
                return descriptor, path
            except OSError as error:
                raise _scratch_error(error, self.parent) from error

    def discard(self, descriptor: int) -> None:
        """Close and delete one scratch file. Idempotent."""
        with self._lock:
            path = self._open.pop(descriptor, None)
            if path is not None:
                os.close(descriptor)
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Close and delete every file, and the folder. Idempotent."""
        for descriptor in list(self._open):
            self.discard(descriptor)
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


class PileSet:
    """One file of regions. Slices are written by many threads, and read when all are written.

    Parameters
    ----------
    capacities
        Bytes set aside for each region, shape ``(M,)``.
    """

    def __init__(self, scratch: Scratch, capacities: NDArray[np.int64]) -> None:
        capacities = -(-capacities // _ALIGNMENT) * _ALIGNMENT
        ends = np.cumsum(capacities)
        self._capacities = capacities
        self._starts = ends - capacities
        self._used = np.zeros(len(capacities), np.int64)
        self._full: dict[int, list[tuple[int, int]]] = {}
        self._end = int(ends[-1])
        self._lock = threading.Lock()
        self._scratch = scratch
        self._descriptor, self._path = scratch.create()

    def write(
        self, piles: list[int], slices: list[list[memoryview]], counts: list[int], origin: _Origin
    ) -> int:
        """Append one slice to each of these regions and return the bytes written.

        Raises
        ------
        DiskFullError
            When there is no space left for them.
        """
        framed = [_frame(buffers, count, origin) for buffers, count in zip(slices, counts, strict=True)]
        sizes = np.fromiter((size for size, _ in framed), np.int64, len(framed))
        places = self._reserve(np.asarray(piles, np.int64), sizes)
        try:
            for place, (size, buffers) in zip(places.tolist(), framed, strict=True):
                _write_fully(self._descriptor, buffers, place, size)
        except OSError as error:
            raise _scratch_error(error, self._path.parent.parent) from error
        return int(sizes.sum())

    def _reserve(self, piles: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
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
        capacity = max(size, used // 2, _EXTENT_BYTES)
        self._starts[pile], self._capacities[pile], self._used[pile] = self._end, capacity, 0
        self._end += capacity

    def region_bytes(self, pile: int) -> int:
        """Return the bytes written to a region."""
        return int(self._used[pile]) + sum(used for _, used in self._full.get(pile, []))

    def read(self, pile: int) -> Iterator[Slice]:
        """Yield the slices of a region, in no particular order.

        Raises
        ------
        PileError
            When a slice does not read back as it was written.
        """
        for start, used in [*self._full.get(pile, []), (int(self._starts[pile]), int(self._used[pile]))]:
            if used:
                yield from _parse(_read_fully(self._descriptor, start, used, self._path), self._path, pile)

    def close(self) -> None:
        """Close and delete the file. Idempotent."""
        self._scratch.discard(self._descriptor)


@dataclass(frozen=True, slots=True)
class _Origin:
    input_index: int
    first_row: int


@dataclass(slots=True)
class _ResidentBatch:
    """Records of one batch, grouped by pile, of the piles that stay in memory."""

    origin: _Origin
    records: Records
    bounds: NDArray[np.int64]
    set_index: int


class PileStore:
    """All piles of one range of keys: filled by many threads, then loaded pile by pile.

    Parameters
    ----------
    scratch
        Where pile sets are created, once something must be spilled.
    set_sizes
        Records expected in each pile set; None where nothing is known.
    resident_bytes
        How much the piles kept in memory may hold.
    output_count
        Records that are wanted at all, those of the smallest keys; None for all.
    """

    def __init__(
        self,
        codec: RecordCodec,
        pile_count: int,
        scratch: Scratch,
        set_sizes: tuple[float | None, ...],
        resident_bytes: int,
        output_count: int | None = None,
        key_range: KeyRange | None = None,
    ) -> None:
        self.codec = codec
        self.pile_count = pile_count
        self.key_range = key_range or KeyRange()
        self.counts: NDArray[np.int64] = np.zeros(pile_count, np.int64)
        self.spilled_bytes = 0
        self._scratch = scratch
        self._set_sizes = set_sizes
        self._sets: dict[int, PileSet] = {}
        self._resident: list[_ResidentBatch] = []
        self._resident_limit = resident_bytes
        self._resident_count = pile_count
        self._resident_bytes = 0
        self._output_count = output_count
        self._wanted_count = pile_count
        self._lock = threading.RLock()

    def add(
        self, set_index: int, input_index: int, first_row: int, records: Records, bounds: NDArray[np.int64]
    ) -> None:
        """Add the records of a batch, grouped by pile: pile j is at ``bounds[j]:bounds[j + 1]``.

        The store keeps `records` or parts of it.
        """
        origin = _Origin(input_index, first_row)
        with self._lock:
            self.counts += np.diff(bounds)
            self._drop_unwanted()
            wanted, resident = self._wanted_count, min(self._resident_count, self._wanted_count)
            self._keep(set_index, origin, records, bounds, resident)
        if resident < wanted:
            self._spill(set_index, origin, records, bounds, resident, wanted)

    def is_resident(self, pile: int) -> bool:
        """Tell whether a pile is in memory."""
        return pile < self._resident_count

    def pile_bytes(self, pile: int) -> int:
        """Return the bytes that the records of a pile take."""
        if self.is_resident(pile):
            return sum(part.byte_count for _, part in self._resident_parts(pile))
        return sum(pile_set.region_bytes(pile) for pile_set in self._sets.values())

    def load(self, pile: int) -> Records | None:
        """Return the records of a pile in the order of the inputs; None for an empty pile."""
        if self.is_resident(pile):
            parts = [part for _, part in self._resident_parts(pile)]
            return concat_records(parts) if parts else None
        slices = self._read_slices(pile)
        return self.codec.unpack([(piece.payload, piece.count) for piece in slices]) if slices else None

    def load_parts(self, pile: int) -> Iterator[tuple[int, int, Records]]:
        """Yield (input, first row, records) of each slice of a pile, one after the other."""
        if self.is_resident(pile):
            for origin, part in self._resident_parts(pile):
                yield origin.input_index, origin.first_row, part
            return
        for pile_set in self._sets.values():
            for piece in pile_set.read(pile):
                yield piece.input_index, piece.first_row, self.codec.unpack([(piece.payload, piece.count)])

    def split(self, pile: int, part_count: int) -> PileStore:
        """Return a new store that holds the records of one pile in `part_count` finer piles.

        A pile in memory is split in memory, one on disk on disk. The pile itself stays as it is.
        """
        parts = PileStore(
            self.codec,
            part_count,
            self._scratch,
            set_sizes=(float(self.counts[pile]),),
            resident_bytes=self._resident_limit if self.is_resident(pile) else 0,
            key_range=self.key_range.part(pile, self.pile_count),
        )
        for input_index, first_row, records in self.load_parts(pile):
            index, bounds = sort_by_pile(find_piles(records.keys, part_count, parts.key_range), part_count)
            parts.add(0, input_index, first_row, records.take(index), bounds)
        return parts

    def close(self) -> None:
        """Forget everything and delete the files. Idempotent."""
        self._resident.clear()
        for pile_set in self._sets.values():
            pile_set.close()
        self._sets.clear()

    def _resident_parts(self, pile: int) -> list[tuple[_Origin, Records]]:
        found = [kept for kept in self._resident if kept.bounds[pile] < kept.bounds[pile + 1]]
        found.sort(key=lambda kept: (kept.origin.input_index, kept.origin.first_row))
        return [
            (kept.origin, kept.records.slice(int(kept.bounds[pile]), int(kept.bounds[pile + 1])))
            for kept in found
        ]

    def _read_slices(self, pile: int) -> list[Slice]:
        slices = [piece for pile_set in self._sets.values() for piece in pile_set.read(pile)]
        slices.sort(key=attrgetter("input_index", "first_row"))
        return slices

    def _drop_unwanted(self) -> None:
        """With only n records wanted, drop the piles above those that already hold n smaller keys."""
        if self._output_count is None:
            return
        reached = int(np.searchsorted(np.cumsum(self.counts), self._output_count))
        wanted = min(self._wanted_count, max(1, reached + 1))
        if wanted <= self._wanted_count // 2 and self._resident_count > wanted:
            self._trim(wanted)
        self._wanted_count = wanted

    def _keep(
        self, set_index: int, origin: _Origin, records: Records, bounds: NDArray[np.int64], resident: int
    ) -> None:
        """Keep the piles below `resident` of a batch in memory, evicting high piles when that is too much."""
        stop = int(bounds[resident])
        if not stop:
            return
        kept = records if stop == len(records) else records.copy_prefix(stop)
        self._resident.append(_ResidentBatch(origin, kept, bounds[: resident + 1].copy(), set_index))
        self._resident_bytes += kept.byte_count
        while self._resident_bytes > self._resident_limit and self._resident_count:
            self._evict(self._resident_count * 3 // 4)

    def _evict(self, resident_count: int) -> None:
        """Spill the piles from `resident_count` on, and keep only those below in memory."""
        for kept in self._resident:
            end = min(len(kept.bounds) - 1, self._wanted_count)
            if resident_count < end:
                self._spill(kept.set_index, kept.origin, kept.records, kept.bounds, resident_count, end)
            self._cut(kept, resident_count)
        self._resident_count = resident_count
        self._resident = [kept for kept in self._resident if len(kept.records)]

    def _trim(self, wanted_count: int) -> None:
        for kept in self._resident:
            self._cut(kept, wanted_count)

    def _cut(self, kept: _ResidentBatch, pile_count: int) -> None:
        """Free what a resident batch holds of the piles from `pile_count` on."""
        if pile_count >= len(kept.bounds) - 1:
            return
        stop = int(kept.bounds[pile_count])
        kept.bounds = kept.bounds[: pile_count + 1].copy()
        if stop < len(kept.records):
            self._resident_bytes -= kept.records.byte_count
            kept.records = kept.records.copy_prefix(stop)
            self._resident_bytes += kept.records.byte_count

    def _spill(
        self,
        set_index: int,
        origin: _Origin,
        records: Records,
        bounds: NDArray[np.int64],
        first: int,
        end: int,
    ) -> None:
        """Write the slices of piles ``first`` to ``end`` that are not empty."""
        counts = np.diff(bounds[first : end + 1])
        filled = np.flatnonzero(counts)
        if not filled.size:
            return
        edges = [int(bounds[first]), *bounds[first + 1 + filled].tolist()]
        slices = self.codec.pack(records, edges)
        pile_set = self._open_set(set_index, records)
        written = pile_set.write((filled + first).tolist(), slices, counts[filled].tolist(), origin)
        with self._lock:
            self.spilled_bytes += written

    def _open_set(self, set_index: int, sample: Records) -> PileSet:
        with self._lock:
            if set_index not in self._sets:
                self._sets[set_index] = PileSet(self._scratch, self._plan_regions(set_index, sample))
            return self._sets[set_index]

    def _plan_regions(self, set_index: int, sample: Records) -> NDArray[np.int64]:
        """Return the capacity of each region of a set, from the sizes of the records of a first batch."""
        expected = self._set_sizes[set_index]
        if expected is None:
            return np.full(self.pile_count, _EXTENT_BYTES, np.int64)
        sizes = self.codec.measure(sample.batch).astype(np.float64)
        headers = _PREFIX_BYTES + self.codec.overhead_bytes()
        batch_share = max(1.0, len(sample) / self.pile_count)
        mean = sizes.mean() + headers / batch_share
        capacity = region_bytes(expected / self.pile_count, mean, float(np.square(sizes).mean()))
        return np.full(self.pile_count, capacity, np.int64)


def _frame(buffers: list[memoryview], count: int, origin: _Origin) -> tuple[int, list[memoryview]]:
    """Return the bytes of a slice, header and padding included, and their number."""
    payload_bytes = sum(len(buffer) for buffer in buffers)
    header = _HEADER.pack(origin.input_index, count, origin.first_row, payload_bytes)
    digest = xxhash.xxh3_64(header)
    for buffer in buffers:
        digest.update(buffer)
    prefix = memoryview(header + _CHECKSUM.pack(digest.intdigest()))
    padding = memoryview(_ZEROS)[: -payload_bytes % _ALIGNMENT]
    return _PREFIX_BYTES + payload_bytes + len(padding), [prefix, *buffers, padding]


def _parse(region: memoryview, path: Path, pile: int) -> Iterator[Slice]:
    place = 0
    while place < len(region):
        payload_place = place + _PREFIX_BYTES
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


def _scratch_error(error: OSError, folder: Path) -> OutputError:
    if error.errno in _FULL:
        free = format_size(shutil.disk_usage(folder).free)
        return DiskFullError(
            f"{folder}: no space left for spilled records ({free} free); "
            "give --temp-dir a folder with more space, or raise --memory to spill less"
        )
    return OutputError(f"{folder}: cannot spill records: {error.strerror}; choose another --temp-dir")
