"""Protocols of compressed and decompressed byte streams."""

from __future__ import annotations

from typing import Protocol

CHUNK_BYTES = 1 << 17
"""Compressed bytes read at once."""
COPIED_BYTES = 1 << 20
"""Bytes decompressed and then copied at once, which bounds the second copy."""
LARGEST_WINDOW_BYTES = 1 << 31
TRUNCATED = "is truncated: its compressed data ends in the middle"


class ByteReader(Protocol):
    """Bytes in order, decompressed."""

    @property
    def window_bytes(self) -> int:
        """Memory of the window of the data so far, in bytes; a few hundred KiB come on top."""
        ...

    def limit_window(self, max_window_bytes: int) -> None:
        """Accept no zstd window or xz dictionary that is larger.

        Raises
        ------
        InputError
            When a frame so far has a larger one; from `readinto`, when a later one has.
        """
        ...

    def readinto(self, view: memoryview) -> int:
        """Fill a part of `view` and return its size in bytes; 0 at the end of the data."""
        ...

    def close(self) -> None:
        """Release what is open. Idempotent."""
        ...


class Readable(Protocol):
    """Bytes of a file in order."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Release what is open. Idempotent."""
        ...
