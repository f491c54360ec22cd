"""What the message of the first record batch of an Arrow file says, without its values.

https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc describes messages. Their
metadata are tables of FlatBuffers: a table begins with the distance back to a list of the places of its fields.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.interfaces import open_raw

if TYPE_CHECKING:
    from io import RawIOBase

    from numpy.typing import NDArray

    from recshuf.interfaces import InputFile


_CONTINUES = 0xFFFFFFFF  # comes before the length of metadata since Arrow 0.15
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3  # fields of a message
_RECORD_BATCH = 3  # a header type
_BUFFERS = 2  # a field of a record batch
_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
_FAULTS = (struct.error, IndexError, ValueError, OverflowError, MemoryError, OSError)


class FirstBatch(NamedTuple):
    """The first record batch; without bytes if there is none."""

    codec: str = "none"
    """Of its first buffer."""
    stored_bytes: int = 0
    body_bytes: int = 0
    """Of its buffers, unpacked, and of the dictionaries before it, as stored."""


def find_first_batch(file: InputFile, *, is_file: bool) -> FirstBatch:
    """Return what the first record batch says of itself; of what is damaged nothing, since reading it tells."""
    with open_raw(file) as opened, suppress(*_FAULTS):
        size, dictionary_bytes = opened.seek(0, os.SEEK_END), 0
        opened.seek(8 if is_file else 0)
        while opened.tell() < size:
            length = _unpack("<I", opened.read(4))
            content = opened.read(_unpack("<I", opened.read(4)) if length == _CONTINUES else length)
            message = _unpack("<I", content)
            place = _find(content, message, _BODY_BYTES)
            body_bytes = _unpack("<Q", content, place) if place else 0
            if _unpack("<B", content, _find(content, message, _HEADER_TYPE)) == _RECORD_BATCH:
                batch = _follow(content, _find(content, message, _HEADER))
                buffers = _follow(content, _find(content, batch, _BUFFERS))
                ranges = np.frombuffer(content, "<i8", 2 * _unpack("<I", content, buffers), buffers + 4)
                if opened.tell() + body_bytes > size:
                    break
                codec, unpacked_bytes = _measure(opened, ranges.reshape(-1, 2))
                return FirstBatch(codec, len(content) + body_bytes, unpacked_bytes + dictionary_bytes)
            dictionary_bytes += body_bytes
            opened.seek(body_bytes, os.SEEK_CUR)
    return FirstBatch()


def _measure(opened: RawIOBase, ranges: NDArray[np.int64]) -> tuple[str, int]:
    """Return codec and unpacked bytes of the body that begins where the file is, given its buffers as ranges, shape ``(n, 2)``."""
    body, codec, unpacked_bytes = opened.tell(), "", 0
    for offset, size in ranges[ranges[:, 1] > 0].tolist():
        opened.seek(body + offset)
        head = opened.read(12)
        codec = codec or _CODECS.get(head[8:], "none")
        if codec == "none":
            return codec, int(ranges[:, 1].sum())
        # A packed buffer begins with its length; less than zero stands before one that would not get shorter.
        unpacked_bytes += max(_unpack("<q", head), 0) or size
    return codec or "none", unpacked_bytes


def _find(content: bytes, table: int, field: int) -> int:
    """Return the place of a field of a table; 0 if it has its default."""
    places = table - _unpack("<i", content, table)
    has_place = 4 + 2 * field < _unpack("<H", content, places)
    offset = _unpack("<H", content, places + 4 + 2 * field) if has_place else 0
    return table + offset if offset else 0


def _follow(content: bytes, place: int) -> int:
    """Return the place of the table or list that a field refers to."""
    return place + _unpack("<I", content, place)


def _unpack(kind: str, content: bytes, place: int = 0) -> int:
    return int(struct.unpack_from(kind, content, place)[0])
