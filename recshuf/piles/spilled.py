"""Spilled piles: the pile sets of a store, each created with its first records."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import PileError
from recshuf.piles.encoding.slices import PREFIX_BYTES
from recshuf.piles.layout import region_bytes
from recshuf.piles.sets.pile_set import GrowingPileSet, PileSet
from recshuf.piles.sets.regions import EXTENT_BYTES, RegionLayout
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.piles.encoding.codec import RecordCodec
    from recshuf.piles.encoding.slices import Slice
    from recshuf.piles.layout import StorePlan
    from recshuf.piles.resident import GroupedBatch
    from recshuf.piles.sets.footer import Footer, SetDescription
    from recshuf.piles.sets.scratch import Scratch
    from recshuf.records.batch import Records
    from recshuf.records.digests import Digests
    from recshuf.system.buffers import Allocate

_SETS_AHEAD = 8
"""So many sets are fetched at once, if they lie elsewhere."""


class SpilledPiles:
    """The pile sets of a store. Many threads write them; they are read afterwards.

    Parameters
    ----------
    scratch
        Creates the files.
    """

    def __init__(self, plan: StorePlan, codec: RecordCodec, scratch: Scratch) -> None:
        self.layout = RegionLayout(plan.pile_count, plan.region_piles)
        self.byte_count = 0
        """Bytes of all slices on disk."""
        self._plan = plan
        self._codec = codec
        self._scratch = scratch
        self._sets: dict[int, PileSet] = {}
        self._growing: dict[int, GrowingPileSet] = {}
        """Those of `_sets` that this store made."""
        self._bases: dict[int, int] = {}
        """What to add to the numbers of sources of adopted sets."""
        self._lock = threading.Lock()

    def __contains__(self, set_index: int) -> bool:
        return set_index in self._sets

    def write(self, batch: GroupedBatch, piles: range) -> None:
        """Write a slice for each region of `piles` that has records in the batch."""
        bounds = self.layout.cut(batch.bounds, piles)
        counts = np.diff(bounds)
        filled = np.flatnonzero(counts)
        if not filled.size:
            return
        cut = self._codec.pack(batch.records, [int(bounds[0]), *bounds[1 + filled].tolist()])
        regions = (filled + self.layout.find(piles).start).tolist()
        pile_set = self._open_set(batch.set_index, batch.records)
        written = pile_set.write(regions, cut.slices, counts[filled].tolist(), batch.origin, cut.lengths)
        with self._lock:
            self.byte_count += written

    def _open_set(self, set_index: int, sample: Records) -> GrowingPileSet:
        """Return a set, created if needed; `sample` is a first batch of its records."""
        with self._lock:
            if set_index not in self._growing:
                name = name_set(self._plan.set_prefix, set_index) if self._plan.keeps_sets else None
                capacities = self._plan_regions(set_index, sample)
                self._sets[set_index] = self._growing[set_index] = GrowingPileSet.create(
                    self._scratch, capacities, self._plan.compression, self._codec.variable_columns, name=name
                )
            return self._growing[set_index]

    def _plan_regions(self, set_index: int, sample: Records) -> NDArray[np.int64]:
        """Return the capacity of each region of a set, from the sizes of the records of a first batch."""
        expected, region_count = self._plan.set_sizes[set_index], self.layout.count
        if expected is None:
            return np.full(region_count, EXTENT_BYTES, np.int64)
        sizes = self._codec.measure(sample.batch).astype(np.float64)
        headers = PREFIX_BYTES + self._codec.overhead_bytes
        batch_share = max(1.0, len(sample) / region_count)
        mean = sizes.mean() + headers / batch_share
        capacity = region_bytes(expected / region_count, mean, float(np.square(sizes).mean()))
        return np.full(region_count, capacity, np.int64)

    def seal(self, set_index: int, digests: Digests, wanted: range, description: SetDescription) -> None:
        """Seal a complete set; piles not `wanted` may lack records."""
        given = self.layout.sum(digests.counts)[: self.layout.find(wanted).stop]
        pile_set = self._growing[set_index]
        pile_set.seal(digests, given, description, self._codec.schema)
        if self._plan.syncs_sets:
            pile_set.sync()

    @property
    def folder(self) -> Path:
        """Folder of the sets that this store makes."""
        return self._scratch.kept or self._scratch.parent

    def path_of(self, set_index: int) -> Path:
        """Return the path of a set that this store made, if it keeps its sets."""
        return self._growing[set_index].path

    def adopt(self, set_index: int, name: str, base: int, *, reads_all: bool) -> Footer:
        """Open a complete set, and return its footer.

        Raises
        ------
        PileError
            When it is missing or damaged, or has another schema or other piles.
        """
        pile_set, footer = PileSet.open(self._scratch, name, reads_all=reads_all)
        if footer.schema != self._codec.schema or footer.sums.shape[1] != self.layout.count:
            pile_set.close()
            raise PileError(f"{name}: holds other columns or piles than this run")
        with self._lock:
            self._sets[set_index] = pile_set
            self._bases[set_index] = base
        return footer

    def lengths(self, set_index: int) -> NDArray[np.int64]:
        """Return the sum of the lengths in each of the codec's `variable_columns`, for each region of a set made here.

        The shape is ``(C, R)``. A set without records has none.
        """
        made = self._growing.get(set_index)
        shape = (len(self._codec.variable_columns), self.layout.count)
        return np.zeros(shape, np.int64) if made is None else made.lengths

    def region_bytes(self, region: int) -> int:
        """Return the bytes of a region's slices in all sets, before compression."""
        return sum(pile_set.region_bytes(region) for pile_set in self._sets.values())

    def read(self, regions: range, memory: Allocate = allocate) -> Iterator[tuple[int, int, Slice]]:
        """Yield the slices of some regions, each with the number of its set and what to add to those of its sources."""
        window = self._scratch.ahead_bytes // max(1, 2 * len(self._sets))
        ahead = iter(self._sets.values()) if window else iter(())
        for pile_set in islice(ahead, _SETS_AHEAD):
            pile_set.fetch(regions, window)
        for set_index, pile_set in self._sets.items():
            base = self._bases.get(set_index, 0)
            for region in regions:
                for piece in pile_set.read(region, memory):
                    yield set_index, base, piece
            for following in islice(ahead, 1):
                following.fetch(regions, window)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for pile_set in self._sets.values():
            pile_set.close()
        self._sets.clear()


def name_set(prefix: str, set_index: int) -> str:
    """Return the file name of a kept pile set."""
    return f"{prefix}-{set_index:05d}.piles"
