"""The order of an epoch: which piles form a group, and how the records of a group are sorted.

Order version 1. All random numbers are raw 64-bit outputs of ``Philox(SeedSequence(seed, spawn_key=...))``:

    (1, epoch, w0, w1, w2, w3)      "rotate": the piles of the set whose name hashes to the words w0 .. w3
    (2, epoch, g)                   the records of group g
    (3, epoch)                      "piles": the piles of all sets
    (5, epoch)                      two words a, b for the seeds of transforms
    (5, epoch, i)                   the same for store i of a mix
    (7, epoch, g)                   the sequences of group g, which hold documents whole

An epoch is a sequence of groups. Slot j of a set is one of its piles, and group g is slots ``g * mix`` to
``(g + 1) * mix`` of every set. With ``mix=1``, epoch 0 of the store's seed is that of its own keys, without random numbers.
With more, piles in the order of the keys would follow each other in place of being mixed. "none" is epoch 0 of "rotate" in
every epoch; its seeds for transforms are those of the epoch.

The seed that a transform gets for row r of source s is ``mix(mix((s << 42 | r) ^ a) ^ b)``; mix is the output function of
splitmix64. It is one to one, so no two records of an epoch have the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.random import Philox, SeedSequence

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.records.keys import MAX_SEED, sort_by_key, sort_by_words, stream_of
from recshuf.system.units import check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.piles.slices import Packed


Reshuffle = Literal["rotate", "piles", "none"]
"""How epochs after the first differ from it."""
RESHUFFLES = get_args(Reshuffle)
MAX_EPOCH = 2**32 - 1
_SLOTS_OF_SET, _RECORDS_OF_GROUP, _SLOTS, _SEEDS, _SEQUENCES_OF_GROUP = 1, 2, 3, 5, 7


class StoredOrder:
    """The order of the keys, and for equal keys that in which regions are packed: of a run, that of the inputs."""

    can_split = True
    mix = 1

    def __init__(self, word_count: int = 1, *, of_values: bool = False) -> None:
        self.word_count = word_count
        self.of_values = of_values

    def find_slots(self, set_names: Sequence[str], column_count: int) -> NDArray[np.intp]:
        """Return the column in each slot of each set, shape ``(K, C)``: the slot itself."""
        return np.broadcast_to(np.arange(column_count), (len(set_names), column_count))

    def sort(self, _: Sequence[int], __: Sequence[int], packed: Packed) -> NDArray[np.intp]:
        """Return the index array that sorts by key. Groups are ranges of keys, so that it need not know them."""
        return sort_by_words(packed.find_words(self.word_count))


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch."""

    seed: int
    epoch: int
    reshuffle: str
    """One of `RESHUFFLES`."""
    store_seed: int
    mix: int = 1
    """Number of piles of each set in a group."""

    can_split = False
    word_count = 1
    of_values = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_number("seed", self.seed, MAX_SEED))
        object.__setattr__(self, "epoch", check_number("epoch", self.epoch, MAX_EPOCH))
        if self.reshuffle not in RESHUFFLES:
            raise UsageError(f"reshuffle={self.reshuffle!r}: give one of {', '.join(map(repr, RESHUFFLES))}")

    @property
    def is_stored(self) -> bool:
        """Whether this is the order of the store's own keys: that of `gather`."""
        return self._drawn_epoch == 0 and self.seed == self.store_seed and self.mix == 1

    @property
    def _drawn_epoch(self) -> int:
        return 0 if self.reshuffle == "none" else self.epoch

    def find_slots(self, set_names: Sequence[str], pile_count: int) -> NDArray[np.intp]:
        """Return the pile in each slot of each set, shape ``(K, M)``."""
        shape = (len(set_names), pile_count)
        if self.is_stored:
            return np.broadcast_to(np.arange(pile_count), shape)
        if self.reshuffle == "piles":
            return np.broadcast_to(self._permute(pile_count, _SLOTS, self.epoch), shape)
        slots = np.empty(shape, np.intp)
        for index, name in enumerate(set_names):
            slots[index] = self._permute(pile_count, _SLOTS_OF_SET, self._drawn_epoch, *stream_of(name))
        return slots

    def sort(self, groups: Sequence[int], sizes: Sequence[int], packed: Packed) -> NDArray[np.intp]:
        """Return the index array that puts the records of consecutive groups, of so many records each, in order."""
        parts, begin = [], 0
        for group, size in zip(groups, sizes, strict=True):
            rows = slice(begin, begin + size)
            parts.append(begin + self.sort_group(group, packed.keys[rows], packed.origins[rows]))
            begin = rows.stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def sort_group(
        self, group: int, keys: NDArray[np.uint64], origins: NDArray[np.uint64]
    ) -> NDArray[np.intp]:
        """Return the index array that puts the records of a group in the order of the epoch; `origins` are their provenance."""
        index = sort_by_key(keys)
        ordered = keys[index]
        if (ordered[1:] == ordered[:-1]).any():
            index = np.lexsort((origins, keys))
        if self.is_stored:
            return index
        return index[self._permute(len(keys), _RECORDS_OF_GROUP, self._drawn_epoch, group)]

    def order_sequences(self, group: int, count: int) -> NDArray[np.intp]:
        """Return the permutation of the sequences that a group has been packed into."""
        return self._permute(count, _SEQUENCES_OF_GROUP, self._drawn_epoch, group)

    def draw_seeds(self, origins: NDArray[np.uint64], *store: int) -> NDArray[np.uint64]:
        """Return a seed for each record, by its provenance: a function of seed, epoch, source and row.

        In a mix, also of the number of the `store`.
        """
        first, second = self._draw(2, _SEEDS, self.epoch, *store)
        return _mix(_mix(origins ^ first) ^ second)

    def _permute(self, count: int, *stream: int) -> NDArray[np.intp]:
        return sort_by_key(self._draw(count, *stream))

    def _draw(self, count: int, *stream: int) -> NDArray[np.uint64]:
        drawn: NDArray[np.uint64] = Philox(SeedSequence(self.seed, spawn_key=stream)).random_raw(count)
        return drawn


def find_meetings(set_count: int, pile_count: int, mix: int) -> float:
    """Return how much more often than by chance records that shared a group share one again in the next epoch of "rotate".

    >>> round(find_meetings(16, 1024, 1)), round(find_meetings(16, 1024, 8))
    (65, 2)
    """
    return 1 + (pile_count / mix - 1) ** 2 / (set_count * max(1, pile_count - 1))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of splitmix64 for each state."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
