"""Reads a filled pile store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import CheckError
from recshuf.piles.slices import PackedRecords
from recshuf.records.batch import concat_records
from recshuf.records.digests import Digest, digest_records
from recshuf.records.keys import sort_by_key
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from recshuf.piles.slices import Origin, Slice
    from recshuf.piles.store import RunPiles
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate


class PileReader:
    """All piles of a store, loaded pile by pile. Used by many threads.

    Parameters
    ----------
    store
        Filled; `close` closes it.
    name
        Suffix of pile names in errors, for a part of another store.
    column_count
        How many of the first columns are wanted. Default: all.
    """

    def __init__(self, store: RunPiles, name: str = "", column_count: int | None = None) -> None:
        self.pile_count = store.pile_count
        self.key_range = store.key_range
        self.counts = store.digests.counts
        """Number of records of each pile, shape ``(M,)``."""
        self._store = store
        self._layout = store.spilled.layout
        self._name = name
        self._column_count = column_count

    def digest(self, piles: range) -> Digest:
        """Return the digest of the records added to consecutive piles."""
        return self._store.digests.sum(piles)

    def is_resident(self, pile: int) -> bool:
        """Tell whether a pile is in memory."""
        return pile < self._store.resident.pile_count

    def runs(self, first: int = 0) -> Iterator[range]:
        """Yield the smallest runs that can be loaded, from pile `first` on: single piles in memory, regions on disk."""
        resident = self._store.resident.pile_count
        for pile in range(first, resident):
            yield range(pile, pile + 1)
        spilled = range(max(first, resident), self.pile_count)
        yield from map(self._layout.piles, self._layout.find(spilled))

    def run_bytes(self, piles: range) -> int:
        """Return the bytes of the records of a run."""
        if self.is_resident(piles.start):
            return self._store.resident.pile_bytes(piles.start)
        (region,) = self._layout.find(piles)
        return self._store.spilled.region_bytes(region)

    def load(self, piles: range) -> Records | None:
        """Return the records of consecutive runs in input order; None if there are none.

        The runs must be all in memory or all on disk.

        Raises
        ------
        CheckError
            When they are not the records added to these piles.
        PileError
            When spilled records are damaged.
        """
        if self.is_resident(piles.start):
            return self._check(piles, self._join_resident(piles))
        packed = self.pack([piles])
        return self._check(piles, None if packed is None else packed.join())

    def load_ordered(self, piles: range) -> Records | None:
        """Return the records of consecutive runs sorted by key; None if there are none.

        Raises
        ------
        CheckError, PileError
            As `load` does.
        """
        if self.is_resident(piles.start):
            records = self.load(piles)
            return None if records is None else records.take(sort_by_key(records.keys))
        packed = self.pack([piles])
        return self._check(piles, None if packed is None else packed.take(sort_by_key(packed.keys)))

    def _join_resident(self, piles: range) -> Records | None:
        parts = [kept.take(piles) for kept in self._store.resident.find(piles)]
        return concat_records(parts) if parts else None

    def pack(self, runs: Iterable[range], memory: Allocate = allocate) -> PackedRecords | None:
        """Return the records of runs on disk, packed, each in input order; None if there are none.

        Parameters
        ----------
        memory
            What they are read to.

        Raises
        ------
        PileError
            When they are damaged.
        """
        spilled = self._store.spilled
        slices = [
            (base, piece)
            for run in runs
            for _, base, piece in sorted(spilled.read(self._layout.find(run), memory), key=_origin)
        ]
        return PackedRecords(self._store.codec, slices) if slices else None

    def _check(self, piles: range, records: Records | None) -> Records | None:
        """Return the wanted columns of records, which must be those added to some piles."""
        found = Digest() if records is None else digest_records(records)
        if found != self.digest(piles):
            raise self._blame(piles)
        return (
            records if records is None or self._column_count is None else records.select(self._column_count)
        )

    def split(self, piles: range, part_count: int) -> PileReader:
        """Return a reader of a new store that holds the records of a run in `part_count` finer piles.

        A pile in memory is split in memory, one on disk on disk. The run itself stays as it is.

        Raises
        ------
        CheckError, PileError
            As `load` does.
        """
        store = self._store.make_part(piles, part_count)
        for _, origin, records in self._parts(piles):
            store.add(0, origin, records)
        parts = PileReader(store, f" of {_name_piles(piles)}{self._name}", self._column_count)
        if parts.digest(range(part_count)) != self.digest(piles):
            raise self._blame(piles)
        return parts

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()

    def _parts(self, piles: range) -> Iterator[tuple[int, Origin, Records]]:
        """Yield pile set, origin and records of each part of a run, one after the other."""
        if self.is_resident(piles.start):
            for kept in self._store.resident.find(piles):
                yield kept.set_index, kept.origin, kept.take(piles)
            return
        for set_index, base, piece in self._store.spilled.read(self._layout.find(piles)):
            records = PackedRecords(self._store.codec, [(base, piece)]).join()
            yield set_index, piece.origin.shift(base), records

    def _blame(self, piles: range) -> CheckError:
        """Return the error for the first run that does not hold the records added to it."""
        for run in self.runs(piles.start):
            if run.start >= piles.stop:
                break
            found: dict[int, Digest] = {}
            for set_index, _, records in self._parts(run):
                found[set_index] = found.get(set_index, Digest()) + digest_records(records)
            error = self._store.digests.blame(run, found, f"gather: {_name_piles(run)}{self._name}")
            if error is not None:
                return error
        return CheckError(
            f"gather: {_name_piles(piles)}{self._name} were read or ordered wrongly once; run again"
        )


def _origin(found: tuple[int, int, Slice]) -> Origin:
    _, base, piece = found
    return piece.origin.shift(base)


def _name_piles(piles: range) -> str:
    """Return the name of consecutive piles in errors."""
    return f"pile {piles.start}" if len(piles) == 1 else f"piles {piles.start} to {piles.stop - 1}"
