"""Records in an order: regions of sets and piles, and the groups of an order that are loaded from them.

A run, a kept store and a split pile are `Regions`: K sets by C columns. `Groups` loads them in the order of the keys or of
an epoch. Gather, the loaders, and the check of loaders read records through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from recshuf.records.digests import Digest, Digests, digest_records
from recshuf.records.key_makers import (
    VALUE_WORDS,
    count_distinct_bytes,
    find_largest,
    find_starts,
    find_words,
)
from recshuf.records.keys import sort_by_words
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.errors import RecshufError
    from recshuf.piles.epochs import EpochOrder, StoredOrder
    from recshuf.piles.slices import Origin, Packed
    from recshuf.records.batch import Records
    from recshuf.records.duplicates import Duplicates
    from recshuf.records.key_makers import ValueSize
    from recshuf.system.buffers import Allocate

    Cells = Sequence[tuple[int, int]]
    """Set and column of each."""


Wanted = TypeVar("Wanted")
_FINDING_BYTES = 64
"""Memory for each record when repeats are found: its key, place and size."""
_SORTING_BYTES = 8
"""Memory for each word of several of a key when records are sorted by them: of small records, it is most."""


class Content(NamedTuple):
    """What is in some records of an order."""

    digest: Digest = Digest()
    """Digest of the records in native form."""
    values: int = 0
    """Number of different values that give keys; 0 if keys are those of rows."""
    dropped: Digest = Digest()
    """Digest of the records that were dropped, because they repeat others."""

    @property
    def total(self) -> Digest:
        """Digest of all records, as they are in piles."""
        return self.digest + self.dropped

    def join(self, other: Content) -> Content:
        """Return what is in records and others that follow them, which begin with another key."""
        return Content(self.digest + other.digest, self.values + other.values, self.dropped + other.dropped)


class Regions(ABC):
    """The records of K sets in C columns. A column is a pile.

    Used by many threads.
    """

    names: tuple[str, ...]
    """Names of the sets."""
    counts: NDArray[np.int64]
    """Number of records in each cell, shape ``(K, C)``."""
    byte_counts: NDArray[np.int64]
    """Bytes of the records in each cell, about, shape ``(K, C)``."""
    ahead_bytes: int = 0
    """Memory for what is expected, if it is fetched from elsewhere; else the system reads it ahead."""
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

    def load(self, cells: Cells, memory: Allocate = allocate) -> Records:
        """Return the records of cells that have some as `pack` does, compared with those that were written."""
        packed = self.pack(cells, memory)
        if packed is None:
            raise self.blame(cells)
        records = packed.join()
        self.check(cells, digest_records(records))
        return records

    def iterate_parts(self, column: int) -> Iterator[tuple[Origin, Records]]:
        """Yield the records of a column with their origins, some at a time, in no particular order. Only of a filled store."""
        raise RuntimeError(f"column {column} is not read in parts")

    def find_column(self, key: int) -> int:
        """Return the column with the records whose first word may be `key`. Only of a filled store."""
        raise RuntimeError(f"no column has the key {key}")

    def expect(self, cells: Cells) -> None:  # noqa: B027 - most need not
        """Note that cells will be packed next."""

    def hasten(self) -> None:  # noqa: B027 - as above
        """Note that the cells that were expected so far are waited for, which others may not delay."""

    def forget(self) -> None:  # noqa: B027 - as above
        """Note that no cells will be packed next, whatever was expected."""

    def announce(self, wanted: Iterable[Wanted], find: Callable[[Wanted], Cells]) -> Iterator[Wanted]:
        """Yield what will be packed, whose cells a function finds; what is behind it is fetched as far as memory allows."""
        most = self.ahead_bytes
        if not most:
            yield from wanted
            return
        ahead, size = deque[tuple[Wanted, int]](), 0
        for number, each in enumerate(wanted):
            cells = find(each)
            self.expect(cells)
            if not number:
                self.hasten()
            ahead.append((each, sum(int(self.byte_counts[cell]) for cell in cells)))
            size += ahead[-1][1]
            while size > most:
                first, own = ahead.popleft()
                size -= own
                yield first
        yield from (each for each, _ in ahead)

    def split(self, column: int, part_count: int) -> Regions:
        """Return the records of a column in as many finer ranges of keys; the caller closes them. Only if `can_split`."""
        raise RuntimeError(f"column {column} cannot be split into {part_count}")

    def close(self) -> None:  # noqa: B027 - most have an owner
        """Free what `split` made."""


class Groups:
    """The groups of an order over regions. Used by many threads.

    Group g is slots ``g * mix`` to ``(g + 1) * mix`` of all sets, as the order finds them.

    Parameters
    ----------
    column_count
        How many of the first columns of records are wanted. Default: all.
    duplicates
        Tells which records are dropped as repeats of others, from the parts of groups in an order by keys. Default: none.
    """

    def __init__(
        self,
        regions: Regions,
        order: StoredOrder | EpochOrder,
        column_count: int | None = None,
        duplicates: Duplicates | None = None,
    ) -> None:
        self._regions = regions
        self._order = order
        self._mix = order.mix
        self._column_count = column_count
        self._duplicates = duplicates
        self._slots = order.find_slots(regions.names, regions.counts.shape[1])
        self._rows = np.arange(len(self._slots))[:, np.newaxis]
        self.sizes = self.sum(regions.counts)
        """Number of records of each group, shape ``(G,)``."""
        self.byte_counts = self.sum(regions.byte_counts)
        """Bytes of the records of each group, about, shape ``(G,)``."""
        self.sorting_bytes = _SORTING_BYTES * order.word_count if order.of_values else 0
        """Memory for each record when it is ordered, besides what is a multiple of its bytes."""

    @property
    def keeps_values(self) -> bool:
        """Whether keys are those of values."""
        return self._order.of_values

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

    def announce(self, bundles: Iterable[list[int]]) -> Iterator[list[int]]:
        return self._regions.announce(bundles, self._list_cells)

    def load_parts(
        self, groups: Sequence[int], edges: Sequence[int], *, is_giant: bool = False
    ) -> tuple[Records, list[int], list[Content]]:
        """Return what `load` does without repeats, where its parts ``edges[k]:edges[k + 1]`` are now, and what is in each.

        Repeats in a group that `is_giant` are not all in memory. Each record is digested once: the sum over all parts, what is
        dropped, and what lies before and after them, is what is compared.
        """
        if is_giant and self._duplicates is not None and len(groups) == 1:
            read = partial(self._regions.iterate_parts, groups[0])
            records, places, dropped = self._duplicates.join(read, edges)
        else:
            records = self._take(groups)
            places, dropped = np.array([0, *edges, len(records)]), Digests(len(edges) + 1)
            repeats = None if self._duplicates is None else self._duplicates.find_ordered(records)
            if repeats is not None and repeats.size:
                before = np.searchsorted(repeats, places)
                dropped = Digests.find(records.take(repeats), before)
                records, places = records.take(np.delete(np.arange(len(records)), repeats)), places - before
        values = self._count_values(records, edges)
        digests = Digests.find(records, places)
        self._regions.check(self._list_cells(groups), digests.sum() + dropped.sum())
        contents = list(map(Content, list(digests)[1:-1], values, list(dropped)[1:-1]))
        return self._select(records), places[1:-1].tolist(), contents

    def _count_values(self, records: Records, edges: Sequence[int]) -> list[int]:
        """Return how many values begin in each part ``edges[k]:edges[k + 1]`` of ordered records."""
        if not self.keeps_values:
            return [0] * (len(edges) - 1)
        starts = find_starts(find_words(records, self._order.word_count)[:VALUE_WORDS])
        counts: list[int] = np.diff(np.searchsorted(starts, edges)).tolist()
        return counts

    def _take(
        self, groups: Sequence[int], following: Sequence[int] = (), memory: Allocate = allocate
    ) -> Records:
        packed = self._regions.pack(self._list_cells(groups), memory)
        if not self._regions.ahead_bytes:  # else it was announced, and another thread may have read it
            self._regions.expect(self._list_cells(following))
        if packed is None:
            raise RuntimeError(f"groups {groups} are empty")
        sizes = [int(self.sizes[group]) for group in groups]
        return packed.take(self._order.sort(groups, sizes, packed), memory)

    def _select(self, records: Records) -> Records:
        return records if self._column_count is None else records.select(self._column_count)

    def digest(self, groups: Iterable[int]) -> Digest:
        return self._regions.digest(self._list_cells(groups))

    def find_starts(self, group: int) -> NDArray[np.intp]:
        """Return the places in a group, of an order by keys of values, where a value begins, from 0."""
        words = [np.concatenate(parts) for parts in zip(*self._iterate_values(group), strict=True)]
        index = sort_by_words(words)
        return find_starts([word[index] for word in words])

    def count_before(self, keys: Sequence[int]) -> list[int]:
        """Return how many records come before each of some first words, in an order by keys."""
        begins, counts = np.cumsum(self.sizes) - self.sizes, list[int]()
        held, words = -1, np.zeros(0, np.uint64)
        for key in keys:
            group = self._regions.find_column(key)
            if group != held and self.sizes[group]:
                words = np.concatenate([records.keys.copy() for records in self._iterate_records(group)])
                held = group
            inside = np.count_nonzero(words < np.uint64(key)) if self.sizes[group] else 0
            counts.append(int(begins[group]) + int(inside))
        return counts

    def _iterate_values(self, group: int) -> Iterator[list[NDArray[np.uint64]]]:
        """Yield the words of the values of the records of a group, some at a time, in no particular order."""
        for records in self._iterate_records(group):
            # Copied, since a view would keep all of the records.
            yield [word.copy() for word in find_words(records, self._order.word_count)[:VALUE_WORDS]]

    def _iterate_records(self, group: int) -> Iterator[Records]:
        return (records for _, records in self._regions.iterate_parts(group))

    def list_larger(self, most_bytes: int, first: int, stop: int) -> list[int]:
        """Return the groups that hold some of the records ``first`` to ``stop`` of the order, and more than so many bytes."""
        ends = np.cumsum(self.sizes)
        needed = self.byte_counts + self.sorting_bytes * self.sizes
        holds = (needed > most_bytes) & (ends > first) & (ends - self.sizes < stop)
        larger: list[int] = np.flatnonzero(holds).tolist()
        return larger

    def find_largest(self, group: int) -> ValueSize:
        """Return the size of the largest value in a group of an order by keys of values; see `find_largest`."""
        return find_largest(self._iterate_records(group), self._order.word_count)

    def must_split(self, group: int, largest_bytes: int) -> bool:
        """Tell whether a group is larger than that, and can be divided: its records do not all have one value."""
        needed = self.byte_counts[group] + self.sorting_bytes * self.sizes[group]
        can_split = self._order.can_split and self._regions.can_split
        if needed <= largest_bytes or self.sizes[group] == 1 or not can_split:
            return False
        if self._duplicates is not None and _FINDING_BYTES * self.sizes[group] <= largest_bytes:
            # What stays may fit, and is not split.
            return count_distinct_bytes(self._iterate_records(group)) > largest_bytes
        return not self.keeps_values or not self._has_one_value(group)

    def _has_one_value(self, group: int) -> bool:
        first: list[np.uint64] = []
        for words in self._iterate_values(group):
            first = first or [word[0] for word in words]
            if any((word != one).any() for word, one in zip(words, first, strict=True)):
                return False
        return True

    def bundle(self, groups: Iterable[int], most_bytes: int) -> Iterator[list[int]]:
        """Yield consecutive groups that are loaded together: up to so many bytes, each once, all or none in memory."""
        held: dict[int, None] = {}
        held_bytes, resident, are_resident = 0, self._regions.resident_count, False
        for group in groups:
            own, is_resident = int(self.byte_counts[group]), group < resident
            if held and (held_bytes + own > most_bytes or group in held or is_resident != are_resident):
                yield list(held)
                held, held_bytes = {}, 0
            held[group] = None
            held_bytes += own
            are_resident = is_resident
        if held:
            yield list(held)

    def split(self, group: int, part_count: int) -> tuple[Groups, Regions]:
        """Return the groups of a group's records in as many finer ranges of keys; the caller closes their regions."""
        parts = self._regions.split(group, part_count)
        return Groups(parts, self._order, self._column_count, self._duplicates), parts

    def _list_cells(self, groups: Iterable[int]) -> list[tuple[int, int]]:
        """Return the cells of some groups that have records, by set and column within a group."""
        return [cell for group in groups for cell in self.find_cells(group)]

    def find_cells(self, group: int) -> list[tuple[int, int]]:
        """Return the cells of a group that have records, by set and column."""
        columns = np.sort(self._slots[:, group * self._mix : (group + 1) * self._mix], axis=1)
        sets, places = np.nonzero(self._regions.counts[self._rows, columns])
        return list(zip(sets.tolist(), columns[sets, places].tolist(), strict=True))
