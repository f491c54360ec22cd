"""The store of a run: the lowest piles in memory while they fit, the others in pile sets.

Locks, in the order in which threads take them:

1. of a `RunPiles`: its resident piles, its digests, and which sets are complete
2. of its `SpilledPiles`: which sets there are
3. of a `PileSet`: the turn to write short slices
4. of a set's `RegionSpace`: where the next slice goes; of a `PileSet`: its sums; of the `Scratch`: open files
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError, PileError
from recshuf.piles.layout import StorePlan, region_bytes
from recshuf.piles.pile_set import EXTENT_BYTES, GrowingPileSet, PileSet, RegionLayout
from recshuf.piles.resident import GroupedBatch, ResidentPiles, SetDigests
from recshuf.piles.sealed_set import SET_SUFFIX, SealedSet
from recshuf.piles.slices import PREFIX_BYTES
from recshuf.records.digests import Digest, Digests, InputCount
from recshuf.records.keys import KeyRange
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.piles.codec import RecordCodec
    from recshuf.piles.footer import Footer, SetDescription
    from recshuf.piles.set_folder import Scratch
    from recshuf.piles.slices import Origin, Slice
    from recshuf.records.batch import Records
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
                set_name = name_set(self._plan.set_prefix, set_index)
                name = f"{set_name}{SET_SUFFIX}" if self._plan.keeps_sets else None
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

    def seal(self, set_index: int, digests: Digests, wanted: range, description: SetDescription) -> SealedSet:
        """Seal a complete set, and return its entry; piles not `wanted` may lack records."""
        given = self.layout.sum(digests.counts)[: self.layout.find(wanted).stop]
        pile_set = self._growing[set_index]
        file_bytes, checksum = pile_set.seal(digests, given, description, self._codec.schema)
        if self._plan.syncs_sets:
            pile_set.sync()
        counts = description.counts.values()
        return SealedSet(
            name_set(self._plan.set_prefix, set_index),
            sum(count.digest.records for count in counts),
            sum(count.byte_count for count in counts),
            file_bytes,
            checksum,
            number=set_index,
        )

    @property
    def folder(self) -> Path:
        """Folder of the sets that this store makes."""
        return self._scratch.kept or self._scratch.parent

    def path_of(self, set_index: int) -> Path:
        """Return the path of a set that this store made, if it keeps its sets."""
        return self._growing[set_index].path

    def adopt(self, entry: SealedSet, *, reads_all: bool) -> Footer:
        """Open a complete set, and return its footer."""
        name = entry.file_name
        pile_set, footer = PileSet.open(self._scratch, name, reads_all=reads_all)
        if footer.schema != self._codec.schema or footer.sums.shape[1] != self.layout.count:
            pile_set.close()
            raise PileError(f"{name}: holds other columns or piles than this run")
        with self._lock:
            self._sets[entry.number] = pile_set
            self._bases[entry.number] = entry.base
        return footer

    def lengths(self, set_index: int) -> NDArray[np.int64]:
        """Return the sum of the lengths in each of the codec's `variable_columns`, for each region of a set made here.

        The shape is ``(C, R)``. A set without records has none.
        """
        made = self._growing.get(set_index)
        shape = (len(self._codec.variable_columns), self.layout.count)
        return np.zeros(shape, np.int64) if made is None else made.lengths

    @property
    def byte_counts(self) -> NDArray[np.int64]:
        """Bytes of each region's slices in all sets, before compression, shape ``(R,)``."""
        sums = np.zeros(self.layout.count, np.int64)
        for pile_set in self._sets.values():
            sums += pile_set.byte_counts
        return sums

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
    """Return the name of a kept pile set."""
    return f"{prefix}-{set_index:05d}"


