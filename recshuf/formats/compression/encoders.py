"""Encoders of compressed output. Data is cut into pieces of a fixed size, each encoded on its own.

The encoded piece depends only on its bytes and those before it. So pieces are encoded in parallel, and the file is
the same for any number of threads.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import lz4.frame
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable


_PIECE_BYTES = 2 << 20
_ZSTD_PIECE_BYTES = 8 << 20
_GZIP_MAGIC = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
_GZIP_UNIX = b"\x03"
_GZIP_LAST_BLOCK = b"\x03\x00"
_DEFLATE_WINDOW_BYTES = 1 << 15
_DEFLATE_STATE_BYTES = 1 << 19
_DEFLATE_MEMORY_LEVEL = 8
_XZ_STATE_BYTES = 12 * _PIECE_BYTES + (1 << 20)


class PieceEncoder(ABC):
    """Encodes one file, piece by piece.

    One thread calls `prepare` for each piece in order; any thread calls the returned task, once.
    """

    piece_bytes: int
    """Size of every piece but the last."""
    piece_memory: int
    """Peak memory of encoding one piece, in bytes, the piece included."""

    def begin(self) -> bytes:
        return b""

    @abstractmethod
    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        """Return the task that encodes the next piece; `piece` must not change before it is done."""

    @abstractmethod
    def end(self) -> bytes:
        """Return the bytes after all pieces."""


class MemberEncoder(PieceEncoder):
    """One member (or frame) with a checksum for each piece; one empty member for an empty file.

    `compress` returns the member of a piece; a compressor takes `state_bytes` of memory.
    """

    def __init__(
        self, compress: Callable[[memoryview], bytes], state_bytes: int, piece_bytes: int = _PIECE_BYTES
    ) -> None:
        self.piece_bytes = piece_bytes
        self.piece_memory = 2 * piece_bytes + state_bytes
        self._compress = compress
        self._is_empty = True

    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        self._is_empty = False
        return lambda: self._compress(piece)

    def end(self) -> bytes:
        return self._compress(memoryview(b"")) if self._is_empty else b""


def encode_zstd(level: int) -> MemberEncoder:
    """Return the encoder of zstd frames, which state their size."""

    def compress(piece: memoryview) -> bytes:
        compressor = zstandard.ZstdCompressor(level, write_checksum=True, write_content_size=True)
        return compressor.compress(piece)

    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=_ZSTD_PIECE_BYTES)
    return MemberEncoder(compress, parameters.estimated_compression_context_size(), _ZSTD_PIECE_BYTES)


def encode_bz2(level: int) -> MemberEncoder:
    return MemberEncoder(lambda piece: bz2.compress(piece, level), 8 << 20)


def encode_xz(level: int) -> MemberEncoder:
    """Return the encoder of xz. Dictionaries are no larger than a piece, as those of the lowest levels are anyway."""
    filters: list[dict[str, int]] = [{"id": lzma.FILTER_LZMA2, "preset": level}]
    if level > 1:
        filters[0]["dict_size"] = _PIECE_BYTES
    return MemberEncoder(
        lambda piece: lzma.compress(piece, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters), _XZ_STATE_BYTES
    )


def encode_lz4(level: int) -> MemberEncoder:
    """Return the encoder of lz4 frames, which state their size."""
    return MemberEncoder(
        lambda piece: lz4.frame.compress(
            piece, compression_level=level, block_size=lz4.frame.BLOCKSIZE_MAX1MB, content_checksum=True
        ),
        1 << 20,
    )


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
        extra_flags = {1: b"\x04", 9: b"\x02"}.get(self._level, b"\x00")
        return _GZIP_MAGIC + extra_flags + _GZIP_UNIX

    def prepare(self, piece: memoryview) -> Callable[[], bytes]:
        before = self._before
        self._before = bytes(piece[-_DEFLATE_WINDOW_BYTES:])
        self._checksum = zlib.crc32(piece, self._checksum)
        self._size += len(piece)
        return lambda: self._encode(piece, before)

    def end(self) -> bytes:
        size = self._size & 0xFFFFFFFF
        return _GZIP_LAST_BLOCK + self._checksum.to_bytes(4, "little") + size.to_bytes(4, "little")

    def _encode(self, piece: memoryview, before: bytes) -> bytes:
        strategy = zlib.Z_DEFAULT_STRATEGY
        deflate = zlib.compressobj(
            self._level, zlib.DEFLATED, -zlib.MAX_WBITS, _DEFLATE_MEMORY_LEVEL, strategy, before
        )
        return deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)


ENCODERS: dict[str, Callable[[int], PieceEncoder]] = {
    "zstd": encode_zstd, "gzip": GzipEncoder, "bz2": encode_bz2, "xz": encode_xz, "lz4": encode_lz4
}  # fmt: skip
