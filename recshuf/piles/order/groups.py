"""The groups of an epoch: how many records each has, and their records in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.encoding.packed import PackedRecords
    from recshuf.piles.order.epochs import EpochOrder
    from recshuf.records.batch import Records
    from recshuf.records.digests import Digest
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
