"""Pile sets: files in which records wait between the passes.

A pile set is one file of R regions. A region holds the slices of one pile. Its capacity is the expected size and six
standard deviations more.

A slice holds the records of one batch for one region, in input order. It carries the first row of the batch: slices sorted
by (input, first row) hold a pile's records in the order of the inputs. A full region continues in an extent at the end of
the file. A complete set ends in a `Footer`, by which it can be read again.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError, DamagedSetError, PileError
from recshuf.piles.footer import TRAILER_BYTES, Footer, format_checksum, parse_footer, read_footer
from recshuf.piles.set_folder import RUN_REMEDY, LocalPileFile
from recshuf.piles.slices import ALIGNMENT, PREFIX_BYTES, SliceFormat
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.piles.footer import SetDescription
    from recshuf.piles.set_folder import PileFile, SetFolder
    from recshuf.piles.slices import Origin, Slice
    from recshuf.records.digests import Digests
    from recshuf.system.buffers import Allocate


EXTENT_BYTES = 64 << 10
"""Least capacity of an extent."""


class RegionSpace:
    """Allocates space in the file to regions, for each of which so many bytes are reserved."""

    def __init__(self, region_count: int, capacity: int) -> None:
        capacity += -capacity % ALIGNMENT
        self.end = region_count * capacity
        self._capacities = [capacity] * region_count
        self._starts = [region * capacity for region in range(region_count)]
        self._used = [0] * region_count
        self._full: dict[int, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def reserve(self, region: int, size: int) -> int:
        """Return the byte offset of a new slice in the file."""
        with self._lock:
            if self._used[region] + size > self._capacities[region]:
                self._extend(region, size)
            offset = self._starts[region] + self._used[region]
            self._used[region] += size
            return offset

    def _extend(self, region: int, size: int) -> None:
        used = self._used[region]
        if used:
            self._full.setdefault(region, []).append((self._starts[region], used))
        capacity = max(size, used // 2, EXTENT_BYTES)
        self._starts[region], self._capacities[region], self._used[region] = self.end, capacity, 0
        self.end += capacity

    def parts(self, region: int) -> list[tuple[int, int]]:
        own = (self._starts[region], self._used[region])
        return [*self._full.get(region, []), *([own] if own[1] else [])]

    def to_array(self) -> NDArray[np.int64]:
        """Return the parts of all regions, shape ``(n, 3)``: region, start and bytes."""
        regions = sorted({*self._full, *np.flatnonzero(self._used).tolist()})
        rows = [(region, *part) for region in regions for part in self.parts(region)]
        return np.array(rows, np.int64).reshape(-1, 3)


class WrittenRegions:
    """The parts of regions in a complete file: region, start and bytes of each, shape ``(n, 3)``, by region."""

    def __init__(self, region_count: int, parts: NDArray[np.int64]) -> None:
        self._parts = parts[:, 1:]
        self._bounds = np.searchsorted(parts[:, 0], np.arange(region_count + 1))

    def parts(self, region: int) -> list[tuple[int, int]]:
        first, end = self._bounds[region], self._bounds[region + 1]
        return [(start, used) for start, used in self._parts[first:end].tolist()]


_SHORT_BYTES = 32 << 10
"""Shorter slices take less time to copy than the call that writes them."""
_MOVED_BYTES = 1 << 20
"""Memory to move what is in a file."""
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
_REMEDIES = {errno.EMFILE: "raise ulimit -n", errno.EACCES: "make it readable"}
"""What to do if a file cannot be opened that is there, by the number of the error."""


class PileSet:
    """One file of regions, whose slices are all written. Used by many threads.

    `sums` are the records in each region, and bytes of its slices before compression, shape ``(2, R)``.
    """

    def __init__(
        self,
        file: PileFile,
        regions: WrittenRegions | RegionSpace,
        compression: str,
        sums: NDArray[np.int64],
    ) -> None:
        self._file = file
        self._regions = regions
        self._format = SliceFormat(compression)
        self._counts: NDArray[np.int64] = sums[0]
        self.byte_counts: NDArray[np.int64] = sums[1]
        """Bytes of each region's slices before compression, shape ``(R,)``."""
        self._fetched = 0
        """First region that was not fetched."""

    @classmethod
    def open(
        cls, folder: SetFolder, name: str, *, reads_all: bool, remedy: str = "", footer: bytes = b""
    ) -> tuple[PileSet, Footer]:
        """Open a complete set.

        Parameters
        ----------
        reads_all
            Whether every slice is verified now. A set that was not synced may lack some.
        remedy
            What to do if the file or its footer is damaged, for the message; else the caller adds it.
        footer
            The bytes of its footer, if they are known, so that they are not read.
        """
        try:
            file = folder.reopen(name)
        except OSError as error:
            problem = f"{error.filename or name}: cannot be opened: {error.strerror}"
            remedy = _REMEDIES.get(error.errno or 0, remedy)
            raise PileError(f"{problem}; {remedy}" if remedy else problem) from error
        try:
            parsed = parse_footer(footer or read_footer(file), file.name)
            file.forget()
            regions = WrittenRegions(parsed.sums.shape[1], parsed.parts)
            found = cls(file, regions, parsed.compression, parsed.sums)
            if reads_all:
                found.check()
        except PileError as error:
            file.close()
            if remedy and not isinstance(error, DamagedSetError):
                raise PileError(f"{error}; {remedy}") from error
            raise
        return found, parsed

    def read_through(self, wrap: Callable[[PileFile], PileFile]) -> None:
        """Read from what a function makes of the file, from now on."""
        self._file = wrap(self._file)

    def check(self) -> None:
        for region, count in enumerate(self._counts.tolist()):
            if sum(piece.record_count for piece in self.read(region)) != count:
                raise self._damaged(region)

    def part_sizes(self, region: int) -> list[int]:
        """Return the bytes of each part of a region in the file, as `read` allocates them."""
        return [used for _, used in self._regions.parts(region)]

    def read(self, region: int, memory: Allocate = allocate) -> Iterator[Slice]:
        """Yield the slices of a region, in no particular order; they may be views of the memory."""
        for start, used in self._regions.parts(region):
            yield from self._parse(region, start, used, memory)

    def _parse(self, region: int, start: int, used: int, memory: Allocate) -> list[Slice]:
        for is_last in (False, True):
            content = self._file.read(start, used, memory)
            try:
                return self._format.parse(content)
            except PileError as error:
                if not self._file.distrust(start) or is_last:
                    raise self._damaged(region) from error
        raise self._damaged(region)

    def _damaged(self, region: int) -> DamagedSetError:
        problem = f"region {region} does not read back as it was written: the disk or its memory is faulty"
        return DamagedSetError(self._file.name, problem, self._file.remedy)

    def expect(self, regions: Iterable[int]) -> None:
        """Note that some regions will be read, which the system, or the file, reads ahead."""
        self._file.expect([part for region in regions for part in self._regions.parts(region)])

    def forget(self) -> None:
        """Note that none of them will be read."""
        self._file.forget()

    def fetch(self, region: int, most_bytes: int) -> None:
        """Prepare to read a region next, and those behind it up to so many bytes, unless it has been done."""
        if region < self._fetched:
            return
        ends = np.cumsum(self.byte_counts[region:])
        self._fetched = region + max(1, int(np.searchsorted(ends, most_bytes, side="right")))
        self.expect(range(region, self._fetched))

    def close(self) -> None:
        """Close the file; an unnamed file is then deleted. Idempotent."""
        self._file.close()


