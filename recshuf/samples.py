"""An even sample of records, drawn while they are read."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_SAMPLED = 1_000_000
"""More records than this are sampled."""
_HIGHEST = 2**64 - 1
FILE_SHIFT = np.uint64(42)
"""A place is one number: its file in the high 22 bits, its row in the others."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Values of some records in the order of their places."""

    values: pa.Array
    places: NDArray[np.uint64]
    """File in the high 22 bits, row in the others."""

    @property
    def files(self) -> NDArray[np.int64]:
        """Which file each record is from."""
        return (self.places >> FILE_SHIFT).astype(np.int64)


class Sample:
    """Keeps the values of records whose lot is small enough; used by many threads.

    What is small enough is halved as often as there would be too many.

    Parameters
    ----------
    most
        How many records are kept at most.
    """

    def __init__(self, most: int = MOST_SAMPLED) -> None:
        self.records = 0
        """How many there were to choose from."""
        self.level = 0
        """How often the share of those kept has been halved."""
        self._most = most
        self._parts: list[_Part] = []
        self._kept = 0
        self._lock = threading.Lock()

    def add(self, values: pa.Array, lots: NDArray[np.uint64], file: int, first_row: int) -> None:
        """Add a value and a lot of each of some consecutive records."""
        rows = np.arange(first_row, first_row + len(values)).astype(np.uint64)
        part = _Part(values, lots, rows | np.uint64(file) << FILE_SHIFT).at_level(self.level)
        with self._lock:
            self.records += len(lots)
            self._parts.append(part)
            self._kept += len(part.lots)
            while self._kept > self._most:
                self._raise_level(self.level + 1)

    def take(self, level: int = 0) -> Sampled:
        """Return the records kept, or those of them that a higher level keeps.

        Raises
        ------
        UsageError
            When there are none, or their values are too large to be put together.
        """
        self._raise_level(max(level, self.level))
        if not self._kept:
            raise UsageError("there are no records to check")
        values = pa.chunked_array([part.values for part in self._parts]).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise UsageError("the values are too large to be compared; choose a smaller column")
        places = np.concatenate([part.places for part in self._parts])
        order = np.argsort(places)
        return Sampled(values.take(pa.array(order)), places[order])

    def _raise_level(self, level: int) -> None:
        self.level = level
        self._parts = [part.at_level(level) for part in self._parts]
        self._kept = sum(len(part.lots) for part in self._parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some records: shape ``(n,)`` each."""

    values: pa.Array
    lots: NDArray[np.uint64]
    places: NDArray[np.uint64]

    def at_level(self, level: int) -> _Part:
        keep = np.flatnonzero(self.lots <= np.uint64(_HIGHEST >> level))
        if len(keep) == len(self.lots):
            return self
        return _Part(self.values.take(pa.array(keep)), self.lots[keep], self.places[keep])
