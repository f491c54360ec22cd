"""Compressed data that consists of members, one after the other: gzip, bz2, xz and lz4 frames."""

from __future__ import annotations

import bz2
import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lz4.frame

from recshuf.errors import InputError
from recshuf.formats.compression.readers import (
    CHUNK_BYTES,
    COPIED_BYTES,
    LARGEST_WINDOW_BYTES,
    TRUNCATED,
    PackedReader,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.formats.compression.readers import Readable


_GZIP_BITS = 31
_HEAD_BYTES = 12 + 1024  # of an xz stream and its first block
_ERRORS = (zlib.error, lzma.LZMAError, OSError, RuntimeError)
_MEMORY_ERROR = "Memory usage limit exceeded"


class _Inflate:
    """`zlib.decompressobj` with the methods of the other decompressors."""

    def __init__(self, window_bits: int = _GZIP_BITS) -> None:
        self._member = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        """Whether more input is needed for more output; input that is left is kept."""
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)


Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor | _Inflate  # and that of lz4, which has no types


@dataclass(frozen=True, slots=True)
class MemberKind:
    """How members of a compression are told and read."""

    magics: tuple[bytes, ...]
    """Bytes of which every member begins with one."""
    open: Callable[[int], Decompressor]
    """Returns the decompressor of a member that needs at most so much memory, in bytes."""
    window_bytes: int = 0
    """Memory of a decompressor."""
    find_window: Callable[[bytes], int] | None = None
    """Returns the memory of a decompressor from the first `_HEAD_BYTES` of the member, where members differ."""


def _find_xz_window(head: bytes) -> int:
    """Return the memory for a member with this head: the least power of two that liblzma accepts."""
    for power in range(20, 32):
        try:
            _open_xz(1 << power).decompress(head, 1)
        except lzma.LZMAError as error:
            if _MEMORY_ERROR in str(error):
                continue
        return 1 << power  # also of damaged data, as reading it will say
    return 2 * LARGEST_WINDOW_BYTES


def _open_xz(memory_bytes: int) -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=memory_bytes)


_LZ4_MAGICS = (b"\x04\x22\x4d\x18", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
MEMBER_KINDS = {
    "gzip": MemberKind((b"\x1f\x8b",), lambda _: _Inflate()),
    "zlib": MemberKind((b"\x78",), lambda _: _Inflate(zlib.MAX_WBITS)),
    # 4 bytes for each of 900,000 bytes of a block, and tables.
    "bz2": MemberKind((b"BZh",), lambda _: bz2.BZ2Decompressor(), 4 << 20),
    "xz": MemberKind((b"\xfd7zXZ\x00",), _open_xz, find_window=_find_xz_window),
    # A block of 4 MiB before and after, and the 64 KiB that it refers to.
    "lz4": MemberKind(_LZ4_MAGICS, lambda _: lz4.frame.LZ4FrameDecompressor(), 9 << 20),
}


class MemberReader(PackedReader):
    """All members of a compression, checksums verified; zeros may follow the last."""

    def __init__(self, name: str, source: Readable, kind: str) -> None:
        super().__init__(name, source, kind)
        self._members = MEMBER_KINDS[kind]
        self._member: Decompressor | None = None
        self.window_bytes = self._members.window_bytes

    def _read(self, view: memoryview) -> int:
        while (member := self._member or self._begin_member()) is not None:
            given: bytes | memoryview = b""
            if member.needs_input:
                given, self._waiting = self._waiting or self._source.read(CHUNK_BYTES), b""
            is_cut = member.needs_input and not given
            try:
                data = member.decompress(given, min(len(view), COPIED_BYTES))
            except _ERRORS as error:
                if _MEMORY_ERROR in str(error):
                    raise self._too_large(f"more than {self.window_bytes:,}") from error
                raise self._damage(error) from error
            if member.eof:
                self._waiting = member.unused_data or b""
                self._member = None
            if data:
                view[: len(data)] = data
                return len(data)
            if is_cut and not member.eof:
                raise InputError(self._name, TRUNCATED)
        return 0

    def _begin_member(self) -> Decompressor | None:
        """Skip padding and begin a new member; None at the end of the data."""
        while self._count and self._peek(1) == b"\0":
            self._waiting = bytes(self._waiting).lstrip(b"\0")
        head = bytes(self._peek(_HEAD_BYTES))
        if not head:
            return None
        if not any(magic.startswith(head[: len(magic)]) for magic in self._members.magics):
            raise self._bad_start()
        if self._members.find_window is not None:
            self._need_window(self._members.find_window(head))
        self._count += 1
        self._member = self._members.open(self.window_bytes)
        return self._member
