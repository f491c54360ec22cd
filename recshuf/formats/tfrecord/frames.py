"""Frames of TFRecord: where they end, and their checksums.

A frame::

    |length, 8 bytes|CRC of these, 4|payload ......... |CRC of the payload, 4|

A CRC is CRC32C, rotated and raised ("masked"). Where a frame ends stands in its length alone, so that one thread walks from
frame to frame; any thread checks payloads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError, UsageError
from recshuf.formats.lines.files import CutFragment, fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions, RecordLimit


HEAD_BYTES, TAIL_BYTES = 12, 4
FRAME_BYTES = HEAD_BYTES + TAIL_BYTES
_LENGTH = struct.Struct("<Q")
_MASK = 0xA282EAD8
_POLYNOMIAL = np.uint32(0x82F63B78)
_GROWTH_PART = 4


def _make_tables() -> NDArray[np.uint32]:
    """Return, for each distance of a byte to the end of eight bytes and each byte, what it adds to their CRC."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, _POLYNOMIAL, np.uint32(0))
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> np.uint32(8)))
    return np.stack(tables)


_TABLES = _make_tables()


def mask(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRCs as files hold them."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK)


def checksum_lengths(lengths: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the masked CRCs of lengths, shape ``(n, 8)``.

    >>> hex(checksum_lengths(np.array([[5, 0, 0, 0, 0, 0, 0, 0]], np.uint8))[0])
    '0x3e04b2ea'
    """
    crcs = np.zeros(len(lengths), np.uint32)
    for index in range(8):
        flipped = lengths[:, index] ^ (0xFF if index < 4 else 0)
        crcs ^= _TABLES[7 - index][flipped]
    return mask(~crcs)


def find_checksum() -> Callable[[bytes], int]:
    """Return the function for the CRC of a payload."""
    try:
        from google_crc32c import value
    except ImportError as error:
        raise UsageError(
            "TFRecord needs the package google-crc32c; install it with pip install 'recshuf[tfrecord]'"
        ) from error
    checksum: Callable[[bytes], int] = value
    return checksum


def checksum_payloads(data: bytes, begins: Positions, ends: Positions) -> NDArray[np.uint32]:
    """Return the masked CRCs of payloads; one call for each is the cheapest way there is."""
    checksum = find_checksum()
    bounds = zip(begins.tolist(), ends.tolist(), strict=True)
    crcs = (checksum(data[begin:end]) for begin, end in bounds)
    return mask(np.fromiter(crcs, np.uint32, begins.size))


def find_bad_payloads(data: Bytes, offsets: Positions) -> Positions:
    """Return the ascending positions, among frames, of those with another payload than was written."""
    tails = np.lib.stride_tricks.sliding_window_view(data, TAIL_BYTES)[offsets[1:] - TAIL_BYTES]
    written = np.ascontiguousarray(tails).view("<u4")[:, 0]
    found = checksum_payloads(data.tobytes(), offsets[:-1] + HEAD_BYTES, offsets[1:] - TAIL_BYTES)
    return np.flatnonzero(written != found)


def walk(data: Bytes) -> tuple[Positions, int]:
    """Return the ends of whole frames, and the first byte of the frame whose length is damaged, -1 if none is.

    The lengths of frames that are not whole are looked at, too.
    """
    bounds, end, view, unpack = [0], 0, data.data, _LENGTH.unpack_from
    add, last = bounds.append, data.size - FRAME_BYTES
    while end <= last:
        end += unpack(view, end)[0] + FRAME_BYTES
        add(end)
    if end > data.size:
        bounds.pop()
    begins = ends = np.array(bounds, np.int64)
    if bounds[-1] + HEAD_BYTES > data.size:
        begins = begins[:-1]
    if begins.size:
        heads = np.lib.stride_tricks.sliding_window_view(data, HEAD_BYTES)[begins]
        written = np.ascontiguousarray(heads[:, 8:]).view("<u4")[:, 0]
        wrong = np.flatnonzero(written != checksum_lengths(heads[:, :8]))
        if wrong.size:
            return ends[1 : wrong[0] + 1], int(begins[wrong[0]])
    return ends[1:], -1


class FrameFragment(CutFragment):
    """Frames, whose payloads it compares with their checksums."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        offsets = np.append(0, self._ends)
        bad = find_bad_payloads(self._data, offsets)
        if bad.size:
            raise refuse(
                self._limit,
                self._position + int(offsets[bad[0]]),
                "the payload of the record that starts here is damaged: its checksum differs",
                "--on-bad-record quarantine:FILE sets such records aside",
            )
        yield from super().batches()


def refuse(limit: RecordLimit, position: int, problem: str, remedy: str) -> InputError:
    return InputError(limit.name, problem, place=limit.name_place(position), remedy=remedy)


class FrameReader:
    """Cuts the bytes of a reader into blocks of whole frames."""

    def __init__(self, reader: ByteReader, limit: RecordLimit, block_bytes: int) -> None:
        self._reader = reader
        self._limit = limit
        self._block_bytes = block_bytes
        self._position = 0

    def read_blocks(self) -> Iterator[tuple[Bytes, Positions, int]]:
        """Yield blocks, the ends of their frames, and their positions in the input."""
        rest = np.empty(0, np.uint8)
        while True:
            data = np.empty(max(self._block_bytes, 2 * rest.size, FRAME_BYTES), np.uint8)
            data[: rest.size] = rest
            filled = rest.size + fill(self._reader, data.data[rest.size :])
            ends = self._walk(data[:filled])
            while not ends.size and filled == data.size:
                if int.from_bytes(data[:8].tobytes(), "little") + FRAME_BYTES > self._limit.max_bytes:
                    raise self._limit.exceeded(self._position)
                data.resize(data.size + max(self._block_bytes, data.size // _GROWTH_PART), refcheck=False)
                filled += fill(self._reader, data.data[filled:])
                ends = self._walk(data[:filled])
            stop = int(ends[-1]) if ends.size else 0
            if stop:
                # A small block must not keep a large buffer alive.
                yield data[:stop].copy() if stop < data.size // 2 else data[:stop], ends, self._position
            rest = data[stop:filled].copy()
            self._position += stop
            if filled < data.size:
                break
        if rest.size:
            raise refuse(
                self._limit,
                self._position,
                "the record that starts here is cut off: the file is truncated",
                "copy or write the file again",
            )

    def _walk(self, data: Bytes) -> Positions:
        ends, damaged = walk(data)
        if damaged >= 0:
            raise refuse(
                self._limit,
                self._position + damaged,
                "the length of the record that starts here is damaged: its checksum differs",
                "copy or write the file again, as nothing tells where the next record begins",
            )
        return ends
