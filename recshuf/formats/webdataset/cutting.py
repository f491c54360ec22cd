"""Cuts the bytes of an archive into blocks of whole records, in order.

Keys that occur twice are found in bounded memory: hashes of 128 bits are sorted in runs, and runs merged range by range. So many
of them are in memory as a run holds; more go to an unnamed file, from which a 256th part of all is loaded at a time.
"""

from __future__ import annotations

import tempfile
import threading
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from recshuf.errors import InputError, OutputError
from recshuf.formats.lines.files import fill
from recshuf.formats.webdataset.members import BLOCK_BYTES, ArchiveError, lower, show, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.webdataset.members import Member


RUN_KEYS = 1 << 17
HASH_BYTES = 16
KEYS_BYTES = 6 * RUN_KEYS * HASH_BYTES
"""Memory of a run, and of sorting it."""
_EDGES = np.arange(1, 256, dtype=np.uint64) << np.uint64(56)


class Block(NamedTuple):
    """Whole records in memory, one after the other."""

    data: NDArray[np.uint8]
    position: int
    """Byte of the archive at which the memory begins."""
    edges: list[int]
    """Begin of each record, and end of the last one."""
    hashes: list[bytes]
    """Those of the keys."""


class RecordCutter:
    """Reads an archive to its end."""

    def __init__(self, name: str, reader: ByteReader, block_bytes: int, limit: int, remedy: str) -> None:
        self._name, self._reader, self._limit, self._remedy = name, reader, limit, remedy
        self._block_bytes = max(BLOCK_BYTES, block_bytes - block_bytes % BLOCK_BYTES)
        self._edges, self._hashes, self._suffixes = [0], list[bytes](), set[bytes]()

    def cut(self) -> Iterator[Block]:
        """Yield blocks of records; raises `InputError` where there are none."""
        data, stop, filled, position, is_ended = np.empty(0, np.uint8), 0, 0, 0, False
        while not is_ended or stop < filled:
            # Batches keep the old memory. A record that it did not hold needs more.
            rest = data[stop:filled]
            data = np.empty(len(rest) + max(self._block_bytes, len(rest) // 2), np.uint8)
            data[: len(rest)] = rest
            filled = len(rest) + fill(self._reader, data.data[len(rest) :])
            position, is_ended = position + stop, filled < len(data)
            self._edges, self._hashes = [0], []
            try:
                stop = self._find_records(data[:filled], is_ended=is_ended)
            except ArchiveError as error:
                place = f"byte {position + error.at}"
                raise InputError(self._name, error.problem, place=place, remedy=error.remedy) from error
            if self._hashes:
                yield Block(data, position, self._edges, self._hashes)

    def _find_records(self, data: NDArray[np.uint8], *, is_ended: bool) -> int:
        """Find whole records up to the first zero block behind them, and return up to where nothing is left to do.

        A member that is of no record stays with the one behind it, wherever that comes to lie. At the end it is put before the
        last one.
        """
        key, last_of_key, last = None, 0, 0
        for member in walk(memoryview(data), 0):  # type: ignore[arg-type] # a buffer, which NumPy does not declare
            if isinstance(member, int):
                self._end_archive(data, key, last_of_key, last)
                if self._hashes:
                    return member
                key, last, self._edges = None, member, [member]
                continue
            if key is not None and member.key not in (None, key):
                self._end_record(key, last_of_key)
                key = None
            if member.end - self._edges[-1] > self._limit:
                problem = f"the record that starts here is longer than {self._limit:,} bytes"
                raise ArchiveError(self._edges[-1], problem, self._remedy)
            if member.end > len(data):
                break
            if member.key is not None:
                self._note_suffix(member, member.key, is_first=key is None)
                key, last_of_key = member.key, member.end
            last = member.end
        if not is_ended:
            return self._edges[-1]
        if data[last:].any():
            raise ArchiveError(last, "is truncated: a member ends behind the end of the archive")
        self._end_archive(data, key, last_of_key, last)
        return len(data)

    def _note_suffix(self, member: Member, key: bytes, *, is_first: bool) -> None:
        suffix = lower(member.suffix)
        if is_first:
            self._suffixes.clear()
        elif suffix in self._suffixes:
            problem = f"the record {show(key)} has the suffix {show(suffix)} twice, which readers refuse"
            raise ArchiveError(member.start, problem, "rename one of the members")
        self._suffixes.add(suffix)

    def _end_record(self, key: bytes, at: int) -> None:
        self._edges.append(at)
        self._hashes.append(hash_key(key))

    def _end_archive(self, data: NDArray[np.uint8], key: bytes | None, last_of_key: int, last: int) -> None:
        if key is not None:
            begin = self._edges[-1]
            if last > last_of_key:
                data[begin:last] = np.roll(data[begin:last], last - last_of_key)
            self._end_record(key, last)
        elif last > self._edges[-1]:
            raise ArchiveError(
                self._edges[-1], "holds only members that readers leave out", "leave the archive out"
            )


def hash_key(key: bytes) -> bytes:
    return xxhash.xxh3_128_digest(key)


class KeySet:
    """Hashes of keys of which none may occur twice. `add` may be called from many threads."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where its file is, if it needs one; None for that of the system."""
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._edges: list[NDArray[np.int64]] = []
        """Where each range of each run begins in the file, in hashes."""

    def add(self, hashes: Iterable[bytes]) -> bytes | None:
        """Add some; return one of which another is known already, if that shows at once."""
        with self._lock:
            self._held += hashes
            return self._end_run() if len(self._held) >= RUN_KEYS else None

    def finish(self) -> bytes | None:
        """Return one that occurs twice among all, and release the file; None if there is none."""
        twice = self._end_run()
        ranges = range(len(_EDGES) + 1 if len(self._edges) > 1 and twice is None else 0)
        twice = next((found for one in ranges if (found := self._merge(one)) is not None), twice)
        self.close()
        return twice

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._edges = None, []

    def __del__(self) -> None:
        self.close()

    def _end_run(self) -> bytes | None:
        """Sort a run, and write it to the file, which only a second one needs."""
        keys = np.frombuffer(b"".join(self._held), np.uint64).reshape(-1, 2)
        self._held = []
        run, twice = _sort(keys)
        if len(run) < RUN_KEYS and self._file is None:
            return twice
        start = self._edges[-1][-1] if self._edges else 0
        self._edges.append(start + np.concatenate([[0], np.searchsorted(run[:, 0], _EDGES), [len(run)]]))
        try:
            self._file = self._file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - `close` does
            self._file.write(run.tobytes())
            self._file.flush()
        except OSError as error:
            problem = (
                f"{self.folder or tempfile.gettempdir()}: keys cannot be compared in a file: {error.strerror}"
            )
            raise OutputError(
                f"{problem}; make room there" + ("" if self.folder else ", or set TMPDIR")
            ) from error
        return twice

    def _merge(self, number: int) -> bytes | None:
        assert self._file is not None  # noqa: S101 - there are runs
        pieces = []
        for edges in self._edges:
            begin, end = (HASH_BYTES * edges[number : number + 2]).tolist()
            self._file.seek(begin)
            pieces.append(self._file.read(end - begin))
        return _sort(np.frombuffer(b"".join(pieces), np.uint64).reshape(-1, 2))[1]


def _sort(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], bytes | None]:
    """Return pairs of words in order, and a pair that occurs twice as bytes."""
    keys = keys[np.argsort(keys[:, 0])]
    same = np.flatnonzero(keys[1:, 0] == keys[:-1, 0])
    if same.size:  # equal keys, or hardly ever half of two hashes
        near = keys[np.unique([same, same + 1])]
        near = near[np.lexsort((near[:, 1], near[:, 0]))]
        twice = np.flatnonzero((near[1:] == near[:-1]).all(axis=1))
        if twice.size:
            return keys, near[twice[0]].tobytes()
    return keys, None
