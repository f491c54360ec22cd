"""Digests of what was added to a store, with which everything that comes back is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.records.digests import Digest, Digests, sum_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class SetDigests:
    """The digests of all piles of each pile set, and the records of each pile. Changed by one thread at a time."""

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
        """Return the digest of everything in piles that follow each other."""
        return sum_digests(self._sum_sets(piles).values())

    def _sum_sets(self, piles: range) -> dict[int, Digest]:
        chosen = slice(piles.start, piles.stop)
        return {set_index: digests.sum(chosen) for set_index, digests in self._sets.items()}

    def check_set(self, set_index: int, given: Digest) -> None:
        """Make sure that all records of a set have been added, and no others.

        Raises
        ------
        CheckError
            When they are not the ones given.
        """
        found = self.of_set(set_index).sum()
        if found != given:
            raise _disagreement(f"scatter: pile set {set_index}", found, given)

    def blame(self, piles: range, found: Mapping[int, Digest], where: str) -> CheckError | None:
        """Return the error for piles that do not hold what was added, naming the set if it is one; None if they do.

        Parameters
        ----------
        found
            Digest of what the piles hold of each set; a set that is missing holds nothing.
        where
            What the error calls the piles.
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
