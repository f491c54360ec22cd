"""The order of an epoch: which piles form a group, and how the records of a group are sorted.

Order version 1. All random numbers are raw 64-bit outputs of ``Philox(SeedSequence(seed, spawn_key=...))``:

    (1, epoch, w0, w1, w2, w3)      "rotate": the piles of the set whose name hashes to the words w0 .. w3
    (2, epoch, g)                   the records of group g
    (3, epoch)                      "piles": the piles of all sets
    (4, epoch, w0, w1, w2, w3, j)   "exact": the records of a set in pile j
    (5, epoch)                      two words a, b for the seeds of transforms

An epoch is a sequence of groups. Slot j of a set is one of its piles, and group g is slots ``g * mix`` to
``(g + 1) * mix`` of every set. Epoch 0 of the store's seed is that of its own keys, without random numbers. "none" is
epoch 0 of "rotate" in every epoch; its seeds for transforms are those of the epoch.

The seed that a transform gets for row r of source s is ``mix(mix((s << 42 | r) ^ a) ^ b)``; mix is the output function of
splitmix64. It is one to one, so no two records of an epoch have the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Philox, SeedSequence

from recshuf.errors import UsageError
from recshuf.records.keys import MAX_SEED, sort_by_key, stream_of
from recshuf.system.units import check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


RESHUFFLES = ("rotate", "piles", "exact", "none")
"""How epochs after the first differ from it."""
MAX_EPOCH = 2**32 - 1
_SLOTS_OF_SET, _RECORDS_OF_GROUP, _SLOTS, _RECORDS_OF_REGION, _SEEDS = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch.

    Raises
    ------
    UsageError
        When a field is not valid.
    """

    seed: int
    epoch: int
    reshuffle: str
    """One of `RESHUFFLES`."""
    store_seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_number("seed", self.seed, MAX_SEED))
        object.__setattr__(self, "epoch", check_number("epoch", self.epoch, MAX_EPOCH))
        if self.reshuffle not in RESHUFFLES:
            raise UsageError(f"reshuffle={self.reshuffle!r}: give one of {', '.join(map(repr, RESHUFFLES))}")

    @property
    def is_stored(self) -> bool:
        """Whether this is the order of the store's own keys: that of `gather`."""
        return self._drawn_epoch == 0 and self.seed == self.store_seed

    @property
    def _drawn_epoch(self) -> int:
        """Number of the epoch whose order this is."""
        return 0 if self.reshuffle == "none" else self.epoch

    @property
    def needs_keys(self) -> bool:
        """Whether every record gets a new key, so that the piles must be written anew."""
        return self.reshuffle == "exact" and not self.is_stored

    def find_slots(self, set_names: Sequence[str], pile_count: int) -> NDArray[np.intp]:
        """Return the pile in each slot of each set, shape ``(K, M)``."""
        shape = (len(set_names), pile_count)
        if self.is_stored or self.needs_keys:
            return np.broadcast_to(np.arange(pile_count), shape)
        if self.reshuffle == "piles":
            return np.broadcast_to(self._permute(pile_count, _SLOTS, self.epoch), shape)
        slots = np.empty(shape, np.intp)
        for index, name in enumerate(set_names):
            slots[index] = self._permute(pile_count, _SLOTS_OF_SET, self._drawn_epoch, *stream_of(name))
        return slots

    def sort_group(
        self, group: int, keys: NDArray[np.uint64], origins: NDArray[np.uint64]
    ) -> NDArray[np.intp]:
        """Return the index array that puts the records of a group in the order of the epoch.

        Parameters
        ----------
        keys
            Keys of the records, shape ``(n,)``; if `needs_keys`, the new ones.
        origins
            Their provenance: source and row as one number that sorts by both.
        """
        index = sort_by_key(keys)
        ordered = keys[index]
        if (ordered[1:] == ordered[:-1]).any():
            index = np.lexsort((origins, keys))
        if self.is_stored or self.needs_keys:
            return index
        return index[self._permute(len(keys), _RECORDS_OF_GROUP, self._drawn_epoch, group)]

    def draw_keys(self, set_name: str, pile: int, count: int) -> NDArray[np.uint64]:
        """Return the new keys of the records of a region, by source and row, if `needs_keys`."""
        return self._draw(count, _RECORDS_OF_REGION, self.epoch, *stream_of(set_name), pile)

    def draw_seeds(self, origins: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return a seed for each record, by its provenance: a function of seed, epoch, source and row."""
        first, second = self._draw(2, _SEEDS, self.epoch)
        return _mix(_mix(origins ^ first) ^ second)

    def _permute(self, count: int, *stream: int) -> NDArray[np.intp]:
        return sort_by_key(self._draw(count, *stream))

    def _draw(self, count: int, *stream: int) -> NDArray[np.uint64]:
        drawn: NDArray[np.uint64] = Philox(SeedSequence(self.seed, spawn_key=stream)).random_raw(count)
        return drawn


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of splitmix64 for each state."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
