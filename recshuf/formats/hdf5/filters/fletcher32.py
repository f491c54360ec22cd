"""The checksum of HDF5's fletcher32 filter: Fletcher's, over big-endian words of 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    Bytes = bytes | bytearray | memoryview

CHECKSUM_BYTES = 4
_MODULUS = 65535
_BLOCK_WORDS = 1 << 15
"""Words summed at once: their sums fit 64 bits, and the words fit the cache of a core."""


def make_checksum(body: Bytes) -> bytes:
    """Return the checksum that HDF5 appends to a chunk of these bytes."""
    # A multiple of the modulus becomes the modulus, except an empty sum.
    folded = [(total - 1) % _MODULUS + 1 if total else 0 for total in _sum_words(body)]
    return np.array(folded, "<u2").tobytes()


def has_right_checksum(stored: Bytes) -> bool:
    """Tell whether bytes end with their checksum."""
    view = memoryview(stored)
    given = np.frombuffer(view[-CHECKSUM_BYTES:], "<u2")
    # Zero has two forms in these sums, 0 and 65535.
    found = [total % _MODULUS for total in _sum_words(view[:-CHECKSUM_BYTES])]
    return found == [int(part) % _MODULUS for part in given]


def _sum_words(body: Bytes) -> tuple[int, int]:
    """Return the sum of all words, and the sum of all partial sums."""
    view = np.frombuffer(body, np.uint8)
    if len(view) % 2:
        view = np.append(view, np.uint8(0))
    words = view.view(">u2")
    total = weighted = 0
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS].astype(np.uint64)
        # A word counts once for itself and once for each later word.
        weights = np.arange(len(block), 0, -1, dtype=np.uint64)
        weighted += total * len(block) + int(block @ weights)
        total += int(block.sum())
    return total, weighted
