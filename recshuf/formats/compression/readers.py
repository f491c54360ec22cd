"""Readers of plain and of zstd bytes. Memory is bounded by about one chunk, whatever the data claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import zstandard

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


HEAD_BYTES = 18
"""Bytes that `recognise_compression` and the head of a zstd frame need."""
CHUNK_BYTES = 1 << 17
COPIED_BYTES = 1 << 20
"""Bytes decompressed and then copied at once, which bounds the second copy."""
LARGEST_WINDOW_BYTES = 1 << 31
TRUNCATED = "is truncated: its compressed data ends in the middle"
_SKIPPABLE_HEAD_BYTES = 8
_BLOCK_HEAD_BYTES = 3
_RUN_BLOCK = 1
_CHECKSUM_BYTES = 4


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
    _kind, _windowed, _remedy = "", "", ""
    """The compression, what of it takes memory, and how it takes less."""

    def __init__(self, name: str, source: Readable) -> None:
        self._name = name
        self._source = source
        self._put_back = b""
        self._max_window_bytes = LARGEST_WINDOW_BYTES

    def limit_window(self, max_window_bytes: int) -> None:
        """Accept no zstd window or xz dictionary that is larger: an `InputError`, from `readinto` for later frames."""
        self._max_window_bytes = min(max_window_bytes, self._max_window_bytes)
        self._check_window()

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
        data = self._source.read(min(len(view), COPIED_BYTES))
        view[: len(data)] = data
        return len(data)

    def _check_window(self) -> None:
        if self.window_bytes > self._max_window_bytes:
            raise self._too_large(f"{self.window_bytes:,}")

    def _too_large(self, needed: str) -> InputError:
        problem = f"its {self._kind} {self._windowed} needs {needed} bytes of memory, {self._max_window_bytes:,} are free"
        return InputError(self._name, problem, remedy=f"raise --memory, or compress it again {self._remedy}")

    def _damage(self, said: object) -> InputError:
        return InputError(self._name, f"its {self._kind} data is damaged ({said})")

    def _bad_start(self, unit: str, *, is_first: bool) -> InputError:
        problem = (
            f"is not {self._kind} data" if is_first else f"has bytes behind its last {self._kind} {unit}"
        )
        return InputError(self._name, problem)


class _FrameInput:
    """Zstd data of a file; a decompressor reads one frame and no byte after it.

    ::

        frame:  head(5..18) { block head(3) block(n) }* [checksum(4)]     (RFC 8878)
    """

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._waiting = memoryview(b"")
        self._parts: Iterator[memoryview] = iter(())
        self.is_cut = False
        """Whether the data ended too early."""

    def begin_frame(self, head_bytes: int, *, has_checksum: bool) -> None:
        """Let `read` go through the next frame."""
        self._parts = self._list_parts(head_bytes, has_checksum)

    def read(self, _size: int) -> memoryview | bytes:
        """Return the next part of the frame, nothing at its end."""
        return next(self._parts, b"")

    def skip(self, size: int) -> None:
        while size and not self.is_cut:
            size -= len(self._take(min(size, CHUNK_BYTES)))

    def peek(self, size: int) -> memoryview:
        """Return the next `size` bytes, or fewer at the end of the data."""
        pieces: list[bytes | memoryview] = [self._waiting]
        missing = size - len(self._waiting)
        while missing > 0 and (data := self._source.read(CHUNK_BYTES)):
            missing -= len(data)
            pieces.append(data)
        if len(pieces) > 1:
            self._waiting = memoryview(b"".join(pieces))
        return self._waiting[:size]

    def _take(self, size: int) -> memoryview:
        part = self.peek(size)
        self._waiting = self._waiting[size:]
        self.is_cut = len(part) < size
        return part

    def _list_parts(self, head_bytes: int, has_checksum: bool) -> Iterator[memoryview]:
        yield self._take(head_bytes)
        is_last = False
        while not is_last and not self.is_cut:
            head = int.from_bytes(self.peek(_BLOCK_HEAD_BYTES), "little")
            is_last, is_run, size = bool(head & 1), head >> 1 & 3 == _RUN_BLOCK, head >> 3
            yield self._take(_BLOCK_HEAD_BYTES + (1 if is_run else size))
        if has_checksum:
            yield self._take(_CHECKSUM_BYTES)


class ZstdReader(ByteReader):
    """All frames of zstd data, one after the other; checksums are verified where frames have them."""

    _kind, _windowed, _remedy = "zstd", "window", "without --long"

    def __init__(self, name: str, source: Readable) -> None:
        super().__init__(name, source)
        self._input = _FrameInput(source)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionReader | None = None
        self._stated_bytes = 0
        self._is_first = True

    def _read(self, view: memoryview) -> int:
        while True:
            self._frame = self._frame or self._begin_frame()
            if self._frame is None:
                return 0
            try:
                count = self._frame.readinto(view)
            except zstandard.ZstdError as error:
                raise self._damage(error) from error
            if count:
                return count
            self._check_end(self._frame.tell())
            self._frame = None

    def _begin_frame(self) -> zstandard.ZstdDecompressionReader | None:
        """Return a reader of the next frame that is not skippable; None at the end of the data."""
        while head := bytes(self._input.peek(HEAD_BYTES)):
            try:
                parameters = zstandard.get_frame_parameters(head)
            except zstandard.ZstdError as error:
                raise self._bad_head(error) from error
            self._is_first = False
            self._stated_bytes = parameters.content_size
            if head.startswith(zstandard.FRAME_HEADER):
                self._check_dictionary(parameters.dict_id)
                self.window_bytes = max(self.window_bytes, parameters.window_size)
                self._check_window()
                head_bytes = zstandard.frame_header_size(head)
                self._input.begin_frame(head_bytes, has_checksum=parameters.has_checksum)
                return self._decompressor.stream_reader(self._input)  # type: ignore[arg-type] # it calls read alone
            self._input.skip(_SKIPPABLE_HEAD_BYTES + parameters.content_size)
            self._check_end(parameters.content_size)
        return None

    def _bad_head(self, error: zstandard.ZstdError) -> InputError:
        if "not enough data" in str(error):
            return InputError(self._name, TRUNCATED)
        if "Unknown frame descriptor" not in str(error):
            return self._damage(error)
        return self._bad_start("frame", is_first=self._is_first)

    def _check_dictionary(self, dictionary: int) -> None:
        if dictionary:
            raise InputError(
                self._name,
                f"was compressed with a zstd dictionary (number {dictionary}), which the file does not hold",
                remedy="decompress it with zstd -d -D DICTIONARY",
            )

    def _check_end(self, held_bytes: int) -> None:
        if self._input.is_cut:
            raise InputError(self._name, TRUNCATED)
        # The library does not compare the two where a frame ends with an empty block.
        if self._stated_bytes not in (zstandard.CONTENTSIZE_UNKNOWN, held_bytes):
            raise self._damage(f"a frame holds {held_bytes} bytes, its head says {self._stated_bytes}")