class RunPiles:
    """All piles of one range of keys: filled by many threads, then read as `FilledRegions`.

    Parameters
    ----------
    scratch
        Creates the files of pile sets.
    key_range
        Keys of the piles. Default: all.
    """

    def __init__(
        self, plan: StorePlan, codec: RecordCodec, scratch: Scratch, key_range: KeyRange | None = None
    ) -> None:
        self.codec = codec
        self.pile_count = plan.pile_count
        self.key_range = key_range or KeyRange()
        self.digests = SetDigests(plan.pile_count)
        self.resident = ResidentPiles(plan.pile_count, plan.resident_bytes)
        self.spilled = SpilledPiles(plan, codec, scratch)
        self._plan = plan
        self._scratch = scratch
        self._wanted_count = plan.pile_count
        self._complete: dict[int, SetDescription] = {}
        """Sets with all their records, not yet sealed."""
        self._sealed: set[int] = set()
        self.sources: dict[int, InputCount] = {}
        """Records of each source in complete sets, by number."""
        self._lock = threading.Lock()

    @property
    def spilled_bytes(self) -> int:
        """Bytes of records written to disk, after compression."""
        return self.spilled.byte_count

    def add(self, set_index: int, origin: Origin, records: Records) -> None:
        """Add a copy of some records to a pile set. Records of a pile are read back in the order of origins."""
        batch = GroupedBatch.group(set_index, origin, records, self.pile_count, self.key_range)
        if len(batch.records) != batch.bounds[-1]:
            raise CheckError(
                f"scatter: pile set {set_index}: {len(batch.records):,} records grouped, {batch.bounds[-1]:,} read; "
                "run again, and report this as a fault"
            )
        digests = Digests.find(batch.records, batch.bounds)
        with self._lock:
            self.digests.add(set_index, digests)
            self._drop_unwanted()
            wanted = self._wanted_count
            resident = self._keep(batch)
        if resident < wanted:
            self.spilled.write(batch, range(resident, wanted))

    def complete(self, set_index: int, given: Digest, description: SetDescription) -> None:
        """Declare a pile set complete, and check the digest of its records."""
        with self._lock:
            self.digests.check_set(set_index, given)
            self._complete[set_index] = description
            self._count_sources(description, 0)

    def _count_sources(self, description: SetDescription, base: int) -> None:
        for source in description.sources:
            before = self.sources.get(base + source.index, InputCount(0, Digest()))
            self.sources[base + source.index] = before + source.count

    def seal_next(self) -> SealedSet | None:
        """Seal a complete pile set, if piles have been spilled and the store keeps its sets.

        Records of the set in memory are written, too, and stay in memory, so that a later run can adopt the whole set.
        A set without records has no file, and is never sealed.

        Returns
        -------
        SealedSet | None
            Its entry; None if there is none to seal. Each set is returned once.
        """
        with self._lock:
            if not self._plan.keeps_sets or self.resident.pile_count == self.pile_count:
                return None
            while self._complete:
                set_index, description = self._complete.popitem()
                for kept in self.resident.batches:
                    if kept.set_index == set_index:
                        self._spill(kept, 0)
                self._sealed.add(set_index)
                if set_index in self.spilled:
                    digests = self.digests.of_set(set_index)
                    return self.spilled.seal(set_index, digests, range(self._wanted_count), description)
            return None

    def name_set(self, set_index: int) -> str:
        """Return the name of a kept pile set, without the suffix of its file."""
        return name_set(self._plan.set_prefix, set_index)

    def adopt(self, entry: SealedSet, *, reads_all: bool = True) -> None:
        """Adopt a sealed set; piles are no longer kept in memory.

        Parameters
        ----------
        reads_all
            Whether every slice is verified now, not only when it is loaded.
        """
        footer = self.spilled.adopt(entry, reads_all=reads_all)
        with self._lock:
            self.resident.keep_first(0)
            self.digests.add(entry.number, footer.digests)
            self._count_sources(footer.description, entry.base)
            self._drop_unwanted()

    def make_part(self, piles: range, part_count: int) -> RunPiles:
        """Return an empty store for the records of some piles in `part_count` finer piles.

        It keeps piles in memory only if these piles are in memory here.
        """
        record_count = float(self.digests.counts[piles.start : piles.stop].sum())
        resident_bytes = self._plan.resident_bytes if piles.start < self.resident.pile_count else 0
        plan = StorePlan(part_count, (record_count,), resident_bytes, compression=self._plan.compression)
        return RunPiles(plan, self.codec, self._scratch, self.key_range.part(piles, self.pile_count))

    def close(self) -> None:
        """Free all records and close the files. Idempotent."""
        self.resident.clear()
        self.spilled.close()

    def _drop_unwanted(self) -> None:
        """If only n records are wanted, drop the piles above those that hold n smaller keys."""
        if self._plan.output_count is None:
            return
        reached = int(np.searchsorted(np.cumsum(self.digests.counts), self._plan.output_count))
        needed = max(1, min(reached + 1, self.pile_count))
        wanted = min(self._wanted_count, self.spilled.layout.round_up(needed))
        if wanted <= self._wanted_count // 2 and self.resident.pile_count > wanted:
            self.resident.drop_from(wanted)
        self._wanted_count = wanted

    def _keep(self, batch: GroupedBatch) -> int:
        """Keep the lowest piles of a batch in memory, and return how many piles are kept.

        Evicts high piles of all batches if memory is short.
        """
        sizes = batch.bytes_before()
        wanted = min(self.resident.pile_count, self._wanted_count)
        while wanted and not self.resident.has_room(int(sizes[wanted])):
            self._evict(self.spilled.layout.round_down(wanted * 3 // 4))
            wanted = self.resident.pile_count
        self.resident.add(batch, wanted)
        return wanted

    def _evict(self, pile_count: int) -> None:
        """Spill the piles from `pile_count` on."""
        for kept in self.resident.batches:
            if kept.set_index not in self._sealed:
                self._spill(kept, pile_count)
        self.resident.keep_first(pile_count)

    def _spill(self, kept: GroupedBatch, first: int) -> None:
        """Write the wanted piles of a batch in memory, from pile `first` on."""
        end = min(kept.pile_count, self._wanted_count)
        if first < end:
            self.spilled.write(kept, range(first, end))
