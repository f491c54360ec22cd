"""Digests of the records added to a store, to check those read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.records.digests import Digest, Digests, sum_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


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
        """Check that exactly the records of a set have been added.

        Raises
        ------
        CheckError
            When the digest is not `given`.
        """
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
