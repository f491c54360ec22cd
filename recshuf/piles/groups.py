"""Records in an order: regions of sets and piles, and the groups of an order that are loaded from them.

A run, a kept store and a split pile are `Regions`: K sets by C columns. `Groups` loads them in the order of the keys or of
an epoch. Gather, the loaders, and the check of loaders read records through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import numpy as np

from recshuf.records.digests import Digest, Digests, digest_records
from recshuf.records.key_makers import find_starts
from recshuf.records.keys import sort_by_words
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.errors import RecshufError
    from recshuf.piles.slices import Packed
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate

    Cells = Sequence[tuple[int, int]]
    """Set and column of each."""


class Order(Protocol):
    """An order of records by groups of columns."""

    can_split: bool
    """Whether it is that of the keys, so that a column can be cut into finer ranges of keys."""

    @property
    def mix(self) -> int:
        """Number of columns of each set in a group."""
        ...

    def find_slots(self, set_names: Sequence[str], column_count: int) -> NDArray[np.intp]:
        """Return the column in each slot of each set, shape ``(K, C)``. Group g is slots ``g * mix`` to ``(g + 1) * mix``."""
        ...

    def sort(self, groups: Sequence[int], sizes: Sequence[int], packed: Packed) -> NDArray[np.intp]:
        """Return the index array that puts the records of consecutive groups, of so many records each, in order."""
        ...


class Regions(ABC):
    """The records of K sets in C columns. A column is a pile, or those piles that share a region on disk.

    Used by many threads.
    """

    names: tuple[str, ...]
    """Names of the sets."""
    counts: NDArray[np.int64]
    """Number of records in each cell, shape ``(K, C)``."""
    byte_counts: NDArray[np.int64]
    """Bytes of the records in each cell, about, shape ``(K, C)``."""
    resident_count = 0
    """How many of the first columns are in memory. They are not packed together with others."""
    can_split = False

    @abstractmethod
    def pack(self, cells: Cells, memory: Allocate = allocate) -> Packed | None:
        """Return the records of some cells, one cell after the other, those of a cell in input order; None if there are none.

        They are read to `memory`, and not compared with those that were written; see `check`.
        """

    @abstractmethod
    def digest(self, cells: Cells) -> Digest:
        """Return the digest of the records that were written to some cells."""

    @abstractmethod
    def blame(self, cells: Cells) -> RecshufError:
        """Return the error for cells that do not hold the records that were written to them."""

    def check(self, cells: Cells, loaded: Digest) -> None:
        """Compare records with those that were written to some cells, by their digest."""
        if loaded != self.digest(cells):
            raise self.blame(cells)

    def load(self, cells: Cells) -> Records | None:
        """Return the records of some cells as `pack` does, compared with those that were written."""
        packed = self.pack(cells)
        records = None if packed is None else packed.join()
        self.check(cells, digest_records(records) if records is not None else Digest())
        return records

    def read_words(self, column: int, word_count: int) -> list[NDArray[np.uint64]]:
        """Return the words of the keys of all records of a column, in no particular order. Only of a filled store."""
        raise RuntimeError(f"column {column} has no keys of {word_count} words")

    def find_column(self, key: int) -> int:
        """Return the column with the records whose first word may be `key`. Only of a filled store."""
        raise RuntimeError(f"no column has the key {key}")

    def expect(self, cells: Cells) -> None:  # noqa: B027 - most need not
        """Note that cells will be packed next."""

    def split(self, column: int, part_count: int) -> Regions:
        """Return the records of a column in as many finer ranges of keys; the caller closes them. Only if `can_split`."""
        raise RuntimeError(f"column {column} cannot be split into {part_count}")

    def close(self) -> None:  # noqa: B027 - most have an owner
        """Free what `split` made."""


class Groups:
    """The groups of an order over regions. Used by many threads.

    Parameters
    ----------
    column_count
        How many of the first columns of records are wanted. Default: all.
    """

    def __init__(self, regions: Regions, order: Order, column_count: int | None = None) -> None:
        self._regions = regions
        self._order = order
        self._mix = order.mix
        self._column_count = column_count
        self._slots = order.find_slots(regions.names, regions.counts.shape[1])
        self._rows = np.arange(len(self._slots))[:, np.newaxis]
        self.sizes = self.sum(regions.counts)
        """Number of records of each group, shape ``(G,)``."""
        self.byte_counts = self.sum(regions.byte_counts)
        """Bytes of the records of each group, about, shape ``(G,)``."""

    @property
    def can_split(self) -> bool:
        """Whether a group can be divided."""
        return self._order.can_split and self._regions.can_split

    def sum(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over the cells of each group, shape ``(G,)``, of numbers of shape ``(K, C)``."""
        sums = np.take_along_axis(numbers, self._slots, axis=1).sum(axis=0, dtype=np.int64)
        return np.add.reduceat(sums, np.arange(0, len(sums), self._mix))

    def load(
        self, groups: Sequence[int], following: Sequence[int] = (), memory: Allocate = allocate
    ) -> Records:
        """Return the records of groups, not all of which are empty, in order, group by group.

        Parameters
        ----------
        following
            Groups that will be loaded next. The disk reads them while these are ordered.
        memory
            What they are read to, and where those of fixed size lie.
        """
        records = self._take(groups, following, memory)
        self._regions.check(self._list_cells(groups), digest_records(records))
        return self._select(records)

    def load_parts(self, groups: Sequence[int], edges: Sequence[int]) -> tuple[Records, list[Digest]]:
        """Return what `load` does, and the digest of each part ``edges[k]:edges[k + 1]`` of it.

        Each record is digested once: the sum over all parts, and what lies before and after them, is what is compared.
        """
        records = self._take(groups)
        digests = Digests.find(records, np.array([0, *edges, len(records)]))
        self._regions.check(self._list_cells(groups), digests.sum())
        return self._select(records), list(digests)[1:-1]

    def _take(
        self, groups: Sequence[int], following: Sequence[int] = (), memory: Allocate = allocate
    ) -> Records:
        packed = self._regions.pack(self._list_cells(groups), memory)
        self._regions.expect(self._list_cells(following))
        if packed is None:
            raise RuntimeError(f"groups {groups} are empty")
        sizes = [int(self.sizes[group]) for group in groups]
        return packed.take(self._order.sort(groups, sizes, packed), memory)

    def _select(self, records: Records) -> Records:
        return records if self._column_count is None else records.select(self._column_count)

    def digest(self, groups: Iterable[int]) -> Digest:
        """Return the digest of the records that were written to some groups."""
        return self._regions.digest(self._list_cells(groups))

    def find_starts(self, group: int, word_count: int) -> NDArray[np.intp]:
        """Return the places in a group, of an order by keys, where a key differs from that before, from 0."""
        words = self._regions.read_words(group, word_count)
        index = sort_by_words(words)
        return find_starts([word[index] for word in words])

    def count_before(self, keys: Sequence[int], word_count: int) -> list[int]:
        """Return how many records come before each of some first words, in an order by keys."""
        begins, counts = np.cumsum(self.sizes) - self.sizes, list[int]()
        held, words = -1, np.zeros(0, np.uint64)
        for key in keys:
            group = self._regions.find_column(key)
            if group != held and self.sizes[group]:
                held, words = group, self._regions.read_words(group, word_count)[0]
            inside = np.count_nonzero(words < np.uint64(key)) if self.sizes[group] else 0
            counts.append(int(begins[group]) + int(inside))
        return counts

    def bundle(self, groups: Iterable[int], most_bytes: int) -> Iterator[list[int]]:
        """Yield consecutive groups that are loaded together: up to so many bytes, each once, all or none in memory."""
        held: list[int] = []
        held_bytes, resident = 0, self._regions.resident_count
        for group in groups:
            own = int(self.byte_counts[group])
            if held and (
                held_bytes + own > most_bytes or group in held or (group < resident) != (held[0] < resident)
            ):
                yield held
                held, held_bytes = [], 0
            held.append(group)
            held_bytes += own
        if held:
            yield held

    def split(self, group: int, part_count: int) -> tuple[Groups, Regions]:
        """Return the groups of a group's records in as many finer ranges of keys; the caller closes their regions."""
        parts = self._regions.split(group, part_count)
        return Groups(parts, self._order, self._column_count), parts

    def _list_cells(self, groups: Iterable[int]) -> list[tuple[int, int]]:
        """Return the cells of some groups that have records, by set and column within a group."""
        return [cell for group in groups for cell in self._find_cells(group)]

    def _find_cells(self, group: int) -> list[tuple[int, int]]:
        columns = np.sort(self._slots[:, group * self._mix : (group + 1) * self._mix], axis=1)
        sets, places = np.nonzero(self._regions.counts[self._rows, columns])
        return list(zip(sets.tolist(), columns[sets, places].tolist(), strict=True))
