"""Readers of plain and compressed bytes. Memory is bounded by about one chunk, whatever the data claims."""

from __future__ import annotations

import bz2
import lzma
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import zstandard

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HEAD_BYTES = 18
"""Bytes that `recognise_compression` and the head of a zstd frame need."""
_CHUNK_BYTES = 1 << 17
_COPIED_BYTES = 1 << 20
"""Bytes decompressed and then copied at once, which bounds the second copy."""
_LARGEST_WINDOW_BYTES = 1 << 31
_TRUNCATED = "is truncated: its compressed data ends in the middle"
_SKIPPABLE_HEAD_BYTES = 8
_BLOCK_HEAD_BYTES = 3
_RUN_BLOCK = 1
_CHECKSUM_BYTES = 4
_GZIP_BITS = 31
_XZ_HEAD_BYTES = 12 + 1024  # of a stream and its first block
_MEMBER_ERRORS = (zlib.error, lzma.LZMAError, OSError, RuntimeError)
_MEMORY_ERROR = "Memory usage limit exceeded"


class Readable(Protocol):
    """Bytes of a file in order."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Release what is open. Idempotent."""
        ...


class ByteReader:
    """The bytes of a source in order, called `name` in messages; of this class itself, as they are."""

    window_bytes = 0
    """Memory of the window of the data so far, in bytes; a few hundred KiB come on top."""

    def __init__(self, name: str, source: Readable) -> None:
        self._name = name
        self._source = source
        self._put_back = b""

    def limit_window(self, max_window_bytes: int) -> None:
        """Accept no zstd window or xz dictionary that is larger: an `InputError`, from `readinto` for later frames."""

    def readinto(self, view: memoryview) -> int:
        """Fill a part of `view` and return its size in bytes; 0 at the end of the data."""
        if not self._put_back:
            return self._read(view)
        count = min(len(self._put_back), len(view))
        view[:count], self._put_back = self._put_back[:count], self._put_back[count:]
        return count

    def put_back(self, data: bytes) -> None:
        """Let `readinto` return the last bytes that were read once more."""
        self._put_back = data + self._put_back

    def close(self) -> None:
        """Release what is open. Idempotent."""
        self._source.close()

    def _read(self, view: memoryview) -> int:
        data = self._source.read(min(len(view), _COPIED_BYTES))
        view[: len(data)] = data
        return len(data)


class PackedReader(ByteReader):
    """The decompressed bytes of frames or members, one after the other."""

    _windowed, _remedy, _unit = "data", "with a lower level", "member"
    """What takes memory, how it takes less, and what the data consists of."""

    def __init__(self, name: str, source: Readable, kind: str) -> None:
        super().__init__(name, source)
        self._kind = kind
        self._waiting: bytes | memoryview = b""
        self._count = 0
        """Number of frames or members that have begun."""
        self._max_window_bytes = _LARGEST_WINDOW_BYTES

    def limit_window(self, max_window_bytes: int) -> None:
        self._max_window_bytes = min(max_window_bytes, self._max_window_bytes)
        self._need_window(0)

    def _peek(self, size: int) -> bytes | memoryview:
        """Return the next `size` bytes of the source, or fewer at its end."""
        pieces = [self._waiting]
        missing = size - len(self._waiting)
        while missing > 0 and (data := self._source.read(_CHUNK_BYTES)):
            missing -= len(data)
            pieces.append(data)
        if len(pieces) > 1:
            self._waiting = memoryview(b"".join(pieces))
        return self._waiting[:size]

    def _need_window(self, window_bytes: int) -> None:
        self.window_bytes = max(self.window_bytes, window_bytes)
        if self.window_bytes > self._max_window_bytes:
            raise self._too_large(f"{self.window_bytes:,}")

    def _too_large(self, needed: str) -> InputError:
        problem = f"its {self._kind} {self._windowed} needs {needed} bytes of memory, {self._max_window_bytes:,} are free"
        return InputError(self._name, problem, remedy=f"raise --memory, or compress it again {self._remedy}")

    def _damage(self, said: object) -> InputError:
        return InputError(self._name, f"its {self._kind} data is damaged ({said})")

    def _bad_start(self) -> InputError:
        is_first = f"is not {self._kind} data"
        behind = f"has bytes behind its last {self._kind} {self._unit}"
        return InputError(self._name, behind if self._count else is_first)


