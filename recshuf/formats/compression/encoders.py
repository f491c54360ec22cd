"""Encoders of compressed output. Data is cut into pieces of a fixed size, each encoded on its own.

The encoded piece depends only on its bytes and those before it. So pieces are encoded in parallel, and the file is
the same for any number of threads.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable

_GZIP_MAGIC = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
_GZIP_UNIX = b"\x03"
_GZIP_LAST_BLOCK = b"\x03\x00"
_DEFLATE_WINDOW_BYTES = 1 << 15
_DEFLATE_STATE_BYTES = 1 << 19
_DEFLATE_MEMORY_LEVEL = 8


class PieceEncoder(ABC):
    """Encodes one file, piece by piece.

    One thread calls `prepare` for each piece in order; any thread calls the returned task, once.
    """

    piece_bytes: int
    """Size of every piece but the last."""
    piece_memory: int
    """Peak memory of encoding one piece, in bytes, the piece included."""

    @abstractmethod
    def begin(self) -> bytes:
        """Return the bytes before all pieces."""

    @abstractmethod
    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        """Return the task that encodes the next piece; `piece` must not change before it is done."""

    @abstractmethod
    def end(self) -> bytes:
        """Return the bytes after all pieces."""


class ZstdEncoder(PieceEncoder):
    """One frame for each piece, with checksum and content size; one empty frame for an empty file."""

    piece_bytes = 8 << 20

    def __init__(self, level: int) -> None:
        self._level = level
        self._is_empty = True
        parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=self.piece_bytes)
        self.piece_memory = 2 * self.piece_bytes + parameters.estimated_compression_context_size()

    def begin(self) -> bytes:
        """See `PieceEncoder`."""
        return b""

    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        """See `PieceEncoder`."""
        self._is_empty = False
        return lambda: self._encode(piece)

    def end(self) -> bytes:
        """See `PieceEncoder`."""
        return self._encode(memoryview(b"")) if self._is_empty else b""

    def _encode(self, piece: memoryview) -> bytes:
        compressor = zstandard.ZstdCompressor(self._level, write_checksum=True, write_content_size=True)
        return compressor.compress(piece)


class GzipEncoder(PieceEncoder):
    """One member for the whole file, without time and name.

    Each piece is a run of deflate blocks that ends at a byte, with the bytes before it as dictionary.
    """

    piece_bytes = 1 << 20

    def __init__(self, level: int) -> None:
        self._level = level
        self.piece_memory = 3 * self.piece_bytes + _DEFLATE_STATE_BYTES
        self._before = b""
        self._checksum = zlib.crc32(b"")
        self._size = 0

    def begin(self) -> bytes:
        """See `PieceEncoder`."""
        extra_flags = {1: b"\x04", 9: b"\x02"}.get(self._level, b"\x00")
        return _GZIP_MAGIC + extra_flags + _GZIP_UNIX

    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        """See `PieceEncoder`."""
        before = self._before
        self._before = bytes(piece[-_DEFLATE_WINDOW_BYTES:])
        self._checksum = zlib.crc32(piece, self._checksum)
        self._size += len(piece)
        return lambda: self._encode(piece, before)

    def end(self) -> bytes:
        """See `PieceEncoder`."""
        size = self._size & 0xFFFFFFFF
        return _GZIP_LAST_BLOCK + self._checksum.to_bytes(4, "little") + size.to_bytes(4, "little")

    def _encode(self, piece: memoryview, before: bytes) -> bytes:
        strategy = zlib.Z_DEFAULT_STRATEGY
        deflate = zlib.compressobj(
            self._level, zlib.DEFLATED, -zlib.MAX_WBITS, _DEFLATE_MEMORY_LEVEL, strategy, before
        )
        return deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)
