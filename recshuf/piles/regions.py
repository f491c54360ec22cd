"""The regions of a filled store: its piles in memory and on disk, all sets as one."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.piles.groups import Regions
from recshuf.piles.slices import JoinedRecords, PackedRecords
from recshuf.piles.store import disagreement
from recshuf.records.digests import Digest, digest_records, sum_digests
from recshuf.records.keys import find_piles
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.piles.groups import Cells
    from recshuf.piles.slices import Origin, Packed, Slice
    from recshuf.piles.store import Store
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate


class FilledRegions(Regions):
    """All records of a store that is filled no more, of all sets in one row. A column is a pile in memory, or a region.

    `close` closes the store. `name` follows the names of piles in errors, for a part of another store.
    """

    names = ("",)

    def __init__(self, store: Store, name: str = "") -> None:
        self._store = store
        self._layout = store.layout
        self._name = name
        self.resident_count = store.resident_count
        spilled = self._layout.find(range(self.resident_count, store.pile_count))
        starts = [*range(self.resident_count), *(self._layout.piles(region).start for region in spilled)]
        self._starts = [*starts, store.pile_count]
        self._first_region = spilled.start
        self.counts: NDArray[np.int64] = np.add.reduceat(store.counts, starts)[np.newaxis]
        on_disk = store.region_bytes[spilled.start : spilled.stop]
        self.byte_counts = np.concatenate([store.resident_bytes, on_disk])[np.newaxis]
        self.can_split = store.key_range.shift > 0

    def _piles(self, column: int) -> range:
        return range(self._starts[column], self._starts[column + 1])

    def pack(self, cells: Cells, memory: Allocate = allocate) -> Packed | None:
        columns = [column for _, column in cells]
        if columns and columns[0] < self.resident_count:
            parts = [
                kept.take(piles) for piles in map(self._piles, columns) for kept in self._store.find(piles)
            ]
            return JoinedRecords(parts) if parts else None
        slices = [
            (base, piece)
            for column in columns
            for _, base, piece in sorted(
                self._read(column, memory), key=lambda one: one[2].origin.shift(one[1])
            )
        ]
        return PackedRecords(self._store.codec, slices) if slices else None

    def _read(self, column: int, memory: Allocate = allocate) -> Iterator[tuple[int, int, Slice]]:
        return self._store.read(self._first_region + column - self.resident_count, memory)

    def iterate_parts(self, column: int) -> Iterator[tuple[Origin, Records]]:
        for _, origin, records in self._parts(column):
            yield origin, records

    def find_column(self, key: int) -> int:
        pile = int(find_piles(np.array([key], np.uint64), self._store.pile_count, self._store.key_range)[0])
        return bisect_right(self._starts, pile) - 1

    def digest(self, cells: Cells) -> Digest:
        return sum_digests(self._store.sum(self._piles(column)) for _, column in cells)

    def split(self, column: int, part_count: int) -> FilledRegions:
        """Return the records of a column in finer piles, in memory or on disk as it is. The column itself stays."""
        piles = self._piles(column)
        store = self._store.make_part(piles, part_count)
        for _, origin, records in self._parts(column):
            store.add(0, origin, records)
        if store.sum(range(part_count)) != self._store.sum(piles):
            raise self.blame([(0, column)])
        return FilledRegions(store, f" of {_name_piles(piles)}{self._name}")

    def close(self) -> None:
        self._store.close()

    def _parts(self, column: int) -> Iterator[tuple[int, Origin, Records]]:
        """Yield pile set, origin and records of each part of a column, one after the other."""
        piles = self._piles(column)
        if column < self.resident_count:
            for kept in self._store.find(piles):
                yield kept.set_index, kept.origin, kept.take(piles)
            return
        for set_index, base, piece in self._read(column):
            records = PackedRecords(self._store.codec, [(base, piece)]).join()
            yield set_index, piece.origin.shift(base), records

    def blame(self, cells: Cells) -> CheckError:
        """Return the error for the first column that does not hold the records added to it."""
        for _, column in cells:
            piles, found = self._piles(column), dict[int, Digest]()
            for set_index, _, records in self._parts(column):
                found[set_index] = found.get(set_index, Digest()) + digest_records(records)
            given, where = self._store.sum_sets(piles), f"gather: {_name_piles(piles)}{self._name}"
            wrong = [index for index, digest in given.items() if found.get(index, Digest()) != digest]
            if len(wrong) == 1:
                (index,) = wrong
                return disagreement(f"{where} of pile set {index}", found.get(index, Digest()), given[index])
            sums = sum_digests(found.values()), sum_digests(given.values())
            if sums[0] != sums[1]:
                return disagreement(where, *sums)
        names = ", ".join(_name_piles(self._piles(column)) for _, column in cells)
        return CheckError(f"gather: {names}{self._name} were read or ordered wrongly once; run again")


def _name_piles(piles: range) -> str:
    return f"pile {piles.start}" if len(piles) == 1 else f"piles {piles.start} to {piles.stop - 1}"
