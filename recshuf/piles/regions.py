"""What stands around a store: stores that divide what they get among several, and the regions of a store that is filled.

A set of the plan is divided by ranges of rows, records among stores by the parts of a split. The regions are the piles in memory
and on disk, all sets as one.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.piles.groups import Regions
from recshuf.piles.slices import JoinedRecords, Origin, PackedRecords
from recshuf.piles.store import disagreement
from recshuf.records.digests import Digest, Digests, InputCount, InputCounts, digest_records, sum_digests
from recshuf.records.key_makers import COUNTERS, count_values
from recshuf.records.keys import find_piles
from recshuf.records.provenance import find_origins, find_ranges, unpack_provenance
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.footer import SetDescription
    from recshuf.piles.groups import Cells
    from recshuf.piles.layout import SealedSet
    from recshuf.piles.slices import Packed
    from recshuf.piles.store import Store
    from recshuf.records.batch import Records
    from recshuf.records.value_keys import PartFinder
    from recshuf.system.buffers import Allocate


class CutStore:
    """A store for many threads that gives the records of a planned set to several of its own. Records have provenance.

    Parameters
    ----------
    begins
        Provenance with which each set of the store begins, ascending, shape ``(S,)``.
    firsts
        Number of the first set of each planned one, and S, shape ``(P + 1,)``.
    """

    def __init__(self, store: Store, begins: NDArray[np.uint64], firsts: NDArray[np.int64]) -> None:
        self.codec = store.codec
        self._store = store
        self._begins, self._firsts = begins, firsts
        self._counts: list[dict[int, InputCount]] = [{} for _ in begins]
        """Counts of each source in each set, of those that are parts of planned ones."""
        self._lock = threading.Lock()
        """Guards the counts; no other lock is taken under it."""

    def add(self, set_index: int, origin: Origin, records: Records) -> None:
        """Add a copy of some records of a planned set, in the order of their provenance, to the sets that they belong to."""
        first, stop = self._firsts[set_index : set_index + 2].tolist()
        if stop - first == 1:
            self._store.add(first, origin, records)
            return
        origins = find_origins(records.batch)
        inside = np.searchsorted(origins, self._begins[first + 1 : stop])
        edges = [0, *inside.tolist(), len(origins)]
        for number in range(first, stop):
            start, end = edges[number - first : number - first + 2]
            if start < end:
                source, row = (int(one[0]) for one in unpack_provenance(origins[start : start + 1]))
                self._add(number, Origin(source, row), records.slice(start, end), origins[start:end])

    def _add(self, number: int, origin: Origin, records: Records, origins: NDArray[np.uint64]) -> None:
        sources, _ = unpack_provenance(origins)
        edges = np.flatnonzero(np.diff(sources, prepend=-1, append=-1))
        sizes = self.codec.count_bytes(records.batch, edges).tolist()
        digests = list(Digests.find(records, edges))
        self._store.add(number, origin, records)
        with self._lock:
            own = self._counts[number]
            for source, size, digest in zip(sources[edges[:-1]].tolist(), sizes, digests, strict=True):
                own[source] = own.get(source, InputCount()) + InputCount(size, digest)

    def complete(self, set_index: int, given: Digest, description: SetDescription) -> None:
        """Declare a planned set complete, and check the digest of its records."""
        first, stop = self._firsts[set_index : set_index + 2].tolist()
        if stop - first == 1:
            self._store.complete(first, given, description)
            return
        counts = self._counts[first:stop]
        digests = [sum_digests(count.digest for count in own.values()) for own in counts]
        if (found := sum_digests(digests)) != given:
            raise disagreement(f"scatter: pile set {set_index}", found, given)
        # Sources without records are of the first set.
        known = set().union(*counts[1:])
        for number, own, digest in zip(range(first, stop), counts, digests, strict=True):
            sources = tuple(
                replace(source, count=own.get(source.index, InputCount()))
                for source in description.sources
                if source.index in own or (number == first and source.index not in known)
            )
            self._store.complete(number, digest, replace(description, sources=sources))

    def seal_next(self) -> SealedSet | None:
        return self._store.seal_next()


class SplitStore:
    """Stores with the same sets, one for each part of a split, filled by many threads. Records have provenance."""

    def __init__(self, parts: Sequence[Store | CutStore], finder: PartFinder, input_count: int) -> None:
        self.codec = parts[0].codec
        self.counts = [InputCounts(input_count) for _ in parts]
        """Counts of the inputs in each part."""
        self.sealed: list[list[SealedSet]] = [[] for _ in parts]
        self.missing: NDArray[np.int64] = np.zeros(1, np.int64)
        """How many records have no value of each field that tells their part."""
        self.squares: NDArray[np.int64] = np.zeros(COUNTERS, np.int64)
        """Counters of the values that tell parts; see `count_values`."""
        self._parts = parts
        self._finder = finder
        self._lock = threading.Lock()
        """Guards counts and sealed sets; no other lock is taken under it."""

    def add(self, set_index: int, origin: Origin, records: Records) -> None:
        """Add a copy of some records to a pile set of each part that has some of them."""
        ranges = find_ranges(records.batch)
        edges = np.cumsum([0, *(one.rows for one in ranges)])
        inputs = [one.input_index for one in ranges]
        batch = records.batch.select(range(records.batch.num_columns - 1))
        part_of_record, missing, values = self._finder.find_parts(batch, ranges)
        with self._lock:
            if values is not None:
                self.squares = self.squares + count_values(values)
            if missing is not None:
                self.missing = self.missing + missing.sum(1)
        for part, piles in enumerate(self._parts):
            index = np.flatnonzero(part_of_record == part)
            if index.size:
                own, own_edges = records.take(index), np.searchsorted(index, edges)
                sizes = self.codec.count_bytes(own.batch, own_edges)
                piles.add(set_index, origin, own)
                with self._lock:
                    self.counts[part].add(inputs, sizes, Digests.find(own, own_edges))

    def complete(self, set_index: int, given: Digest, description: SetDescription) -> None:
        """Declare a pile set complete in all parts, and check the digest of its records."""
        inputs = [source.index for source in description.sources]
        digests = [counts.digest(inputs) for counts in self.counts]
        if (found := sum_digests(digests)) != given:
            raise CheckError(f"scatter: pile set {set_index}: {found.compare(given)} in all parts; run again")
        for piles, counts, digest in zip(self._parts, self.counts, digests, strict=True):
            sources = (replace(source, count=counts[source.index]) for source in description.sources)
            piles.complete(set_index, digest, replace(description, sources=tuple(sources)))

    def seal_next(self) -> SealedSet | None:
        """Seal a complete pile set of any part, and return its entry; None if there is none."""
        for piles, sealed in zip(self._parts, self.sealed, strict=True):
            entry = piles.seal_next()
            if entry is not None:
                with self._lock:
                    sealed.append(entry)
                return entry
        return None


class FilledRegions(Regions):
    """All records of a store that is filled no more, of all sets in one row. A column is a pile, in memory or on disk.

    `close` closes the store. `name` follows the names of piles in errors, for a part of another store.
    """

    names = ("",)

    def __init__(self, store: Store, name: str = "") -> None:
        self._store = store
        self._name = name
        self.resident_count = store.resident_count
        self.counts: NDArray[np.int64] = store.counts[np.newaxis]
        on_disk = store.region_bytes[self.resident_count :]
        self.byte_counts = np.concatenate([store.resident_bytes, on_disk])[np.newaxis]
        self.can_split = store.key_range.shift > 0

    def pack(self, cells: Cells, memory: Allocate = allocate) -> Packed | None:
        piles = [pile for _, pile in cells]
        if piles and piles[0] < self.resident_count:
            parts = [kept.take(pile) for pile in piles for kept in self._store.find(pile)]
            return JoinedRecords(parts) if parts else None
        slices = [
            (base, piece)
            for pile in piles
            for _, base, piece in sorted(
                self._store.read(pile, memory), key=lambda one: one[2].origin.shift(one[1])
            )
        ]
        return PackedRecords(self._store.codec, slices) if slices else None

    def iterate_parts(self, column: int) -> Iterator[tuple[Origin, Records]]:
        for _, origin, records in self._parts(column):
            yield origin, records

    def find_column(self, key: int) -> int:
        return int(find_piles(np.array([key], np.uint64), self._store.pile_count, self._store.key_range)[0])

    def digest(self, cells: Cells) -> Digest:
        return sum_digests(self._store.sum(pile) for _, pile in cells)

    def split(self, column: int, part_count: int) -> FilledRegions:
        """Return the records of a column in finer piles, in memory or on disk as it is. The column itself stays."""
        store = self._store.make_part(column, part_count)
        for _, origin, records in self._parts(column):
            store.add(0, origin, records)
        if store.digests_of(0).sum() != self._store.sum(column):
            raise self.blame([(0, column)])
        return FilledRegions(store, f" of pile {column}{self._name}")

    def close(self) -> None:
        self._store.close()

    def _parts(self, pile: int) -> Iterator[tuple[int, Origin, Records]]:
        """Yield pile set, origin and records of each part of a pile, one after the other."""
        if pile < self.resident_count:
            for kept in self._store.find(pile):
                yield kept.set_index, kept.origin, kept.take(pile)
            return
        for set_index, base, piece in self._store.read(pile):
            records = PackedRecords(self._store.codec, [(base, piece)]).join()
            yield set_index, piece.origin.shift(base), records

    def blame(self, cells: Cells) -> CheckError:
        """Return the error for the first pile that does not hold the records added to it."""
        for _, pile in cells:
            found = dict[int, Digest]()
            for set_index, _, records in self._parts(pile):
                found[set_index] = found.get(set_index, Digest()) + digest_records(records)
            given, where = self._store.sum_sets(pile), f"gather: pile {pile}{self._name}"
            wrong = [index for index, digest in given.items() if found.get(index, Digest()) != digest]
            if len(wrong) == 1:
                (index,) = wrong
                return disagreement(f"{where} of pile set {index}", found.get(index, Digest()), given[index])
            sums = sum_digests(found.values()), sum_digests(given.values())
            if sums[0] != sums[1]:
                return disagreement(where, *sums)
        names = ", ".join(f"pile {pile}" for _, pile in cells)
        return CheckError(f"gather: {names}{self._name} were read or ordered wrongly once; run again")