class ZstdReader(PackedReader):
    """All frames of zstd data; checksums are verified where frames have them.

    A decompressor reads one frame and no byte after it::

        frame:  head(5..18) { block head(3) block(n) }* [checksum(4)]     (RFC 8878)
    """

    _windowed, _remedy, _unit = "window", "without --long", "frame"

    def __init__(self, name: str, source: Readable) -> None:
        super().__init__(name, source, "zstd")
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionReader | None = None
        self._is_cut = False
        """Whether the data ended too early."""
        self._stated_bytes = 0

    def _read(self, view: memoryview) -> int:
        while (frame := self._frame or self._begin_frame()) is not None:
            try:
                count = frame.readinto(view)
            except zstandard.ZstdError as error:
                raise self._damage(error) from error
            if count:
                return count
            self._check_end(frame.tell())
            self._frame = None
        return 0

    def _begin_frame(self) -> zstandard.ZstdDecompressionReader | None:
        """Return a reader of the next frame that is not skippable; None at the end of the data."""
        while head := bytes(self._peek(HEAD_BYTES)):
            try:
                parameters = zstandard.get_frame_parameters(head)
            except zstandard.ZstdError as error:
                if "not enough data" in str(error):
                    raise InputError(self._name, _TRUNCATED) from error
                is_start = "Unknown frame descriptor" not in str(error)
                raise (self._damage(error) if is_start else self._bad_start()) from error
            self._count += 1
            self._stated_bytes = parameters.content_size
            if head.startswith(zstandard.FRAME_HEADER):
                if parameters.dict_id:
                    problem = f"was compressed with a zstd dictionary (number {parameters.dict_id}), which the file does not hold"
                    raise InputError(self._name, problem, remedy="decompress it with zstd -d -D DICTIONARY")
                self._need_window(parameters.window_size)
                parts = self._list_parts(zstandard.frame_header_size(head), parameters.has_checksum)
                source = SimpleNamespace(read=lambda _, parts=parts: next(parts, b""))
                self._frame = self._decompressor.stream_reader(source)  # type: ignore[arg-type] # it calls read alone
                return self._frame
            missing = _SKIPPABLE_HEAD_BYTES + self._stated_bytes
            while missing and not self._is_cut:
                missing -= len(self._take(min(missing, _CHUNK_BYTES)))
            self._check_end(self._stated_bytes)
        return None

    def _list_parts(self, head_bytes: int, has_checksum: bool) -> Iterator[bytes | memoryview]:
        """Yield the parts of the next frame."""
        yield self._take(head_bytes)
        is_last = False
        while not is_last and not self._is_cut:
            head = int.from_bytes(self._peek(_BLOCK_HEAD_BYTES), "little")
            is_last, is_run, size = bool(head & 1), head >> 1 & 3 == _RUN_BLOCK, head >> 3
            yield self._take(_BLOCK_HEAD_BYTES + (1 if is_run else size))
        if has_checksum:
            yield self._take(_CHECKSUM_BYTES)

    def _take(self, size: int) -> bytes | memoryview:
        part = self._peek(size)
        self._waiting = self._waiting[size:]
        self._is_cut = len(part) < size
        return part

    def _check_end(self, held_bytes: int) -> None:
        if self._is_cut:
            raise InputError(self._name, _TRUNCATED)
        # The library does not compare the two where a frame ends with an empty block.
        if self._stated_bytes not in (zstandard.CONTENTSIZE_UNKNOWN, held_bytes):
            raise self._damage(f"a frame holds {held_bytes} bytes, its head says {self._stated_bytes}")


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


class _Members(NamedTuple):
    """How members of a compression are told and read."""

    magics: tuple[bytes, ...]
    """Bytes of which every member begins with one."""
    open: Callable[[int], Decompressor]
    """Returns the decompressor of a member that needs at most so much memory, in bytes."""
    window_bytes: int = 0
    """Memory of a decompressor; of xz, each member tells it."""


def _find_xz_window(head: bytes) -> int:
    """Return the memory for a member with this head: the least power of two that liblzma accepts."""
    for power in range(20, 32):
        try:
            _open_xz(1 << power).decompress(head, 1)
        except lzma.LZMAError as error:
            if _MEMORY_ERROR in str(error):
                continue
        return 1 << power  # also of damaged data, as reading it will say
    return 2 * _LARGEST_WINDOW_BYTES


def _open_xz(memory_bytes: int) -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=memory_bytes)


def _open_lz4(_: int) -> Any:
    import lz4.frame  # takes 9 ms

    return lz4.frame.LZ4FrameDecompressor()


_LZ4_MAGICS = (b"\x04\x22\x4d\x18", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
_MEMBERS = {
    "gzip": _Members((b"\x1f\x8b",), lambda _: _Inflate()),
    "zlib": _Members((b"\x78",), lambda _: _Inflate(zlib.MAX_WBITS)),
    # 4 bytes for each of 900,000 bytes of a block, and tables.
    "bz2": _Members((b"BZh",), lambda _: bz2.BZ2Decompressor(), 4 << 20),
    "xz": _Members((b"\xfd7zXZ\x00",), _open_xz),
    # A block of 4 MiB before and after, and the 64 KiB that it refers to.
    "lz4": _Members(_LZ4_MAGICS, _open_lz4, 9 << 20),
}


class MemberReader(PackedReader):
    """All members of a compression, checksums verified; zeros may follow the last."""

    def __init__(self, name: str, source: Readable, kind: str) -> None:
        super().__init__(name, source, kind)
        self._members = _MEMBERS[kind]
        self._member: Decompressor | None = None
        self.window_bytes = self._members.window_bytes

    def _read(self, view: memoryview) -> int:
        while (member := self._member or self._begin_member()) is not None:
            given: bytes | memoryview = b""
            if member.needs_input:
                given, self._waiting = self._waiting or self._source.read(_CHUNK_BYTES), b""
            is_cut = member.needs_input and not given
            try:
                data = member.decompress(given, min(len(view), _COPIED_BYTES))
            except _MEMBER_ERRORS as error:
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
                raise InputError(self._name, _TRUNCATED)
        return 0

    def _begin_member(self) -> Decompressor | None:
        """Skip padding and begin a new member; None at the end of the data."""
        while self._count and self._peek(1) == b"\0":
            self._waiting = bytes(self._waiting).lstrip(b"\0")
        head = bytes(self._peek(_XZ_HEAD_BYTES))
        if not head:
            return None
        if not any(magic.startswith(head[: len(magic)]) for magic in self._members.magics):
            raise self._bad_start()
        if self._kind == "xz":
            self._need_window(_find_xz_window(head))
        self._count += 1
        self._member = self._members.open(self.window_bytes)
        return self._member
