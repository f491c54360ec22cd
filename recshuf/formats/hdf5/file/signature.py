"""The signature that HDF5 begins with, behind a user block or at the start of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_BLOCK = 512


def list_places(size: int) -> Iterator[int]:
    """Yield the byte offsets where the signature of a file of so many bytes may be.

    >>> list(list_places(3000))
    [0, 512, 1024, 2048]
    """
    place = 0
    while place < size:
        yield place
        place = 2 * place or _FIRST_BLOCK
