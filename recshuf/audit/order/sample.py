"""A bottom-k sample of records: those with the smallest of random priorities, drawn while records are read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.audit.verify.memory_budget import divide_memory
from recshuf.errors import UsageError
from recshuf.records.provenance import pack_provenance, unpack_provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_SAMPLED = 1_000_000
"""The k of a sample whose records are small."""
_MOST_BYTES = 1 << 30
_HIGHEST = 2**64 - 1


class SampledRecords(NamedTuple):
    """Some records: shape ``(n,)`` each."""

    values: pa.Array
    priorities: NDArray[np.uint64]
    provenance: NDArray[np.uint64]
    """File index and row number, as `pack_provenance` returns them."""

    @property
    def files(self) -> NDArray[np.int64]:
        """The file index of each record."""
        return unpack_provenance(self.provenance)[0]

    def at_level(self, level: int) -> SampledRecords:
        """Return the records whose priority is at most 2^-`level` of the highest."""
        keep = np.flatnonzero(self.priorities <= np.uint64(_HIGHEST >> level))
        if len(keep) == len(self.priorities):
            return self
        return SampledRecords(self.values.take(pa.array(keep)), self.priorities[keep], self.provenance[keep])


class BottomKSample:
    """Keeps the values of the records with the smallest priorities; many threads may add.

    A record is kept if its priority is below a threshold, which halves whenever too many are kept. So what is kept
    depends on the priorities alone, and not on the order of calls.

    Parameters
    ----------
    most_records
        Most records to keep.
    most_bytes
        Most bytes of their values.
    """

    def __init__(self, most_records: int = MOST_SAMPLED, most_bytes: int = _MOST_BYTES) -> None:
        self.records = 0
        """Number of records added, kept or not."""
        self.level = 0
        """How often the threshold was halved: each record was kept with probability ``2 ** -level``."""
        self.kept = 0
        """Number of records kept."""
        self._kept_bytes = 0
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._parts: list[SampledRecords] = []
        self._lock = threading.Lock()

    @classmethod
    def within(cls, memory_bytes: int, sample_count: int = 1) -> BottomKSample:
        """Return one of `sample_count` samples, 1 or 2, that fit a memory limit beside the reading of records."""
        budget = divide_memory(memory_bytes, sample_count)
        return cls(min(MOST_SAMPLED, budget.sample_records), min(_MOST_BYTES, budget.sample_bytes))

    def add(self, values: pa.Array, priorities: NDArray[np.uint64], file: int, first_row: int) -> None:
        """Add consecutive records of a file by value and priority."""
        provenance = pack_provenance(np.int64(file), np.arange(first_row, first_row + len(values)))
        part = SampledRecords(values, priorities, provenance).at_level(self.level)
        with self._lock:
            self.records += len(priorities)
            self._parts.append(part)
            self._count(part)
            while self.kept > self._most_records or self._kept_bytes > self._most_bytes:
                self._raise_level(self.level + 1)

    def take(self, level: int = 0) -> SampledRecords:
        """Return the records kept at the sample's level, or at a higher one, ordered by file and row.

        Raises
        ------
        UsageError
            When no record is kept, or the values are too large for one array.
        """
        self._raise_level(max(level, self.level))
        if not self.kept:
            raise UsageError("there are no records to check")
        parts = [part for part in self._parts if len(part.priorities)]
        self._parts = []
        parts.sort(key=lambda part: int(part.provenance[0]))  # each holds consecutive records
        values = pa.chunked_array([part.values for part in parts]).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise UsageError("the values are too large to be compared; choose a smaller column")
        priorities = np.concatenate([part.priorities for part in parts])
        provenance = np.concatenate([part.provenance for part in parts])
        self._parts = [SampledRecords(values, priorities, provenance)]
        return self._parts[0]

    def _raise_level(self, level: int) -> None:
        self.level = level
        self.kept = self._kept_bytes = 0
        for index, part in enumerate(self._parts):
            self._parts[index] = part.at_level(level)
            self._count(self._parts[index])

    def _count(self, part: SampledRecords) -> None:
        self.kept += len(part.priorities)
        self._kept_bytes += part.values.nbytes
