"""Checksums of files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from pathlib import Path


def find_checksum(path: Path) -> str:
    """Return the xxh3 checksum of a file, 128 bits as hexadecimal digits."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