class GrowingPileSet(PileSet):
    """A pile set to which many threads write slices; it is read when all are written.

    Parameters
    ----------
    capacity
        Bytes reserved for each region.
    variable_columns
        Numbers of the columns whose values vary in length.
    name
        File name, if a later run may adopt the set.
    """

    def __init__(
        self,
        folder: SetFolder,
        region_count: int,
        capacity: int,
        compression: str,
        variable_columns: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        descriptor, path = folder.create(name)
        self._folder, self._descriptor = folder, descriptor
        self._space = RegionSpace(region_count, capacity)
        file = LocalPileFile(descriptor, path, folder.release, RUN_REMEDY)
        super().__init__(file, self._space, compression, np.zeros((2, region_count), np.int64))
        self._lengths: NDArray[np.int64] = np.zeros((len(variable_columns), region_count), np.int64)
        """Sum of the lengths in each of these columns, for each region, shape ``(C, R)``."""
        self._variable_columns = variable_columns
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while short slices are written, because concurrent short calls compete for the interpreter lock."""

    def write(
        self,
        regions: list[int],
        slices: list[list[memoryview]],
        counts: list[int],
        origin: Origin,
        lengths: NDArray[np.int64],
    ) -> int:
        """Append one slice to each of these regions and return the bytes written.

        `lengths` are the sums of lengths in each of the variable columns, for each slice, shape ``(C, n)``.
        """
        sizes = [PREFIX_BYTES + sum(map(len, buffers)) for buffers in slices]
        written = 0
        try:
            with self._turn if sum(sizes) < len(sizes) * _SHORT_BYTES else nullcontext():
                for region, buffers, count in zip(regions, slices, counts, strict=True):
                    # One at a time: a whole compressed batch would exceed the memory limit.
                    framed = self._format.frame(buffers, count, origin)
                    size = sum(map(len, framed))
                    _write_fully(self._descriptor, framed, self._space.reserve(region, size), size)
                    written += size
        except OSError as error:
            raise self._folder.explain(error) from error
        with self._lock:
            self._counts[regions] += counts
            self.byte_counts[regions] += sizes
            self._lengths[:, regions] += lengths
        return written

    def compress(self, compression: str) -> None:
        """Compress what is written from now on; a set that is not compressed may have slices that are."""
        self._format = SliceFormat(compression)

    def seal(
        self,
        digests: Digests,
        wanted_count: int,
        description: SetDescription,
        schema: pa.Schema,
        *,
        closes_gaps: bool = False,
    ) -> tuple[int, str]:
        """Write the footer of a set that is complete, and return the bytes of the file, and the checksum of the footer.

        Parameters
        ----------
        digests
            Those of the records added to each pile.
        wanted_count
            So many first piles must be whole. Later ones may have been dropped.
        closes_gaps
            Whether what is reserved and not used is left out. The set can then be read anew only.
        """
        given = digests.counts
        wrong = np.flatnonzero(self._counts[:wanted_count] != given[:wanted_count])
        if wrong.size:
            region = int(wrong[0])
            raise CheckError(
                f"scatter: {self._file.name}: region {region}: {self._counts[region]:,} records spilled, "
                f"{given[region]:,} given; run again, and report this as a fault"
            )
        parts, end = self._space.to_array(), self._space.end
        try:
            if closes_gaps:
                end = _close_gaps(self._descriptor, parts)
            footer = Footer(
                description,
                schema,
                self._format.compression,
                parts,
                np.stack((self._counts, self.byte_counts)),
                self._variable_columns,
                self._lengths,
                digests,
            )
            content = footer.pack(end)
            _write_fully(self._descriptor, [content], end, len(content))
            os.ftruncate(self._descriptor, end + len(content))
        except OSError as error:
            raise self._folder.explain(error) from error
        return end + len(content), format_checksum(content[-TRAILER_BYTES:])

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._folder.explain(error) from error


def _close_gaps(descriptor: int, parts: NDArray[np.int64]) -> int:
    """Move the parts of a file, shape ``(n, 3)``, so that each follows the one before, and return where the last one ends."""
    end = 0
    for index in np.argsort(parts[:, 1]).tolist():
        start, size = parts[index, 1:].tolist()
        for done in range(0, size if start > end else 0, _MOVED_BYTES):
            content = os.pread(descriptor, min(_MOVED_BYTES, size - done), start + done)
            _write_fully(descriptor, [content], end + done, len(content))
        parts[index, 1] = end
        end += size
    return end


def _write_fully(descriptor: int, buffers: Sequence[bytes | memoryview], offset: int, size: int) -> None:
    if len(buffers) > _MOST_BUFFERS:
        buffers = [b"".join(buffers)]
    written = os.pwritev(descriptor, buffers, offset)
    if written < size:
        rest = memoryview(b"".join(buffers))
        while written < size:
            written += os.pwrite(descriptor, rest[written:], offset + written)
