"""The store of a run: the lowest piles in memory while they fit, the others in pile sets.

Locks, in the order in which threads take them:

1. of a `Store`: its piles in memory, its digests, and which sets are complete
2. of a `Store`: which sets there are, and how many bytes have been written
3. of a `PileSet`: the turn to write short slices
4. of a set's `RegionSpace`: where the next slice goes; of a `PileSet`: its sums; of the `SetFolder`: open files
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import CheckError, PileError
from recshuf.piles.layout import SET_SUFFIX, SealedSet, StorePlan, region_bytes
from recshuf.piles.pile_set import EXTENT_BYTES, GrowingPileSet, PileSet
from recshuf.piles.slices import PREFIX_BYTES
from recshuf.records.digests import Digest, Digests, InputCount, sum_digests
from recshuf.records.key_makers import count_values, pack_counters, unpack_counters
from recshuf.records.keys import KeyRange, find_piles, sort_by_pile
from recshuf.system.buffers import allocate
from recshuf.system.threads import read_idle_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.footer import SetDescription
    from recshuf.piles.set_folder import SetFolder
    from recshuf.piles.slices import Origin, RecordCodec, Slice
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate


_WATCHED_BYTES = 64 << 20
_PATIENCE = 2.5e-9
"""Seconds that a thread waits for each byte that all have written, above which lz4 is worth its work. On two cores that was
5 at 100 MB/s, and at most 1.2 at 200, where it is not. Where threads wait as long for a core, it is never."""
_SETS_AHEAD = 8
"""So many sets are fetched at once, if they lie elsewhere."""


def name_set(prefix: str, set_index: int) -> str:
    """Return the name of a kept pile set, without the suffix of its file."""
    return f"{prefix}-{set_index:05d}"


def disagreement(where: str, found: Digest, given: Digest) -> CheckError:
    """Return the error for records that are not the ones given."""
    return CheckError(f"{where}: {found.compare(given)}; run again, and report this as a fault")


@dataclass(frozen=True, slots=True)
class GroupedBatch:
    """The records of a batch, or of its first piles, grouped by pile: pile j is at ``bounds[j]:bounds[j + 1]``."""

    set_index: int
    origin: Origin
    records: Records
    bounds: NDArray[np.int64]

    @classmethod
    def group(
        cls, set_index: int, origin: Origin, records: Records, pile_count: int, key_range: KeyRange
    ) -> GroupedBatch:
        """Return a copy of some records, grouped; those of a pile keep their order."""
        index, bounds = sort_by_pile(find_piles(records.keys, pile_count, key_range), pile_count)
        return cls(set_index, origin, records.take(index), bounds)

    @property
    def pile_count(self) -> int:
        return len(self.bounds) - 1

    @property
    def byte_count(self) -> int:
        """Bytes held. In small batches, the bounds take more than the records."""
        return self.records.byte_count + self.bounds.nbytes

    def bytes_before(self) -> NDArray[np.int64]:
        """Return the bytes that the first 0, 1, 2 ... piles would hold, shape ``(M + 1,)``."""
        bounds = self.bounds
        return self.records.bytes_before(bounds) + np.arange(1, len(bounds) + 1) * bounds.itemsize

    def take(self, pile: int) -> Records:
        """Return the records of a pile as a view."""
        return self.records.slice(int(self.bounds[pile]), int(self.bounds[pile + 1]))

    def cut(self, pile_count: int) -> GroupedBatch:
        """Return the first piles, copied so that the others can be freed; the batch itself if it has no others."""
        if pile_count >= self.pile_count:
            return self
        bounds = self.bounds[: pile_count + 1].copy()
        stop = int(bounds[-1])
        records = self.records if stop == len(self.records) else self.records.copy_prefix(stop)
        return replace(self, records=records, bounds=bounds)


class Store:
    """All piles of one range of keys: filled by many threads, then read as `FilledRegions`. `folder` has its pile sets."""

    def __init__(
        self, plan: StorePlan, codec: RecordCodec, folder: SetFolder, key_range: KeyRange | None = None
    ) -> None:
        self.codec = codec
        self.folder = folder
        self.pile_count = plan.pile_count
        self.key_range = key_range or KeyRange()
        self._plan = plan

        self.counts: NDArray[np.int64] = np.zeros(plan.pile_count, np.int64)
        """Records of each pile in all sets, shape ``(M,)``."""
        self._digests: dict[int, Digests] = {}
        """Those of the piles of each set."""
        self._wanted_count = plan.pile_count
        self._complete: dict[int, SetDescription] = {}
        """Sets with all their records, not yet sealed."""
        self._sealed: set[int] = set()
        self.sources: dict[int, InputCount] = {}
        """Records of each source in complete sets, by number."""
        self.missing: dict[int, tuple[int, ...]] = {}
        """Records without a value in each set that has some; see `SealedSet.missing`."""
        self.squares: dict[int, NDArray[np.int64]] = {}
        """Counters of the values of each set; none without values. See `count_values`."""

        self.resident_count = plan.pile_count
        """How many of the first piles are in memory."""
        self._batches: list[GroupedBatch] = []
        """Their records."""
        self.held_bytes = 0
        """Bytes of all piles in memory."""
        self._pile_bytes: NDArray[np.int64] = np.zeros(plan.pile_count, np.int64)
        self._lock = threading.Lock()

        self.compression = plan.compression
        """That of the next slices."""
        self._waited_seconds = 0.0
        self._watched_bytes = 0
        self._writers: set[int] = set()
        """Threads that have written those."""
        self.spilled_bytes = 0
        """Bytes of all slices written to disk, after compression."""
        self._sets: dict[int, PileSet] = {}
        self._growing: dict[int, GrowingPileSet] = {}
        """Those of `_sets` that this store made."""
        self._bases: dict[int, int] = {}
        """What to add to the numbers of sources of adopted sets."""
        self._sets_lock = threading.Lock()

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
            self._count(set_index, digests)
            wanted = self._wanted_count
            resident = self._keep(batch)
        self._write(batch, resident, wanted)

    def note_missing(self, set_index: int, counts: Sequence[int]) -> None:
        """Count records of a pile set without a value; see `SealedSet.missing`."""
        with self._lock:
            before = self.missing.get(set_index, (0,) * len(counts))
            self.missing[set_index] = tuple(map(sum, zip(before, counts, strict=True)))

    def note_values(self, set_index: int, words: NDArray[np.uint64]) -> None:
        """Count the values of records of a pile set, given a word of each."""
        counters = count_values(words)
        with self._lock:
            self.squares[set_index] = self.squares.get(set_index, 0) + counters

    def complete(self, set_index: int, given: Digest, description: SetDescription) -> None:
        """Declare a pile set complete, and check the digest of its records."""
        with self._lock:
            found = self.digests_of(set_index).sum()
            if found != given:
                raise disagreement(f"scatter: pile set {set_index}", found, given)
            self._complete[set_index] = description
            self._count_sources(description.counts)

    def _count_sources(self, counts: Mapping[int, InputCount], base: int = 0) -> None:
        for index, count in counts.items():
            self.sources[base + index] = self.sources.get(base + index, InputCount()) + count

    def seal_next(self) -> SealedSet | None:
        """Seal a complete pile set, if piles have been spilled and the store keeps its sets, and return its entry; each once.

        Records of the set in memory are written, too, and stay in memory, so that a later run can adopt the whole set.
        A set without records has no file, and is never sealed.
        """
        entry = self._seal_one()
        if entry is not None and self._plan.syncs_sets:
            # Not under the lock: it may be uploaded, while other threads fill other sets.
            self.folder.keep(entry.file_name)
            self._growing[entry.number].close()
        return entry

    def _seal_one(self) -> SealedSet | None:
        with self._lock:
            if self._plan.set_prefix is None or self.resident_count == self.pile_count:
                return None
            while self._complete:
                set_index, description = self._complete.popitem()
                for kept in self._batches:
                    if kept.set_index == set_index:
                        self._write(kept, 0, self._wanted_count)
                self._sealed.add(set_index)
                if set_index in self._growing:
                    return self._seal(set_index, description)
            return None

    def _seal(self, set_index: int, description: SetDescription) -> SealedSet:
        """Seal a set, and return its entry; piles that are not wanted may lack records."""
        digests, pile_set = self.digests_of(set_index), self._growing[set_index]
        is_sent = self._plan.syncs_sets and self.folder.are_sent
        file_bytes, checksum = pile_set.seal(
            digests, self._wanted_count, description, self.codec.schema, closes_gaps=is_sent
        )
        if self._plan.syncs_sets and not is_sent:
            pile_set.sync()
        counts = description.counts.values()
        return SealedSet(
            name_set(self._plan.set_prefix or "", set_index),
            sum(count.digest.records for count in counts),
            sum(count.byte_count for count in counts),
            file_bytes,
            checksum,
            number=set_index,
            missing=self.missing.get(set_index, ()),
            squares=pack_counters(self.squares[set_index]) if set_index in self.squares else "",
        )

    def adopt(self, entry: SealedSet, *, reads_all: bool = True) -> None:
        """Adopt a sealed set; piles are no longer kept in memory. Of a set without a file, only the sources are counted.

        If it `reads_all`, every slice is verified now, not only when it is loaded.
        """
        if not entry.name:
            self._count_sources({index: InputCount.unpack(count) for index, *count in entry.counts})
            return
        pile_set, footer = PileSet.open(self.folder, entry.file_name, reads_all=reads_all)
        if footer.schema != self.codec.schema or footer.sums.shape[1] != self.pile_count:
            pile_set.close()
            raise PileError(f"{entry.file_name}: holds other columns or piles than this run")
        with self._lock, self._sets_lock:
            if self._plan.adapts and footer.compression != "none":
                self.compression = footer.compression
            if entry.squares:
                self.squares[entry.number] = unpack_counters(entry.squares)
            if entry.missing:
                self.missing[entry.number] = entry.missing
            self._sets[entry.number], self._bases[entry.number] = pile_set, entry.base
            self._keep_first(0)
            self._count(entry.number, footer.digests)
            self._count_sources(footer.description.counts, entry.base)

    def spill(self) -> None:
        """Move all piles in memory to disk. Sets that are complete can then be sealed."""
        with self._lock:
            self._evict(0)

    def make_part(self, pile: int, part_count: int) -> Store:
        """Return an empty store for the records of a pile in `part_count` finer ones, in memory only if it is in memory here."""
        resident_bytes = self._plan.resident_bytes if pile < self.resident_count else 0
        record_count = float(self.counts[pile])
        plan = StorePlan(part_count, (record_count,), resident_bytes, compression=self.compression)
        return Store(plan, self.codec, self.folder, self.key_range.part(pile, self.pile_count))

    def digests_of(self, set_index: int) -> Digests:
        return self._digests.setdefault(set_index, Digests(self.pile_count))

    def sum_sets(self, pile: int) -> dict[int, Digest]:
        return {set_index: digests.sum([pile]) for set_index, digests in self._digests.items()}

    def sum(self, pile: int) -> Digest:
        return sum_digests(self.sum_sets(pile).values())

    @property
    def keeps_sets(self) -> bool:
        """Whether a later run can adopt its sets."""
        return self._plan.set_prefix is not None

    @property
    def resident_bytes(self) -> NDArray[np.int64]:
        """Bytes of the records of each pile in memory, shape ``(resident_count,)``."""
        return self._pile_bytes[: self.resident_count]

    @property
    def region_bytes(self) -> NDArray[np.int64]:
        """Bytes of each region's slices in all sets, before compression, shape ``(M,)``."""
        sums = np.zeros(self.pile_count, np.int64)
        for pile_set in self._sets.values():
            sums += pile_set.byte_counts
        return sums

    def find(self, pile: int) -> list[GroupedBatch]:
        """Return the batches with records of a pile in memory, in input order."""
        found = [kept for kept in self._batches if kept.bounds[pile] < kept.bounds[pile + 1]]
        return sorted(found, key=lambda kept: kept.origin)

    def read(self, pile: int, memory: Allocate = allocate) -> Iterator[tuple[int, int, Slice]]:
        """Yield the slices of a pile, each with the number of its set and what to add to those of its sources."""
        window = self.folder.ahead_bytes // max(1, 2 * len(self._sets))
        ahead = iter(self._sets.values()) if window else iter(())
        for pile_set in islice(ahead, _SETS_AHEAD):
            pile_set.fetch(pile, window)
        for set_index, pile_set in self._sets.items():
            base = self._bases.get(set_index, 0)
            for piece in pile_set.read(pile, memory):
                yield set_index, base, piece
            for following in islice(ahead, 1):
                following.fetch(pile, window)

    def close(self) -> None:
        """Free all records and close the files. Idempotent."""
        self._batches.clear()
        for pile_set in self._sets.values():
            pile_set.close()
        self._sets.clear()

    # Under the first lock

    def _count(self, set_index: int, digests: Digests) -> None:
        """Count records. If only n records are wanted, drop the piles above those that hold n smaller keys."""
        self.counts += digests.counts
        self.digests_of(set_index).add(digests)
        if self._plan.output_count is None:
            return
        reached = int(np.searchsorted(np.cumsum(self.counts), self._plan.output_count))
        wanted = min(self._wanted_count, max(1, min(reached + 1, self.pile_count)))
        if wanted <= self._wanted_count // 2 and self.resident_count > wanted:
            self._drop_from(wanted)
        self._wanted_count = wanted

    def _keep(self, batch: GroupedBatch) -> int:
        """Keep the lowest piles of a batch in memory, and return how many piles are kept.

        They are copied unless they are the whole batch. Evicts high piles of all batches if memory is short.
        """
        sizes = batch.bytes_before()
        kept = min(self.resident_count, self._wanted_count)
        while kept and self.held_bytes + int(sizes[kept]) > self._plan.resident_bytes:
            self._evict(kept * 3 // 4)
            kept = self.resident_count
        if batch.bounds[kept]:
            batch = batch.cut(kept)
            self._batches.append(batch)
            self.held_bytes += batch.byte_count
            self._pile_bytes[:kept] += np.diff(batch.records.bytes_before(batch.bounds))
        return kept

    def _evict(self, pile_count: int) -> None:
        for kept in self._batches:
            if kept.set_index not in self._sealed:
                self._write(kept, pile_count, self._wanted_count)
        self._keep_first(pile_count)

    def _keep_first(self, pile_count: int) -> None:
        self.resident_count = pile_count
        self._drop_from(pile_count)

    def _drop_from(self, pile_count: int) -> None:
        # One at a time: a second copy of all would exceed the memory limit.
        for index, kept in enumerate(self._batches):
            self._batches[index] = kept.cut(pile_count)
        self._batches = [kept for kept in self._batches if len(kept.records)]
        self.held_bytes = sum(kept.byte_count for kept in self._batches)

    # With or without it

    def _write(self, batch: GroupedBatch, first: int, wanted: int) -> None:
        """Write a slice for each pile from `first` to `wanted` that has records in the batch."""
        bounds = batch.bounds[first : min(batch.pile_count, wanted) + 1]
        counts = np.diff(bounds)
        filled = np.flatnonzero(counts)
        if not filled.size:
            return
        slices, lengths = self.codec.pack(batch.records, [int(bounds[0]), *bounds[1 + filled].tolist()])
        regions = (filled + first).tolist()
        pile_set = self._open_set(batch.set_index, batch.records)
        watches = self._plan.adapts and self.compression == "none"
        begun = read_idle_clock() if watches else 0.0
        written = pile_set.write(regions, slices, counts[filled].tolist(), batch.origin, lengths)
        waited_seconds = read_idle_clock() - begun if watches else 0.0
        with self._sets_lock:
            self.spilled_bytes += written
            if watches:
                self._watch(waited_seconds, written)

    def _watch(self, waited_seconds: float, written: int) -> None:
        """Count how long a thread has waited while it wrote, and compress from now on if all wait long."""
        self._waited_seconds += waited_seconds
        self._watched_bytes += written
        self._writers.add(threading.get_ident())
        if self._watched_bytes < _WATCHED_BYTES:
            return
        if self._waited_seconds > _PATIENCE * len(self._writers) * self._watched_bytes:
            self.compression = "lz4"
            for pile_set in self._growing.values():
                pile_set.compress(self.compression)
        self._waited_seconds, self._watched_bytes, self._writers = 0.0, 0, set()

    def _open_set(self, set_index: int, sample: Records) -> GrowingPileSet:
        """Return a set, created if needed; `sample` is a first batch of its records."""
        with self._sets_lock:
            if set_index not in self._growing:
                prefix = self._plan.set_prefix
                self._sets[set_index] = self._growing[set_index] = GrowingPileSet(
                    self.folder,
                    self.pile_count,
                    self._plan_region(set_index, sample),
                    self.compression,
                    self.codec.variable_columns,
                    None if prefix is None else f"{name_set(prefix, set_index)}{SET_SUFFIX}",
                )
            return self._growing[set_index]

    def _plan_region(self, set_index: int, sample: Records) -> int:
        """Return the capacity of a region of a set, from the sizes of the records of a first batch."""
        expected = self._plan.set_sizes[set_index]
        if expected is None:
            return EXTENT_BYTES
        sizes = self.codec.measure(sample.batch).astype(np.float64)
        headers = PREFIX_BYTES + self.codec.overhead_bytes
        batch_share = max(1.0, len(sample) / self.pile_count)
        mean = sizes.mean() + headers / batch_share
        return region_bytes(expected / self.pile_count, mean, float(np.square(sizes).mean()))
