"""An even sample of records, drawn while they are read."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.records.provenance import FILE_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_SAMPLED = 1_000_000
"""More records than this are sampled."""
_MOST_BYTES = 1 << 30
_RECORD_BYTES = 128
"""What finding the order of a record takes beside its value."""
_HIGHEST = 2**64 - 1


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
    most_bytes
        How many bytes their values may have.
    """

    def __init__(self, most: int = MOST_SAMPLED, most_bytes: int = _MOST_BYTES) -> None:
        self.records = 0
        """How many there were to choose from."""
        self.level = 0
        """How often the share of those kept has been halved."""
        self._most = most
        self._most_bytes = most_bytes
        self._parts: list[_Part] = []
        self.kept = 0
        """How many are kept."""
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def within(cls, memory_bytes: int) -> Sample:
        """Return a sample that fits a memory limit beside the reading of records."""
        return cls(min(MOST_SAMPLED, memory_bytes // _RECORD_BYTES), min(_MOST_BYTES, memory_bytes // 4))

    def add(self, values: pa.Array, lots: NDArray[np.uint64], file: int, first_row: int) -> None:
        """Add a value and a lot of each of some consecutive records."""
        rows = np.arange(first_row, first_row + len(values)).astype(np.uint64)
        part = _Part(values, lots, rows | np.uint64(file) << FILE_SHIFT).at_level(self.level)
        with self._lock:
            self.records += len(lots)
            self._parts.append(part)
            self._count(part)
            while self.kept > self._most or self._kept_bytes > self._most_bytes:
                self._raise_level(self.level + 1)

    def take(self, level: int = 0) -> Sampled:
        """Return the records kept, or those of them that a higher level keeps.

        Raises
        ------
        UsageError
            When there are none, or their values are too large to be put together.
        """
        self._raise_level(max(level, self.level))
        if not self.kept:
            raise UsageError("there are no records to check")
        whole = self._join()
        return Sampled(whole.values, whole.places)

    def _join(self) -> _Part:
        """Return all that is kept as one part in the order of places, and keep that."""
        lots, places = map(
            np.concatenate, zip(*((part.lots, part.places) for part in self._parts), strict=True)
        )
        values = pa.chunked_array([part.values for part in self._parts])
        self._parts = []  # each copy takes the place of the one before
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise UsageError("the values are too large to be compared; choose a smaller column")
        order = np.argsort(places)
        whole = _Part(values.take(pa.array(order)), lots[order], places[order])
        self._parts = [whole]
        return whole

    def _raise_level(self, level: int) -> None:
        self.level = level
        self._parts = [part.at_level(level) for part in self._parts]
        self.kept = self._kept_bytes = 0
        for part in self._parts:
            self._count(part)

    def _count(self, part: _Part) -> None:
        self.kept += len(part.lots)
        self._kept_bytes += part.values.nbytes


class _Part(NamedTuple):
    """Some records: shape ``(n,)`` each."""

    values: pa.Array
    lots: NDArray[np.uint64]
    places: NDArray[np.uint64]

    def at_level(self, level: int) -> _Part:
        keep = np.flatnonzero(self.lots <= np.uint64(_HIGHEST >> level))
        if len(keep) == len(self.lots):
            return self
        return _Part(self.values.take(pa.array(keep)), self.lots[keep], self.places[keep])
