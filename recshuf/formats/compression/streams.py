"""What decompression reads from, and what it gives."""

from __future__ import annotations

from typing import Protocol


class ByteReader(Protocol):
    """Bytes in order, decompressed."""

    @property
    def window_bytes(self) -> int:
        """Memory that the data so far needed beside a few hundred KiB."""
        ...

    def limit_window(self, max_window_bytes: int) -> None:
        """Accept no zstd window that is larger.

        Raises
        ------
        InputError
            When a frame has had one; from `readinto`, when one comes.
        """
        ...

    def readinto(self, view: memoryview) -> int:
        """Fill a part of `view` and return its size in bytes; 0 at the end of the data."""
        ...

    def close(self) -> None:
        """Release what is open. Idempotent."""
        ...


class Readable(Protocol):
    """Bytes in order, as they lie in the file."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Release what is open. Idempotent."""
        ...
