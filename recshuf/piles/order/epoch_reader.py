"""Reads the records of a store in the order of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.piles.order.groups import Groups
from recshuf.records.digests import Digest, sum_digests
from recshuf.records.keys import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.piles.order.epochs import EpochOrder
    from recshuf.piles.order.groups import CheckedRegions
    from recshuf.records.batch import Records


class EpochReader:
    """The groups of an epoch, loaded like the piles of a `PileReader`.

    Parameters
    ----------
    mix
        Number of piles of each set in a group.
    column_count
        How many of the first columns are wanted. Default: all.
    """

    key_range = KeyRange(shift=0)  # a group cannot be split

    def __init__(
        self, regions: CheckedRegions, order: EpochOrder, mix: int, column_count: int | None
    ) -> None:
        self._regions = regions
        self._groups = Groups(regions, order, mix)
        self._column_count = column_count
        self.counts: NDArray[np.int64] = self._groups.sizes
        """Number of records of each group, shape ``(G,)``."""
        self.pile_count = len(self.counts)

    def digest(self, piles: range) -> Digest:
        """Return the digest of the records of consecutive groups."""
        return sum_digests(self._regions.digest(self._groups.find_regions(group)) for group in piles)

    def is_resident(self, _: int) -> bool:
        """Return False: no group is in memory."""
        return False

    def runs(self, first: int = 0) -> Iterator[range]:
        """Yield each group from `first` on."""
        for group in range(first, self.pile_count):
            yield range(group, group + 1)

    def run_bytes(self, piles: range) -> int:
        """Return the bytes of the records of consecutive groups."""
        return int(self._groups.byte_counts[piles.start : piles.stop].sum())

    @property
    def largest_bytes(self) -> int:
        """Bytes of the records of the largest group."""
        return int(self._groups.byte_counts.max(initial=0))

    def load_ordered(self, piles: range) -> Records | None:
        """Return the records of consecutive groups in order; None if there are none.

        Raises
        ------
        PileError
            When they are not those that were written.
        """
        groups = [group for group in piles if self.counts[group]]
        if not groups:
            return None
        records = self._groups.load(groups)
        return records if self._column_count is None else records.select(self._column_count)

    def split(self, piles: range, part_count: int) -> EpochReader:
        """Raise an error."""
        raise RuntimeError(f"groups {piles} cannot be split into {part_count} parts")

    def close(self) -> None:
        """Do nothing: the store is closed by its owner."""
