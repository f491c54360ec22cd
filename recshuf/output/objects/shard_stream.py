"""A shard that is uploaded while it is written, in parts that are never on a disk."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import xxhash

from recshuf.output.transaction import WrittenBytes
from recshuf.storage.writing.bucket import MOST_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from _typeshed import ReadableBuffer

    from recshuf.storage.writing.bucket import Part

_EQUAL_PARTS = MOST_PARTS // 2
_DOUBLED_PARTS = 1000


def choose_next_bytes(number: int, part_bytes: int) -> int:
    """Return the size of a part by its number from 1; the size of the shard is not known.

    The later parts of a shard that is much larger than expected double in size from time to time.

    >>> choose_next_bytes(5000, 8), choose_next_bytes(5001, 8), choose_next_bytes(6001, 8)
    (8, 16, 32)
    """
    late = max(0, number - 1 - _EQUAL_PARTS + _DOUBLED_PARTS)
    return int(part_bytes << late // _DOUBLED_PARTS)


class ShardStream(io.RawIOBase):
    """Takes the bytes of a shard; one thread appends to it.

    Parameters
    ----------
    send
        Called with this stream and each full part; it may wait.
    """

    def __init__(self, key: str, part_bytes: int, send: Callable[[ShardStream, bytes], None]) -> None:
        super().__init__()
        self.key = key
        self.upload_id: str | None = None
        """The upload; None before its begin."""
        self.parts: list[Future[Part]] = []
        """Parts that are or were sent."""
        self._part_bytes = part_bytes
        self._send = send
        self._part = io.BytesIO()
        self._byte_count = 0
        self._checksum = xxhash.xxh3_128()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Append all bytes, and send the parts that are full."""
        view = memoryview(data).cast("B")
        self._checksum.update(view)
        self._byte_count += len(view)
        place = 0
        while place < len(view):
            most = choose_next_bytes(len(self.parts) + 1, self._part_bytes)
            place += self._part.write(view[place : place + most - self._part.tell()])
            if self._part.tell() == most:
                self._send(self, self.take())
        return place

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are in no part yet."""
        return self._part.tell()

    def take(self) -> bytes:
        """Return the bytes that are in no part yet, and forget them."""
        part, self._part = self._part, io.BytesIO()
        return part.getvalue()

    @property
    def written(self) -> WrittenBytes:
        """What was written."""
        return WrittenBytes(self._byte_count, self._checksum.hexdigest())
