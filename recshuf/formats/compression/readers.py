"""Readers of compressed bytes. They hold little more than one chunk, whatever the data claims to be."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import zstandard

from recshuf.errors import InputError
from recshuf.formats.compression.zstd_frames import FrameWalker

if TYPE_CHECKING:
    from recshuf.formats.compression.streams import Readable

_CHUNK_BYTES = 1 << 17
_COPIED_BYTES = 1 << 20  # what is read as bytes and then copied, so that it is not large twice
_LARGEST_WINDOW_BYTES = 1 << 31
_GZIP_BITS = 31
_GZIP_FIRST_BYTE = 0x1F
_TRUNCATED = "is truncated: its compressed data ends in the middle"


class PlainReader:
    """Bytes that are not compressed."""

    window_bytes = 0

    def __init__(self, source: Readable) -> None:
        self._source = source

    def readinto(self, view: memoryview) -> int:
        """See `ByteReader`."""
        data = self._source.read(min(len(view), _COPIED_BYTES))
        view[: len(data)] = data
        return len(data)

    def limit_window(self, max_window_bytes: int) -> None:
        """See `ByteReader`; there is no window."""

    def close(self) -> None:
        """See `ByteReader`."""
        self._source.close()


class _WalkedSource:
    """Passes bytes on to the decompressor, each chunk looked through by a walker before."""

    def __init__(self, source: Readable, walker: FrameWalker) -> None:
        self._source = source
        self._walker = walker
        self._is_ended = False

    @property
    def is_complete(self) -> bool:
        """Whether all of the file has been taken, and it ends with a whole frame."""
        return self._is_ended and self._walker.is_complete

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._is_ended = not data
        self._walker.feed(data)
        return data


class ZstdReader:
    """All frames of zstd data, one after the other; checksums are verified where frames have them."""

    def __init__(self, name: str, source: Readable) -> None:
        self._name = name
        self._source = source
        self._walker = FrameWalker(name, _LARGEST_WINDOW_BYTES)
        self._walked = _WalkedSource(source, self._walker)
        self._size = 0
        self._stream = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES).stream_reader(
            self._walked,  # type: ignore[arg-type] # it calls read alone
            read_size=_CHUNK_BYTES,
            read_across_frames=True,
            closefd=False,
        )

    @property
    def window_bytes(self) -> int:
        """See `ByteReader`."""
        return self._walker.window_bytes

    def limit_window(self, max_window_bytes: int) -> None:
        """See `ByteReader`."""
        self._walker.limit_window(max_window_bytes)

    def readinto(self, view: memoryview) -> int:
        """See `ByteReader`."""
        try:
            count = self._stream.readinto(view)
        except zstandard.ZstdError as error:
            raise InputError(self._name, f"its zstd data is damaged ({error})") from error
        self._size += count
        if not count:
            self._check_end()
        return count

    def _check_end(self) -> None:
        if not self._walked.is_complete:
            raise InputError(self._name, _TRUNCATED)
        # The library does not compare the two where a frame ends with an empty block.
        expected = self._walker.content_bytes
        if expected is not None and expected != self._size:
            raise InputError(
                self._name,
                f"its zstd data is damaged (it holds {self._size} bytes, its frames say {expected})",
            )

    def close(self) -> None:
        """See `ByteReader`."""
        self._stream.close()  # type: ignore[no-untyped-call] # zstandard leaves it untyped
        self._source.close()


class GzipReader:
    """All members of gzip data, one after the other, checksums verified; zeros may follow the last."""

    window_bytes = 0

    def __init__(self, name: str, source: Readable) -> None:
        self._name = name
        self._source = source
        self._member = zlib.decompressobj(_GZIP_BITS)
        self._is_between_members = True
        self._member_count = 0
        self._input = b""
        self._is_input_ended = False

    def readinto(self, view: memoryview) -> int:
        """See `ByteReader`."""
        while True:
            self._fill_input()
            if self._is_between_members and not self._begin_member():
                return 0
            data = self._inflate(min(len(view), _COPIED_BYTES))
            if data:
                view[: len(data)] = data
                return len(data)
            if self._is_input_ended and not self._input and not self._is_between_members:
                raise InputError(self._name, _TRUNCATED)

    def _fill_input(self) -> None:
        if not self._input and not self._is_input_ended:
            self._input = self._source.read(_CHUNK_BYTES)
            self._is_input_ended = not self._input

    def _begin_member(self) -> bool:
        """Pass over padding and begin a new member; False at the end of the data."""
        while self._member_count and (stripped := self._input.lstrip(b"\0")) != self._input:
            self._input = stripped
            self._fill_input()
        if not self._input:
            return False
        if self._input[0] != _GZIP_FIRST_BYTE:
            raise self._not_gzip()
        self._member = zlib.decompressobj(_GZIP_BITS)
        self._is_between_members = False
        return True

    def _inflate(self, size: int) -> bytes:
        try:
            data = self._member.decompress(self._input, size)
        except zlib.error as error:
            if "incorrect header check" in str(error):
                raise self._not_gzip() from error
            raise InputError(self._name, f"its gzip data is damaged ({error})") from error
        self._input = self._member.unconsumed_tail
        if self._member.eof:
            self._input = self._member.unused_data
            self._is_between_members = True
            self._member_count += 1
        return data

    def _not_gzip(self) -> InputError:
        is_behind = self._member_count > 0
        return InputError(
            self._name, "has bytes behind its last gzip member" if is_behind else "is not gzip data"
        )

    def limit_window(self, max_window_bytes: int) -> None:
        """See `ByteReader`; there is no window."""

    def close(self) -> None:
        """See `ByteReader`."""
        self._source.close()
