"""Cuts the bytes of an archive into blocks of whole records, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.lines.files import fill
from recshuf.formats.webdataset.keys import hash_key
from recshuf.formats.webdataset.members import BLOCK_BYTES, ArchiveError, lower, show, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.webdataset.members import Member


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
    """Reads an archive to its end.

    Parameters
    ----------
    limit
        The longest record accepted.
    remedy
        What to do about a longer one.
    """

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
