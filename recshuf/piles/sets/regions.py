"""Regions of a pile set: their piles, and their offsets in the file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from recshuf.piles.encoding.slices import ALIGNMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXTENT_BYTES = 64 << 10
"""Least capacity of an extent."""


class RegionLayout:
    """Maps M piles to regions of equally many consecutive piles; the last may have fewer.

    Parameters
    ----------
    pile_count
        Number M of piles.
    region_piles
        Piles per region.
    """

    def __init__(self, pile_count: int, region_piles: int) -> None:
        self.region_piles = region_piles
        self._bounds = np.minimum(np.arange(0, pile_count + region_piles, region_piles), pile_count)

    @property
    def count(self) -> int:
        """Number R of regions."""
        return len(self._bounds) - 1

    def find(self, piles: range) -> range:
        """Return the regions that hold these piles."""
        start = piles.start // self.region_piles
        return range(start, -(-piles.stop // self.region_piles) if piles else start)

    def piles(self, region: int) -> range:
        """Return the piles of a region."""
        return range(int(self._bounds[region]), int(self._bounds[region + 1]))

    def round_down(self, pile_count: int) -> int:
        """Round a number of first piles down to whole regions."""
        return pile_count - pile_count % self.region_piles

    def round_up(self, pile_count: int) -> int:
        """Round a number of first piles up to whole regions."""
        return int(self._bounds[-(-pile_count // self.region_piles)])

    def cut(self, bounds: NDArray[np.int64], piles: range) -> NDArray[np.int64]:
        """Return where records that are grouped by pile, pile j at ``bounds[j]:bounds[j + 1]``, are cut into regions.

        `piles` are all of some regions.
        """
        regions = self.find(piles)
        return bounds[self._bounds[regions.start : regions.stop + 1]]

    def sum(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over the piles of each region, shape ``(R,)``, of numbers of shape ``(M,)``."""
        return np.add.reduceat(numbers, self._bounds[:-1])


class RegionSpace:
    """Allocates space in the file to regions.

    Parameters
    ----------
    capacities
        Bytes reserved for each region, shape ``(R,)``.
    """

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        capacities = -(-capacities // ALIGNMENT) * ALIGNMENT
        ends = np.cumsum(capacities)
        self.end = int(ends[-1])
        # Lists, because numbers are looked up one at a time.
        self._capacities: list[int] = capacities.tolist()
        self._starts: list[int] = (ends - capacities).tolist()
        self._used = [0] * len(capacities)
        self._full: dict[int, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    @property
    def region_count(self) -> int:
        """Number of regions."""
        return len(self._capacities)

    def reserve(self, region: int, size: int) -> int:
        """Return the byte offset of a new slice in the file."""
        with self._lock:
            if self._used[region] + size > self._capacities[region]:
                self._extend(region, size)
            offset = self._starts[region] + self._used[region]
            self._used[region] += size
            return offset

    def _extend(self, region: int, size: int) -> None:
        """Continue a full region at the end of the file."""
        used = self._used[region]
        if used:
            self._full.setdefault(region, []).append((self._starts[region], used))
        capacity = max(size, used // 2, EXTENT_BYTES)
        self._starts[region], self._capacities[region], self._used[region] = self.end, capacity, 0
        self.end += capacity

    def parts(self, region: int) -> list[tuple[int, int]]:
        """Return start and bytes of each part of a region."""
        own = (self._starts[region], self._used[region])
        return [*self._full.get(region, []), *([own] if own[1] else [])]

    def to_array(self) -> NDArray[np.int64]:
        """Return the parts of all regions, shape ``(n, 3)``: region, start and bytes."""
        regions = sorted({*self._full, *np.flatnonzero(self._used).tolist()})
        rows = [(region, *part) for region in regions for part in self.parts(region)]
        return np.array(rows, np.int64).reshape(-1, 3)


class WrittenRegions:
    """The parts of regions in a complete file.

    Parameters
    ----------
    parts
        Region, start and bytes of each, shape ``(n, 3)``, by region.
    """

    def __init__(self, region_count: int, parts: NDArray[np.int64]) -> None:
        self._parts = parts[:, 1:]
        self._bounds = np.searchsorted(parts[:, 0], np.arange(region_count + 1))

    def parts(self, region: int) -> list[tuple[int, int]]:
        """Return start and bytes of each part of a region."""
        first, end = self._bounds[region], self._bounds[region + 1]
        return [(start, used) for start, used in self._parts[first:end].tolist()]
