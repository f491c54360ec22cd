"""Piles in memory: the lowest piles of a store as batches grouped by pile, and the digests of all records added to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.records.batch import concat_records
from recshuf.records.digests import Digest, Digests, sum_digests
from recshuf.records.keys import find_piles, sort_by_pile
from recshuf.records.provenance import find_origins
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.slices import Origin
    from recshuf.records.batch import Records
    from recshuf.records.keys import KeyRange
    from recshuf.system.buffers import Allocate


class SetDigests:
    """Digests of all piles of each pile set. Changed by one thread at a time."""

    def __init__(self, pile_count: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(pile_count, np.int64)
        """Records of each pile in all sets, shape ``(M,)``."""
        self._sets: dict[int, Digests] = {}

    def add(self, set_index: int, digests: Digests) -> None:
        """Add records to the piles of a set."""
        self.counts += digests.counts
        self.of_set(set_index).add(digests)

    def of_set(self, set_index: int) -> Digests:
        """Return the digests of the piles of a set."""
        return self._sets.setdefault(set_index, Digests(len(self.counts)))

    def sum(self, piles: range) -> Digest:
        """Return the digest of consecutive piles."""
        return sum_digests(self._sum_sets(piles).values())

    def _sum_sets(self, piles: range) -> dict[int, Digest]:
        chosen = slice(piles.start, piles.stop)
        return {set_index: digests.sum(chosen) for set_index, digests in self._sets.items()}

    def check_set(self, set_index: int, given: Digest) -> None:
        """Check that exactly the records of a set have been added."""
        found = self.of_set(set_index).sum()
        if found != given:
            raise _disagreement(f"scatter: pile set {set_index}", found, given)

    def blame(self, piles: range, found: Mapping[int, Digest], where: str) -> CheckError | None:
        """Return the error for piles that do not hold the records added; None if they do. Names the set if only one is wrong.

        Parameters
        ----------
        found
            Digest of the piles in each set; a missing set is empty.
        where
            Name of the piles in the error.
        """
        given = self._sum_sets(piles)
        if sum_digests(found.values()) == sum_digests(given.values()):
            return None
        wrong = [index for index, digest in given.items() if found.get(index, Digest()) != digest]
        if len(wrong) == 1:
            (index,) = wrong
            return _disagreement(f"{where} of pile set {index}", found.get(index, Digest()), given[index])
        return _disagreement(where, sum_digests(found.values()), sum_digests(given.values()))


def _disagreement(where: str, found: Digest, given: Digest) -> CheckError:
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
        """Number of piles."""
        return len(self.bounds) - 1

    @property
    def byte_count(self) -> int:
        """Bytes held. In small batches, the bounds take more than the records."""
        return self.records.byte_count + self.bounds.nbytes

    def bytes_before(self) -> NDArray[np.int64]:
        """Return the bytes that the first 0, 1, 2 ... piles would hold, shape ``(M + 1,)``."""
        bounds = self.bounds
        return self.records.bytes_before(bounds) + np.arange(1, len(bounds) + 1) * bounds.itemsize

    def take(self, piles: range) -> Records:
        """Return the records of piles that follow each other, as a view."""
        return self.records.slice(int(self.bounds[piles.start]), int(self.bounds[piles.stop]))

    def cut(self, pile_count: int) -> GroupedBatch:
        """Return the first piles, copied so that the others can be freed; the batch itself if it has no others."""
        if pile_count >= self.pile_count:
            return self
        bounds = self.bounds[: pile_count + 1].copy()
        stop = int(bounds[-1])
        records = self.records if stop == len(self.records) else self.records.copy_prefix(stop)
        return replace(self, records=records, bounds=bounds)


class JoinedRecords:
    """Records of piles in memory, part after part, before they are ordered."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self._records = concat_records(parts)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Their keys, shape ``(n,)``."""
        return self._records.keys

    @property
    def origins(self) -> NDArray[np.uint64]:
        """Their provenance, as `find_origins` returns it."""
        return find_origins(self._records.batch)

    def join(self) -> Records:
        """Return them as they are; they may be views of the piles."""
        return self._records

    def take(self, index: NDArray[np.intp], _: Allocate = allocate) -> Records:
        """Return them in the order of a permutation, copied."""
        return self._records.take(index)


class ResidentPiles:
    """The first piles of all batches. Changed by one thread at a time.

    Parameters
    ----------
    pile_count
        How many piles may be resident.
    most_bytes
        How much they may hold.
    """

    def __init__(self, pile_count: int, most_bytes: int) -> None:
        self.batches: list[GroupedBatch] = []
        self.pile_count = pile_count
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._pile_bytes: NDArray[np.int64] = np.zeros(pile_count, np.int64)

    def has_room(self, byte_count: int) -> bool:
        """Tell whether so much more may be held."""
        return self._held_bytes + byte_count <= self._most_bytes

    def add(self, batch: GroupedBatch, pile_count: int) -> None:
        """Hold the first piles of a batch, copied unless they are the whole batch."""
        if batch.bounds[pile_count]:
            batch = batch.cut(pile_count)
            self.batches.append(batch)
            self._held_bytes += batch.byte_count
            self._pile_bytes[:pile_count] += np.diff(batch.records.bytes_before(batch.bounds))

    def find(self, piles: range) -> list[GroupedBatch]:
        """Return the batches with records of consecutive resident piles, in input order."""
        found = [kept for kept in self.batches if kept.bounds[piles.start] < kept.bounds[piles.stop]]
        return sorted(found, key=lambda kept: kept.origin)

    @property
    def byte_counts(self) -> NDArray[np.int64]:
        """Bytes of the records of each resident pile, shape ``(pile_count,)``."""
        return self._pile_bytes[: self.pile_count]

    def keep_first(self, pile_count: int) -> None:
        """Reduce the number of resident piles."""
        self.pile_count = pile_count
        self.drop_from(pile_count)

    def drop_from(self, pile_count: int) -> None:
        """Free the records of piles from `pile_count` on."""
        # One at a time: a second copy of all would exceed the memory limit.
        for index, kept in enumerate(self.batches):
            self.batches[index] = kept.cut(pile_count)
        self.batches = [kept for kept in self.batches if len(kept.records)]
        self._held_bytes = sum(kept.byte_count for kept in self.batches)

    def clear(self) -> None:
        """Free all records."""
        self.batches.clear()
