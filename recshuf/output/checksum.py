"""Checksums of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from pathlib import Path

_READ_BYTES = 128 << 10


def find_checksum(path: Path) -> str:
    """Return the xxh3 checksum of a file, 128 bits as hexadecimal digits."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
