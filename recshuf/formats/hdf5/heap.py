r"""Checks of global heaps, which hold variable-length values, before HDF5 follows references to them.

HDF5 walks through the objects of a heap when it loads one. If zeros replaced its contents, as after a lost sector, the
walk does not end, and no signal stops it.

A heap begins with its signature and size. The object with index 0 is the free space up to the end::

    GCOL\1\0\0\0 | size || index, count, 0 | size | value, up to 8 bytes || ... || 0, 0, 0 | size | anything
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.interfaces import Handle

    _Numbers = NDArray[np.int64]

_SIGNATURE = b"GCOL\x01\0\0\0"
_WORD = 8
_HEADER_WORDS = 2
_SMALLEST_BYTES = 4096
SMALL_FILE_BYTES = 4 << 20
"""Largest file whose heaps are all checked when it is opened."""
_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HeapValues:
    """Variable-length values, as addresses of heaps and indices in them."""

    places: _Numbers
    """Address of the heap of each value in the file."""
    indexes: _Numbers
    sizes: _Numbers
    """Bytes of each value."""

    def __getitem__(self, part: slice) -> HeapValues:
        return HeapValues(self.places[part], self.indexes[part], self.sizes[part])

    def sorted(self) -> HeapValues:
        """Return the values sorted by heap and index."""
        rises = np.diff(self.places)
        if ((rises > 0) | ((rises == 0) & (np.diff(self.indexes) > 0))).all():
            return self
        order = np.lexsort((self.indexes, self.places))
        return HeapValues(self.places[order], self.indexes[order], self.sizes[order])

    def windows(self) -> Iterator[HeapValues]:
        """Yield the values in groups whose heaps are close together."""
        cuts = np.flatnonzero(np.diff(self.places // _WINDOW_BYTES)) + 1
        bounds = [0, *cuts.tolist(), len(self.places)]
        for start, stop in pairwise(bounds):
            yield self[start:stop]


def check_small_file(file: Handle, file_bytes: int) -> None:
    """Raise `ValueError` if a heap of a small file is damaged.

    This is the only way to check heaps of attributes: HDF5 does not expose their references.
    """
    if file_bytes > SMALL_FILE_BYTES:
        return
    content = file.read_at(0, file_bytes)
    place = content.find(_SIGNATURE)
    while place >= 0:
        size = int.from_bytes(content[place + _WORD : place + 2 * _WORD], "little")
        if not _SMALLEST_BYTES <= size <= len(content) - place:
            raise _damage(place)
        _walk(np.frombuffer(content, np.uint8, size, place), place)
        place = content.find(_SIGNATURE, place + size)


def check_heaps(file: Handle, values: HeapValues, file_bytes: int, most_bytes: int) -> None:
    """Raise `ValueError` if a heap of some values, which are in order, is damaged or has more than `most_bytes`."""
    if len(values.places) == 0:
        return
    lowest, highest = int(values.places[0]), int(values.places[-1])
    if lowest < 0 or highest > file_bytes - _SMALLEST_BYTES:
        raise _damage(lowest if lowest < 0 else highest)
    for window in values.windows():
        _check_window(file, window, file_bytes, most_bytes)


def _check_window(file: Handle, values: HeapValues, file_bytes: int, most_bytes: int) -> None:
    firsts = np.append(0, np.flatnonzero(np.diff(values.places)) + 1)
    places = values.places[firsts]
    origin = int(places[0])
    content = _read(file, origin, int(places[-1]) + _SMALLEST_BYTES - origin)
    starts = places - origin
    sizes = _read_sizes(content, starts, origin)
    if (sizes > file_bytes - places).any():
        raise _damage(int(places[(sizes > file_bytes - places).argmax()]))
    if sizes.max() > most_bytes:
        raise ValueError(f"a heap has {sizes.max()} bytes, more than the {most_bytes} that fit")
    if starts[-1] + sizes[-1] > len(content):
        content = _read(file, origin, int((starts + sizes).max()))
    proven = _find_proven(content, values, firsts, starts, starts + sizes)
    for start, size in zip(starts[~proven].tolist(), sizes[~proven].tolist(), strict=True):
        _walk(content[start : start + size], origin + start)


def _read_sizes(content: NDArray[np.uint8], starts: _Numbers, origin: int) -> _Numbers:
    headers = content[starts[:, None] + np.arange(_HEADER_WORDS * _WORD)]
    sizes: _Numbers = headers[:, _WORD:].copy().view("<i8")[:, 0]
    wrong = (headers[:, :_WORD] != np.frombuffer(_SIGNATURE, np.uint8)).any(axis=1) | (
        sizes < _SMALLEST_BYTES
    )
    if wrong.any():
        raise _damage(origin + int(starts[wrong.argmax()]))
    return sizes


def _find_proven(
    content: NDArray[np.uint8], values: HeapValues, firsts: _Numbers, starts: _Numbers, stops: _Numbers
) -> NDArray[np.bool_]:
    """Tell which heaps hold exactly these values in order, so that a walk ends.

    Other heaps may hold more values, or in another order.
    """
    words = content[: len(content) // _WORD * _WORD].view("<u8")
    counts = np.diff(firsts, append=len(values.places))
    steps = _HEADER_WORDS + -(-values.sizes // _WORD)
    before = np.cumsum(steps) - steps
    begins = starts // _WORD + _HEADER_WORDS
    places = before + np.repeat(begins - before[firsts], counts)
    at = np.minimum(places, len(words) - _HEADER_WORDS)
    met = (
        (at == places)
        & (words[at] & 0xFFFF == values.indexes)
        & (words[at + 1] == values.sizes.view(np.uint64))
    )
    lasts = firsts + counts - 1
    ends_well = _is_tail(words, places[lasts] + steps[lasts], stops // _WORD)
    proven: NDArray[np.bool_] = np.logical_and.reduceat(met, firsts) & ends_well & (starts % _WORD == 0)
    return proven


def _is_tail(words: NDArray[np.uint64], places: _Numbers, ends: _Numbers) -> NDArray[np.bool_]:
    """Tell for which heaps the rest is free space or too small for a header."""
    rest = ends - places
    at = np.minimum(places, len(words) - _HEADER_WORDS)
    is_free = (words[at] & 0xFFFF == 0) & (words[at + 1] == (np.maximum(rest, 0) * _WORD).view(np.uint64))
    tail: NDArray[np.bool_] = (rest >= 0) & ((rest < _HEADER_WORDS) | is_free)
    return tail


def _walk(heap: NDArray[np.uint8], place: int) -> None:
    """Raise `ValueError` if a walk through the objects of a heap does not end."""
    words = heap[: len(heap) // _WORD * _WORD].view("<u8").tolist()
    end, at = len(words) - 1, _HEADER_WORDS
    while at < end:
        size = words[at + 1]
        step = -(-size // _WORD) + (_HEADER_WORDS if words[at] & 0xFFFF else 0)
        strays = size % _WORD > 0 and not words[at] & 0xFFFF  # HDF5 skips free space byte by byte
        if strays or step == 0 or at + step > len(words):
            raise _damage(place)
        at += step


def _read(file: Handle, place: int, size: int) -> NDArray[np.uint8]:
    content = file.read_at(place, size)
    if len(content) < size:
        raise ValueError(f"the file ends before byte {place + size}")
    return np.frombuffer(content, np.uint8)


def _damage(place: int) -> ValueError:
    return ValueError(f"the heap of variable-length values at byte {place} is damaged")
