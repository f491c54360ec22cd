"""The structure of zstd data: frames and blocks, followed without decompressing.

A frame is ``magic(4) descriptor(1) header(1..13) { block header(3) block(n) }* [checksum(4)]``,
a skippable frame is ``magic(4) size(4) bytes(size)``; all numbers are little-endian (RFC 8878).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_FRAME_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_CONTENT_SIZE_OFFSETS = (0, 256, 0, 0)
_RUN_BLOCK = 1


class FrameWalker:
    """Follows the frames of one file, so that a missing end and a costly frame are known.

    The decompressor itself does not tell a finished frame from data that stops in the middle.

    Parameters
    ----------
    name
        The input as messages show it.
    max_window_bytes
        The largest window accepted.
    """

    def __init__(self, name: str, max_window_bytes: int) -> None:
        self._name = name
        self._max_window_bytes = max_window_bytes
        self.window_bytes = 0
        """The largest window so far."""
        self.content_bytes: int | None = 0
        """What the frames so far say that they hold; None if one does not say."""
        self._is_first = True
        self._skipped_bytes = 0
        self._head = bytearray()
        self._head_bytes = 4
        self._parse: Callable[[int], None] = self._parse_magic
        self._descriptor = 0

    @property
    def is_complete(self) -> bool:
        """Whether the data so far ends with a whole frame, or is empty."""
        return not self._head and not self._skipped_bytes and self._parse == self._parse_magic

    def limit_window(self, max_window_bytes: int) -> None:
        """Lower the largest window accepted, also for the frames so far."""
        self._max_window_bytes = min(max_window_bytes, self._max_window_bytes)
        self._check_window()

    def feed(self, data: bytes) -> None:
        """Follow the next bytes of the file.

        Raises
        ------
        InputError
            When they are no zstd data, or a frame needs a dictionary or a window that is too large.
        """
        at, end = 0, len(data)
        while at < end:
            if self._skipped_bytes:
                step = min(self._skipped_bytes, end - at)
                self._skipped_bytes -= step
            else:
                step = min(self._head_bytes - len(self._head), end - at)
                self._head += data[at : at + step]
            at += step
            if len(self._head) == self._head_bytes:
                head, self._head = int.from_bytes(self._head, "little"), bytearray()
                self._parse(head)

    def _expect(self, parse: Callable[[int], None], head_bytes: int) -> None:
        self._parse = parse
        self._head_bytes = head_bytes

    def _parse_magic(self, magic: int) -> None:
        if magic == _FRAME_MAGIC:
            self._expect(self._parse_descriptor, 1)
        elif magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            self._expect(self._parse_skippable_size, 4)
        else:
            problem = "is not zstd data" if self._is_first else "has bytes behind its last zstd frame"
            raise InputError(self._name, problem)
        self._is_first = False

    def _parse_skippable_size(self, size: int) -> None:
        self._skipped_bytes = size
        self._expect(self._parse_magic, 4)

    def _parse_descriptor(self, descriptor: int) -> None:
        self._descriptor = descriptor
        is_single_segment = descriptor >> 5 & 1
        size = _DICTIONARY_ID_BYTES[descriptor & 3] + _CONTENT_SIZE_BYTES[descriptor >> 6]
        # Either a byte for the window, or a content size of one byte at least.
        needs_byte = not is_single_segment or descriptor >> 6 == 0
        self._expect(self._parse_header, size + needs_byte)

    def _parse_header(self, header: int) -> None:
        has_window, content_code = not self._descriptor >> 5 & 1, self._descriptor >> 6
        if has_window:
            exponent, mantissa = header >> 3 & 31, header & 7
            window_bytes = (1 << 10 + exponent) // 8 * (8 + mantissa)
            header >>= 8
        dictionary_bits = 8 * _DICTIONARY_ID_BYTES[self._descriptor & 3]
        dictionary = header & ((1 << dictionary_bits) - 1)
        content_bytes = (header >> dictionary_bits) + _CONTENT_SIZE_OFFSETS[content_code]
        if not has_window:
            window_bytes = content_bytes
        self.window_bytes = max(self.window_bytes, window_bytes)
        self._check_dictionary(dictionary)
        self._check_window()
        self._add_content(None if has_window and not content_code else content_bytes)
        self._expect(self._parse_block, 3)

    def _add_content(self, content_bytes: int | None) -> None:
        is_known = content_bytes is not None and self.content_bytes is not None
        self.content_bytes = (self.content_bytes or 0) + (content_bytes or 0) if is_known else None

    def _check_dictionary(self, dictionary: int) -> None:
        if dictionary:
            raise InputError(
                self._name,
                f"was compressed with a zstd dictionary (number {dictionary}), which the file does not hold",
                remedy="decompress it with zstd -d -D DICTIONARY",
            )

    def _check_window(self) -> None:
        if self.window_bytes > self._max_window_bytes:
            raise InputError(
                self._name,
                f"its zstd window needs {self.window_bytes} bytes of memory, {self._max_window_bytes} are free",
                remedy="raise --memory, or compress it again without --long",
            )

    def _parse_block(self, header: int) -> None:
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        self._skipped_bytes = 1 if kind == _RUN_BLOCK else size
        if is_last:
            self._skipped_bytes += self._descriptor & 4  # the checksum, where the flag of value 4 is set
            self._expect(self._parse_magic, 4)
