"""Piles: where records wait between the passes. The only code that touches scratch files.

A pile set is one file of M regions, one for each pile, each with room for what is expected to fall into it and
six standard deviations more. A region holds slices one behind the other:

    input (4) | records (4) | first row (8) | payload bytes (8) | xxh3 of these and the payload (8) | payload | 0-7 zeros

A slice is what one batch contributes to one pile, its records in their old order; its first row is that of the
batch, so that slices sorted by (input, first row) hold a pile's records in the order of the inputs. A region
that is full goes on in an extent at the end of the file.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.errors import DiskFullError, OutputError, PileError
from recshuf.memory import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_HEADER = struct.Struct("<IIQQ")
_CHECKSUM = struct.Struct("<Q")
PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
"""What a slice has before its payload."""
EXTENT_BYTES = 64 << 10
"""Least room that a region gets when it must go on elsewhere."""
_ALIGNMENT = 8
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


@dataclass(frozen=True, slots=True)
class Origin:
    """The batch that a slice comes from."""

    input_index: int
    first_row: int


class Scratch:
    """The folder of a run's pile sets: made when the first file is, private to the user, removed by `remove`.

    Parameters
    ----------
    shown
        The folder to name in messages, where `parent` itself is hidden and passing.
    """

    def __init__(self, parent: Path, shown: Path | None = None) -> None:
        self.parent = parent
        self._shown = shown or parent
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
                raise self.explain(error) from error

    def explain(self, error: OSError) -> OutputError:
        """Return the error to raise when writing to a scratch file failed."""
        if error.errno in _FULL:
            if error.errno == errno.EFBIG:
                return DiskFullError(
                    f"{self._shown}: a scratch file may not grow this large; raise ulimit -f"
                )
            free = format_size(shutil.disk_usage(self.parent).free)
            return DiskFullError(
                f"{self._shown}: no space left for spilled records ({free} free); "
                "give --temp-dir a folder with more space, or raise --memory to spill less"
            )
        return OutputError(
            f"{self._shown}: cannot spill records: {error.strerror}; choose another --temp-dir"
        )

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
        places = self._reserve(np.asarray(piles, np.int64), sizes)
        try:
            for place, (size, buffers) in zip(places.tolist(), framed, strict=True):
                _write_fully(self._descriptor, buffers, place, size)
        except OSError as error:
            raise self._scratch.explain(error) from error
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
        capacity = max(size, used // 2, EXTENT_BYTES)
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
