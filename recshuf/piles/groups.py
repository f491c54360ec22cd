"""The groups of an epoch: how many records each has, and their records in order.

Reads the records of a store in the order of an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from recshuf.records.digests import Digest, sum_digests
from recshuf.records.keys import KeyRange
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.epochs import EpochOrder
    from recshuf.piles.slices import PackedRecords
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate


class Regions(Protocol):
    """The records of K sets in M piles."""

    names: tuple[str, ...]
    """Names of the sets."""
    counts: NDArray[np.int64]
    """Number of records in each region, shape ``(K, M)``."""
    byte_counts: NDArray[np.int64]
    """Bytes of the records in each region, about, shape ``(K, M)``."""

    def pack(self, regions: Sequence[tuple[int, int]], memory: Allocate = allocate) -> PackedRecords | None:
        """Return the records of regions (set, pile), with their provenance as the last column; None if there are none."""
        ...

    def expect(self, regions: Sequence[tuple[int, int]]) -> None:
        """Note that regions will be packed next."""
        ...


class CheckedRegions(Regions, Protocol):
    """Regions whose digests and lengths are known."""

    def digest(self, regions: Sequence[tuple[int, int]]) -> Digest:
        """Return the digest of the records that were written to some regions."""
        ...

    def lengths(self, column: int) -> NDArray[np.int64]:
        """Return the sum of the lengths in a column of text, binary, lists or maps for each region, shape ``(K, M)``."""
        ...


class Groups:
    """The groups of one epoch. Used by many threads.

    Parameters
    ----------
    mix
        Number of piles of each set in a group.
    """

    def __init__(self, regions: Regions, order: EpochOrder, mix: int) -> None:
        self._regions = regions
        self.order = order
        self._mix = mix
        pile_count = regions.counts.shape[1]
        self._slots = order.find_slots(regions.names, pile_count)
        self._rows = np.arange(len(self._slots))[:, np.newaxis]
        self.sizes = self.sum(regions.counts)
        """Number of records of each group, shape ``(G,)``."""
        self.byte_counts = self.sum(regions.byte_counts)
        """Bytes of the records of each group, about, shape ``(G,)``."""

    def sum(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over the regions of each group, shape ``(G,)``, of numbers of shape ``(K, M)``."""
        sums = np.take_along_axis(numbers, self._slots, axis=1).sum(axis=0, dtype=np.int64)
        return np.add.reduceat(sums, np.arange(0, len(sums), self._mix))

    def load(
        self, groups: Sequence[int], following: Sequence[int] = (), memory: Allocate = allocate
    ) -> Records:
        """Return the records of groups that are not empty, in the order of the epoch, group by group.

        Parameters
        ----------
        following
            Groups that will be loaded next. The disk reads them while these are ordered.
        memory
            What they are read to, and where those of fixed size lie.

        Raises
        ------
        PileError
            When they are not those that were written.
        """
        packed = self._regions.pack(self._list_regions(groups), memory)
        self._regions.expect(self._list_regions(following))
        if packed is None:
            raise RuntimeError(f"groups {groups} are empty")
        parts, begin = [], 0
        for group in groups:
            rows = slice(begin, begin + int(self.sizes[group]))
            parts.append(begin + self.order.sort_group(group, packed.keys[rows], packed.origins[rows]))
            begin = rows.stop
        return packed.take(parts[0] if len(parts) == 1 else np.concatenate(parts), memory)

    def bundle(self, groups: Iterable[int], most_bytes: int) -> Iterator[list[int]]:
        """Yield consecutive groups that are loaded together: up to so many bytes, and each once."""
        held: list[int] = []
        held_bytes = 0
        for group in groups:
            own = int(self.byte_counts[group])
            if held and (held_bytes + own > most_bytes or group in held):
                yield held
                held, held_bytes = [], 0
            held.append(group)
            held_bytes += own
        if held:
            yield held

    def _list_regions(self, groups: Sequence[int]) -> list[tuple[int, int]]:
        return [region for group in groups for region in self.find_regions(group)]

    def find_regions(self, group: int) -> list[tuple[int, int]]:
        """Return the regions of a group that have records, by set and pile."""
        piles = np.sort(self._slots[:, group * self._mix : (group + 1) * self._mix], axis=1)
        sets, columns = np.nonzero(self._regions.counts[self._rows, piles])
        return list(zip(sets.tolist(), piles[sets, columns].tolist(), strict=True))


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
