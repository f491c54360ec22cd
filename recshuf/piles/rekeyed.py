"""Piles of new keys: what an epoch of ``reshuffle="exact"`` reads in place of the store."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import TOO_LARGE, Scratch
from recshuf.piles.slices import Origin
from recshuf.piles.store import RunPiles
from recshuf.records.batch import Records
from recshuf.records.digests import sum_digests
from recshuf.records.keys import find_piles
from recshuf.system.buffers import allocate
from recshuf.system.paths import WriteMessages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.piles.epochs import EpochOrder
    from recshuf.piles.groups import CheckedRegions
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.piles.slices import PackedRecords
    from recshuf.records.digests import Digest
    from recshuf.system.buffers import Allocate


_READ_BYTES = 32 << 20
"""Bytes of the regions that are read at once."""


class RekeyedPiles:
    """All records of a store as one set of as many piles, by the keys of an epoch.

    The piles are counted without reading anything. They can be loaded within `fill`.
    """

    names: tuple[str, ...] = ("",)

    def __init__(self, piles: StoredPiles, order: EpochOrder) -> None:
        self._piles = piles
        self._order = order
        self.counts: NDArray[np.int64] = self._count()[np.newaxis]
        """Number of records of each new pile, shape ``(1, M)``."""
        self.byte_counts = _estimate_bytes(self.counts, piles)

    def _count(self) -> NDArray[np.int64]:
        pile_count = self._piles.counts.shape[1]
        counts = np.zeros(pile_count, np.int64)
        for set_index, pile in np.argwhere(self._piles.counts).tolist():
            counts += np.bincount(find_piles(self._draw(set_index, pile), pile_count), minlength=pile_count)
        return counts

    def pack(self, regions: Sequence[tuple[int, int]], _: Allocate = allocate) -> PackedRecords | None:
        """Raise an error: the piles are not written yet."""
        raise RuntimeError(f"piles {regions} are loaded outside of `fill`")

    def expect(self, regions: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the piles are not written yet."""

    @contextmanager
    def fill(self, folder: Path, remedy: str) -> Iterator[CheckedRegions]:
        """Write the piles to a temporary file, and give them; the file goes with the context.

        Parameters
        ----------
        folder
            Where the file is made.
        remedy
            How to choose another folder, for messages.

        Raises
        ------
        OutputError
            When the folder cannot be written; `DiskFullError` when it has no space for all records.
        PileError
            When the store is damaged.
        """
        plan = StorePlan(self._piles.counts.shape[1], (float(self._piles.counts.sum()),), resident_bytes=0)
        messages = WriteMessages(
            TOO_LARGE,
            f"no space left for the records of an epoch with reshuffle='exact'{{room}}; {remedy} with more space",
            f"cannot hold the records of an epoch with reshuffle='exact': {{reason}}; {remedy}",
        )
        with closing(Scratch(folder, messages=messages, remedy=f"{remedy}, on another disk")) as scratch:
            store = RunPiles(plan, choose_codec(self._piles.pile_schema), scratch)
            self._scatter(store)
            yield _FilledPiles(store, self.byte_counts)

    def _scatter(self, store: RunPiles) -> None:
        for regions in self._cut_regions():
            records = self._piles.load(regions)
            if records is None:
                raise RuntimeError(f"regions {regions} are empty")
            keys = np.concatenate([self._draw(*region) for region in regions])
            # Groups are sorted by key, source and row, so that slices may come in any order.
            store.add(0, Origin(0, 0), Records(keys, records.batch))

    def _cut_regions(self) -> Iterator[list[tuple[int, int]]]:
        """Yield all regions with records, several at a time."""
        held: list[tuple[int, int]] = []
        size = 0
        for set_index, pile in np.argwhere(self._piles.counts).tolist():
            own = int(self._piles.byte_counts[set_index, pile])
            if held and size + own > _READ_BYTES:
                yield held
                held, size = [], 0
            held.append((set_index, pile))
            size += own
        if held:
            yield held

    def _draw(self, set_index: int, pile: int) -> NDArray[np.uint64]:
        count = int(self._piles.counts[set_index, pile])
        return self._order.draw_keys(self._piles.names[set_index], pile, count)


def _estimate_bytes(counts: NDArray[np.int64], piles: StoredPiles) -> NDArray[np.int64]:
    """Return the bytes of new piles, if all records are as large."""
    mean = int(piles.byte_counts.sum()) / max(1, int(piles.counts.sum()))
    return (counts * mean).astype(np.int64)


class _FilledPiles:
    """Piles that are written."""

    names: tuple[str, ...] = RekeyedPiles.names

    def __init__(self, store: RunPiles, byte_counts: NDArray[np.int64]) -> None:
        self._reader = PileReader(store)
        self.counts = self._reader.counts[np.newaxis]
        self.byte_counts = byte_counts
        self._columns, self._lengths = store.codec.variable_columns, store.spilled.lengths(0)

    def pack(self, regions: Sequence[tuple[int, int]], memory: Allocate = allocate) -> PackedRecords | None:
        """Return the records of piles, one pile after the other."""
        return self._reader.pack((range(pile, pile + 1) for _, pile in regions), memory)

    def expect(self, regions: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the piles have just been written."""

    def digest(self, regions: Sequence[tuple[int, int]]) -> Digest:
        """Return the digest of the records that were written to some piles."""
        return sum_digests(self._reader.digest(range(pile, pile + 1)) for _, pile in regions)

    def lengths(self, column: int) -> NDArray[np.int64]:
        """Return the sum of the lengths in a column of text, binary, lists or maps for each pile, shape ``(1, M)``."""
        return self._lengths[[self._columns.index(column)]]
