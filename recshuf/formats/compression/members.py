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
    ByteReader,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.formats.compression.readers import Readable


_GZIP_BITS = 31
_HEAD_BYTES = 12 + 1024  # of an xz stream and its first block
_XZ_LEAST_BYTES = 1 << 20
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

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)


Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor | _Inflate  # and that of lz4, which has no types


@dataclass(frozen=True, slots=True)
class MemberKind:
    """How members of a compression are told and read."""

    name: str
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
    window_bytes = _XZ_LEAST_BYTES
    while window_bytes < 2 * LARGEST_WINDOW_BYTES:
        try:
            _open_xz(window_bytes).decompress(head, 1)
        except lzma.LZMAError as error:
            if _MEMORY_ERROR not in str(error):
                break  # damaged, as reading it will say
            window_bytes *= 2
        else:
            break
    return window_bytes


def _open_xz(memory_bytes: int) -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=memory_bytes)


_LZ4_MAGICS = (b"\x04\x22\x4d\x18", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
MEMBER_KINDS = {
    "gzip": MemberKind("gzip", (b"\x1f\x8b",), lambda _: _Inflate()),
    "zlib": MemberKind("zlib", (b"\x78",), lambda _: _Inflate(zlib.MAX_WBITS)),
    # 4 bytes for each of 900,000 bytes of a block, and tables.
    "bz2": MemberKind("bz2", (b"BZh",), lambda _: bz2.BZ2Decompressor(), 4 << 20),
    "xz": MemberKind("xz", (b"\xfd7zXZ\x00",), _open_xz, find_window=_find_xz_window),
    # A block of 4 MiB before and after, and the 64 KiB that it refers to.
    "lz4": MemberKind("lz4", _LZ4_MAGICS, lambda _: lz4.frame.LZ4FrameDecompressor(), 9 << 20),
}


class MemberReader(ByteReader):
    """All members of a compression, one after the other, checksums verified; zeros may follow the last."""

    _windowed, _remedy = "data", "with a lower level"

    def __init__(self, name: str, source: Readable, kind: MemberKind) -> None:
        super().__init__(name, source)
        self._members, self._kind = kind, kind.name
        self._member: Decompressor | None = None
        self._member_count = 0
        self._input = b""
        self.window_bytes = kind.window_bytes

    def _read(self, view: memoryview) -> int:
        while (member := self._member or self._begin_member()) is not None:
            data, is_cut = self._decompress(member, min(len(view), COPIED_BYTES))
            if member.eof:
                self._input = member.unused_data or b""
                self._member = None
            if data:
                view[: len(data)] = data
                return len(data)
            if is_cut and not member.eof:
                raise InputError(self._name, TRUNCATED)
        return 0

    def _decompress(self, member: Decompressor, size: int) -> tuple[bytes, bool]:
        data, is_cut = b"", False
        if member.needs_input:
            data, self._input = self._input or self._source.read(CHUNK_BYTES), b""
            is_cut = not data
        try:
            return member.decompress(data, size), is_cut
        except _ERRORS as error:
            if _MEMORY_ERROR in str(error):
                raise self._too_large(f"more than {self.window_bytes:,}") from error
            raise self._damage(error) from error

    def _begin_member(self) -> Decompressor | None:
        """Skip padding and begin a new member; None at the end of the data."""
        self._fill_input(1)
        while self._member_count and (stripped := self._input.lstrip(b"\0")) != self._input:
            self._input = stripped
            self._fill_input(1)
        if not self._input:
            return None
        self._fill_input(_HEAD_BYTES)
        if not any(magic.startswith(self._input[: len(magic)]) for magic in self._members.magics):
            raise self._bad_start("member", is_first=not self._member_count)
        if self._members.find_window is not None:
            self.window_bytes = max(self.window_bytes, self._members.find_window(self._input))
            self._check_window()
        self._member_count += 1
        self._member = self._members.open(self.window_bytes)
        return self._member

    def _fill_input(self, size: int) -> None:
        """Read until `size` bytes wait, or the data ends."""
        while len(self._input) < size and (data := self._source.read(CHUNK_BYTES)):
            self._input += data
