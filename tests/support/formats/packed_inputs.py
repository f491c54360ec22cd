"""Ways in which the inputs of a conformance suite are compressed: suffix and function, one for each input."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable

    Pack = tuple[str, Callable[[bytes], bytes]]


def compress_frames(content: bytes) -> bytes:
    """Return three frames, so that a reader that stops after the first is found out."""
    third = len(content) // 3
    parts = (content[:third], content[third : 2 * third], content[2 * third :])
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in parts)


PLAIN_FIRST: tuple[Pack, ...] = (("", bytes), (".gz", gzip.compress), (".zst", compress_frames))
FRAMES_FIRST: tuple[Pack, ...] = (PLAIN_FIRST[2], PLAIN_FIRST[0], PLAIN_FIRST[1])
