"""The pile store: all piles of a run, the lowest in memory as long as they fit, the others in pile sets.

As soon as anything is spilled, a pile set whose inputs are all read is sealed: what it still has in memory is written
as well, and kept, so that a later run can take the set over as a whole.
"""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.piles.layout import region_bytes
from recshuf.piles.pile_set import PileSet
from recshuf.piles.regions import EXTENT_BYTES, RegionLayout
from recshuf.piles.resident import ResidentBatch, ResidentPiles, measure_piles
from recshuf.piles.slices import PREFIX_BYTES, Origin
from recshuf.records.batch import concat_records
from recshuf.records.digests import Digest, Digests, digest_records, sum_digests
from recshuf.records.keys import KeyRange, find_piles, sort_by_pile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from recshuf.piles.codec import RecordCodec
    from recshuf.piles.scratch import Scratch
    from recshuf.piles.slices import Slice
    from recshuf.records.batch import Records


class PileStore:
    """All piles of one range of keys: filled by many threads, then loaded pile by pile.

    Parameters
    ----------
    scratch
        Where pile sets are created, once something must be spilled.
    set_sizes
        Records expected in each pile set; None where nothing is known.
    resident_bytes
        How much the piles kept in memory may hold.
    output_count
        Records that are wanted at all, those of the smallest keys; None for all.
    on_sealed
        Called with the number of a pile set and the place of its index when the set can be taken over; None
        for a store whose sets nobody will.
    name
        What errors call the store, where it is a part of another.
    compression
        How spilled slices are compressed, one of `SPILL_COMPRESSIONS`.
    region_piles
        How many piles share a region of a pile set.
    """

    def __init__(
        self,
        codec: RecordCodec,
        pile_count: int,
        scratch: Scratch,
        set_sizes: tuple[float | None, ...],
        resident_bytes: int,
        output_count: int | None = None,
        key_range: KeyRange | None = None,
        on_sealed: Callable[[int, int], None] | None = None,
        name: str = "",
        compression: str = "none",
        region_piles: int = 1,
    ) -> None:
        self.codec = codec
        self.pile_count = pile_count
        self.key_range = key_range or KeyRange()
        self.counts: NDArray[np.int64] = np.zeros(pile_count, np.int64)
        self.spilled_bytes = 0
        self._scratch = scratch
        self._compression = compression
        self._layout = RegionLayout(pile_count, region_piles)
        self._set_sizes = set_sizes
        self._sets: dict[int, PileSet] = {}
        self._digests: dict[int, Digests] = {}
        self._unsealed: set[int] = set()
        self._on_sealed = on_sealed
        self._name = name
        self._resident = ResidentPiles(pile_count, resident_bytes)
        self._output_count = output_count
        self._wanted_count = pile_count
        self._lock = threading.RLock()

    def add(
        self, set_index: int, input_index: int, first_row: int, records: Records, bounds: NDArray[np.int64]
    ) -> None:
        """Add the records of a batch, grouped by pile: pile j is at ``bounds[j]:bounds[j + 1]``.

        The store keeps `records` or parts of it.

        Raises
        ------
        CheckError
            When the bounds are not those of the records, or a set cannot be sealed.
        OutputError
            When records cannot be spilled.
        """
        if len(records) != bounds[-1]:
            raise CheckError(
                f"scatter: pile set {set_index}: {len(records):,} records grouped, {bounds[-1]:,} read; run again, and "
                "report this as a fault"
            )
        origin = Origin(input_index, first_row)
        digests = Digests.find(records, bounds)
        with self._lock:
            self.counts += digests.counts
            self._digests_of(set_index).add(digests)
            self._drop_unwanted()
            wanted = self._wanted_count
            resident = self._keep(set_index, origin, records, bounds)
        if resident < wanted:
            self._spill(set_index, origin, records, bounds, resident, wanted)

    def complete(self, set_index: int, given: Digest) -> None:
        """Hear that all records of a pile set have been added, and make sure that they are the ones given.

        Raises
        ------
        CheckError
            When they are not.
        """
        with self._lock:
            found = self._digests_of(set_index).sum()
            if found != given:
                raise _disagreement(f"scatter: pile set {set_index}", found, given)
            self._unsealed.add(set_index)
            if self._resident.pile_count < self.pile_count:
                self._seal_complete()

    def adopt(self, set_index: int, name: str, index_place: int) -> None:
        """Take over a pile set that an earlier run has sealed; nothing stays in memory then.

        Raises
        ------
        PileError
            When it does not read back as it was written.
        """
        pile_set, digests = PileSet.adopt(self._scratch, name, index_place)
        with self._lock:
            self._resident.keep_first(0)
            self._sets[set_index] = pile_set
            self._digests[set_index] = digests
            self.counts += digests.counts
            self._drop_unwanted()

    def digest(self, piles: range) -> Digest:
        """Return the digest of everything that was thrown on piles that follow each other."""
        chosen = slice(piles.start, piles.stop)
        return sum_digests(digests.sum(chosen) for digests in self._digests.values())

    def set_digest(self, set_index: int) -> Digest:
        """Return the digest of everything that was added to a pile set."""
        return self._digests_of(set_index).sum()

    def is_resident(self, pile: int) -> bool:
        """Tell whether a pile is in memory."""
        return pile < self._resident.pile_count

    def runs(self, first: int = 0) -> Iterator[range]:
        """Yield the least that can be loaded, from pile `first` on: piles in memory one by one, others by region."""
        for pile in range(first, self._resident.pile_count):
            yield range(pile, pile + 1)
        spilled = range(max(first, self._resident.pile_count), self.pile_count)
        yield from map(self._layout.piles, self._layout.find(spilled))

    def run_bytes(self, piles: range) -> int:
        """Return the bytes that the records of a run take."""
        if self.is_resident(piles.start):
            return self._resident.pile_bytes(piles.start)
        (region,) = self._layout.find(piles)
        return sum(pile_set.region_bytes(region) for pile_set in self._sets.values())

    def load(self, piles: range) -> Records | None:
        """Return the records of runs that follow each other, all in memory or none, in the order of the inputs.

        Returns
        -------
        Records | None
            None where there are none.

        Raises
        ------
        CheckError
            When they are not the ones that were thrown on these piles.
        PileError
            When they do not read back as they were written.
        """
        if self.is_resident(piles.start):
            parts = [part for _, part in self._resident.parts(piles)]
            records = concat_records(parts) if parts else None
        else:
            slices = self._read_slices(piles)
            packed = [(piece.payload, piece.record_count) for piece in slices]
            records = self.codec.unpack(packed) if packed else None
        found = Digest() if records is None else digest_records(records)
        if found != self.digest(piles):
            raise self._blame(piles)
        return records

    def _blame(self, piles: range) -> CheckError:
        """Return the error for runs that do not hold what they should, naming the run and, if it is one, the set."""
        for run in self.runs(piles.start):
            if run.start >= piles.stop:
                break
            by_set: dict[int, Digest] = {}
            for set_index, _, _, records in self._parts(run):
                by_set[set_index] = by_set.get(set_index, Digest()) + digest_records(records)
            found = sum_digests(by_set.values())
            if found != self.digest(run):
                return self._blame_run(run, by_set, found)
        return CheckError(f"gather: {_name_piles(piles)}{self._name} were read wrongly once; run again")

    def _blame_run(self, piles: range, by_set: dict[int, Digest], found: Digest) -> CheckError:
        chosen = slice(piles.start, piles.stop)
        given = {set_index: digests.sum(chosen) for set_index, digests in self._digests.items()}
        wrong = [set_index for set_index in given if by_set.get(set_index, Digest()) != given[set_index]]
        place = f"gather: {_name_piles(piles)}{self._name}"
        if len(wrong) == 1:
            (index,) = wrong
            return _disagreement(f"{place} of pile set {index}", by_set.get(index, Digest()), given[index])
        return _disagreement(place, found, self.digest(piles))

    def _parts(self, piles: range) -> Iterator[tuple[int, int, int, Records]]:
        """Yield (pile set, input, first row, records) of each slice of a run, one after the other."""
        if self.is_resident(piles.start):
            for kept, part in self._resident.parts(piles):
                yield kept.set_index, kept.origin.input_index, kept.origin.first_row, part
            return
        (region,) = self._layout.find(piles)
        for set_index, pile_set in self._sets.items():
            for piece in pile_set.read(region):
                records = self.codec.unpack([(piece.payload, piece.record_count)])
                yield set_index, piece.input_index, piece.first_row, records

    def split(self, piles: range, part_count: int) -> PileStore:
        """Return a new store that holds the records of a run in `part_count` finer piles.

        A pile in memory is split in memory, one on disk on disk. The run itself stays as it is.

        Raises
        ------
        CheckError, PileError
            As `load` does.
        """
        parts = PileStore(
            self.codec,
            part_count,
            self._scratch,
            set_sizes=(float(self.counts[piles.start : piles.stop].sum()),),
            resident_bytes=self._resident.most_bytes if self.is_resident(piles.start) else 0,
            key_range=self.key_range.part(piles, self.pile_count),
            name=f" of {_name_piles(piles)}{self._name}",
            compression=self._compression,
        )
        for _, input_index, first_row, records in self._parts(piles):
            index, bounds = sort_by_pile(find_piles(records.keys, part_count, parts.key_range), part_count)
            parts.add(0, input_index, first_row, records.take(index), bounds)
        if parts.set_digest(0) != self.digest(piles):
            raise self._blame(piles)
        return parts

    def close(self) -> None:
        """Forget everything and close the files. Idempotent."""
        self._resident.clear()
        for pile_set in self._sets.values():
            pile_set.close()
        self._sets.clear()

    def _digests_of(self, set_index: int) -> Digests:
        return self._digests.setdefault(set_index, Digests(self.pile_count))

    def _read_slices(self, piles: range) -> list[Slice]:
        slices = [
            piece
            for pile_set in self._sets.values()
            for region in self._layout.find(piles)
            for piece in pile_set.read(region)
        ]
        slices.sort(key=attrgetter("input_index", "first_row"))
        return slices

    def _drop_unwanted(self) -> None:
        """With only n records wanted, drop the piles above those that already hold n smaller keys."""
        if self._output_count is None:
            return
        reached = int(np.searchsorted(np.cumsum(self.counts), self._output_count))
        wanted = min(self._wanted_count, self._layout.round_up(max(1, min(reached + 1, self.pile_count))))
        if wanted <= self._wanted_count // 2 and self._resident.pile_count > wanted:
            self._resident.forget_from(wanted)
        self._wanted_count = wanted

    def _keep(self, set_index: int, origin: Origin, records: Records, bounds: NDArray[np.int64]) -> int:
        """Keep the lowest piles of a batch in memory, and return how many piles are kept.

        Before they come to be too much, high piles of all batches are evicted.
        """
        sizes = measure_piles(records, bounds)
        wanted = min(self._resident.pile_count, self._wanted_count)
        while wanted and not self._resident.has_room(int(sizes[wanted])):
            self._evict(self._layout.round_down(wanted * 3 // 4))
            wanted = self._resident.pile_count
        self._resident.add(ResidentBatch(origin, records, bounds, set_index), wanted)
        return wanted

    def _evict(self, pile_count: int) -> None:
        """Spill the piles from `pile_count` on, and keep only those below in memory."""
        for kept in self._resident.batches:
            end = min(kept.pile_count, self._wanted_count)
            if pile_count < end and not kept.is_saved:
                self._spill(kept.set_index, kept.origin, kept.records, kept.bounds, pile_count, end)
        self._resident.keep_first(pile_count)
        self._seal_complete()

    def _seal_complete(self) -> None:
        """Seal every set that is complete and not sealed yet."""
        if self._on_sealed is None:
            return
        while self._unsealed:
            set_index = self._unsealed.pop()
            for kept in self._resident.batches:
                if kept.set_index == set_index:
                    end = min(kept.pile_count, self._wanted_count)
                    self._spill(set_index, kept.origin, kept.records, kept.bounds, 0, end)
                    kept.is_saved = True
            if set_index in self._sets:
                digests = self._digests_of(set_index)
                wanted = self._layout.find(range(self._wanted_count))
                given = self._layout.sum(digests.counts)[: wanted.stop]
                place = self._sets[set_index].seal(digests, given, set_index)
                self._on_sealed(set_index, place)

    def _spill(
        self,
        set_index: int,
        origin: Origin,
        records: Records,
        bounds: NDArray[np.int64],
        first: int,
        end: int,
    ) -> None:
        """Write the slices of the regions of piles ``first`` to ``end`` that are not empty."""
        piles = range(first, end)
        bounds = self._layout.cut(bounds, piles)
        counts = np.diff(bounds)
        filled = np.flatnonzero(counts)
        if not filled.size:
            return
        slices = self.codec.pack(records, [int(bounds[0]), *bounds[1 + filled].tolist()])
        regions = (filled + self._layout.find(piles).start).tolist()
        pile_set = self._open_set(set_index, records)
        written = pile_set.write(regions, slices, counts[filled].tolist(), origin)
        with self._lock:
            self.spilled_bytes += written

    def _open_set(self, set_index: int, sample: Records) -> PileSet:
        with self._lock:
            if set_index not in self._sets:
                name = None if self._on_sealed is None else set_name(set_index)
                capacities = self._plan_regions(set_index, sample)
                self._sets[set_index] = PileSet.create(self._scratch, capacities, self._compression, name)
            return self._sets[set_index]

    def _plan_regions(self, set_index: int, sample: Records) -> NDArray[np.int64]:
        """Return the capacity of each region of a set, from the sizes of the records of a first batch."""
        expected, region_count = self._set_sizes[set_index], self._layout.count
        if expected is None:
            return np.full(region_count, EXTENT_BYTES, np.int64)
        sizes = self.codec.measure(sample.batch).astype(np.float64)
        headers = PREFIX_BYTES + self.codec.overhead_bytes()
        batch_share = max(1.0, len(sample) / region_count)
        mean = sizes.mean() + headers / batch_share
        capacity = region_bytes(expected / region_count, mean, float(np.square(sizes).mean()))
        return np.full(region_count, capacity, np.int64)


def set_name(set_index: int) -> str:
    """Return the file name of a pile set that a later run may take over."""
    return f"set-{set_index:05d}.piles"


def _disagreement(place: str, found: Digest, given: Digest) -> CheckError:
    return CheckError(f"{place}: {found.compare(given)}; run again, and report this as a fault")


def _name_piles(piles: range) -> str:
    """Return what errors call piles that follow each other."""
    return f"pile {piles.start}" if len(piles) == 1 else f"piles {piles.start} to {piles.stop - 1}"
