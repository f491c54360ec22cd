"""Resident piles: the lowest piles of a store, which stay in memory as long as they fit.

Held are the batches as they came, each grouped by pile; what is not resident of them is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.piles.slices import Origin
    from recshuf.records.batch import Records


@dataclass(slots=True)
class ResidentBatch:
    """The first piles of a batch, grouped by pile: pile j is at ``bounds[j]:bounds[j + 1]``."""

    origin: Origin
    records: Records
    bounds: NDArray[np.int64]
    set_index: int
    is_saved: bool = False
    """Whether all of it has been written to its set as well."""

    @property
    def byte_count(self) -> int:
        """Bytes held; of many small batches, the bounds take more than the records."""
        return self.records.byte_count + self.bounds.nbytes

    @property
    def pile_count(self) -> int:
        """Number of piles."""
        return len(self.bounds) - 1

    def cut(self, pile_count: int) -> None:
        """Free what is held of the piles from `pile_count` on."""
        if pile_count >= self.pile_count:
            return
        self.bounds = self.bounds[: pile_count + 1].copy()
        stop = int(self.bounds[-1])
        if stop < len(self.records):
            self.records = self.records.copy_prefix(stop)


def measure_piles(records: Records, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that the first 0, 1, 2 ... piles of a batch would hold, shape ``(M + 1,)``."""
    return records.bytes_before(bounds) + np.arange(1, len(bounds) + 1) * bounds.itemsize


class ResidentPiles:
    """The first piles of all batches; used by one thread at a time.

    Parameters
    ----------
    pile_count
        How many piles may be resident.
    most_bytes
        How much they may hold.
    """

    def __init__(self, pile_count: int, most_bytes: int) -> None:
        self.batches: list[ResidentBatch] = []
        self.pile_count = pile_count
        self.most_bytes = most_bytes
        self._held_bytes = 0
        self._pile_bytes: NDArray[np.int64] = np.zeros(pile_count, np.int64)

    def has_room(self, byte_count: int) -> bool:
        """Tell whether so much more may be held."""
        return self._held_bytes + byte_count <= self.most_bytes

    def add(self, batch: ResidentBatch, pile_count: int) -> None:
        """Hold the first piles of a batch, copied unless that is all of it."""
        if batch.bounds[pile_count]:
            batch.cut(pile_count)
            self.batches.append(batch)
            self._held_bytes += batch.byte_count
            self._pile_bytes[:pile_count] += np.diff(batch.records.bytes_before(batch.bounds))

    def parts(self, piles: range) -> list[tuple[ResidentBatch, Records]]:
        """Return the records of resident piles that follow each other, with their batches, in the order of the inputs."""
        found = [kept for kept in self.batches if kept.bounds[piles.start] < kept.bounds[piles.stop]]
        found.sort(key=lambda kept: (kept.origin.input_index, kept.origin.first_row))
        return [
            (kept, kept.records.slice(int(kept.bounds[piles.start]), int(kept.bounds[piles.stop])))
            for kept in found
        ]

    def pile_bytes(self, pile: int) -> int:
        """Return the bytes of the records of a resident pile."""
        return int(self._pile_bytes[pile])

    def keep_first(self, pile_count: int) -> None:
        """Have only so many piles resident from now on."""
        self.pile_count = pile_count
        self.forget_from(pile_count)

    def forget_from(self, pile_count: int) -> None:
        """Free what is held of the piles from `pile_count` on, of which nothing is wanted."""
        for kept in self.batches:
            kept.cut(pile_count)
        self.batches = [kept for kept in self.batches if len(kept.records)]
        self._held_bytes = sum(kept.byte_count for kept in self.batches)

    def clear(self) -> None:
        """Forget everything."""
        self.batches.clear()
