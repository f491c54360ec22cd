"""The checksum of HDF5's fletcher32 filter: Fletcher's, over big-endian words of 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = bytes | bytearray | memoryview

CHECKSUM_BYTES = 4
_MODULUS = 65535
_ROW_WORDS = 128
"""Words that are summed up, weighted, without overflow of 32 bits."""


def make_checksum(body: Bytes) -> bytes:
    """Return what HDF5 puts behind a chunk of these bytes."""
    # A sum that is a multiple of the modulus comes out as the modulus, unless nothing was added to it.
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
    """Return the sum of all words, and that of these sums after each word; the latter up to the modulus."""
    words = _view_words(body)
    sums = words.sum(axis=1, dtype=np.uint64)
    # A word counts as often as there are words from it on: inside its row, and once for each word of later rows.
    weighted = (words * np.arange(_ROW_WORDS, 0, -1, dtype=np.uint32)).sum(axis=1, dtype=np.uint64)
    rows_after = np.arange(len(words) - 1, -1, -1, dtype=np.uint64)
    later = rows_after * np.uint64(_ROW_WORDS) % np.uint64(_MODULUS)
    return int(sums.sum()), int((weighted + sums * later).sum())


def _view_words(body: Bytes) -> NDArray[np.uint32]:
    """Return words in rows of `_ROW_WORDS`, after zeros, which change no sum."""
    view = np.frombuffer(body, np.uint8)
    if len(view) % 2:
        view = np.append(view, np.uint8(0))
    given = view.view(">u2")
    words = np.zeros(-(-len(given) // _ROW_WORDS) * _ROW_WORDS, np.uint32)
    words[len(words) - len(given) :] = given
    return words.reshape(-1, _ROW_WORDS)
