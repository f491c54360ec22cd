"""The weights of a mix, and how they change: a schedule of stretches, each with a weight for every store."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import xxhash
from numpy.random import Philox, SeedSequence

from recshuf.errors import UsageError
from recshuf.records.keys import apportion, count_before, sort_by_key
from recshuf.system.units import check_number
from recshuf.train.schedule import MOST_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.train.schedule import Sharding


Unit = Literal["step", "epoch"]
"""What the numbers of a schedule count; steps are global batches since step 0 of epoch 0."""
SEQUENCE_STEPS = 1 << 20
"""Steps in which sequences, which have no epochs, are shared exactly."""
_LABELS = 6
_LEAST = 1e-200
"""Least weight, so that numbers of tokens can be divided by it."""


class Stretch(NamedTuple):
    """Batches whose stores have the same weights."""

    start: int
    """Number of the first one, since step 0 of epoch 0."""
    weights: tuple[float, ...]
    """By number of the store; 0 for one that gives nothing."""


class Weights(NamedTuple):
    """The stores of a mix, and their weights in each stretch."""

    stores: tuple[Any, ...]
    """In the order in which they are named first. The number of a store is its place."""
    stretches: tuple[Stretch, ...]
    """Ascending, the first from 0. Starts count in `unit`."""
    unit: str

    @classmethod
    def read(cls, weights: Any, unit: str) -> Weights:
        """Return the weights of a dict from stores, or of a schedule: a dict from numbers to such."""
        if not isinstance(weights, Mapping) or not weights:
            raise UsageError(f"weights={weights!r}: give a dict from stores to their weights")
        if unit not in get_args(Unit):
            raise UsageError(f"schedule_by={unit!r}: give 'step' or 'epoch'")
        is_schedule = any(isinstance(one, Mapping) for one in weights.values())
        schedule = _check_schedule(weights) if is_schedule else {0: weights}
        read = {start: _read_stretch(own, can_rest=is_schedule) for start, own in sorted(schedule.items())}
        stores = tuple(dict.fromkeys(store for own in read.values() for store in own))
        for store in stores:
            if not any(own.get(store) for own in read.values()):
                raise UsageError(f"{name_store(store)}: its weight is 0 from the first step on; leave it out")
        return cls(
            stores,
            tuple(Stretch(start, tuple(own.get(one, 0) for one in stores)) for start, own in read.items()),
            unit,
        )

    def show(self) -> dict[Any, Any]:
        """Return what `read` was given, with names in place of stores."""
        names = [name_store(store) for store in self.stores]
        shown = {
            start: {name: weight for name, weight in zip(names, own, strict=True) if weight}
            for start, own in self.stretches
        }
        return shown if len(shown) > 1 else shown[0]

    def count_from(self, steps: int) -> tuple[Stretch, ...]:
        """Return the stretches with starts in steps, if an epoch has so many."""
        factor = steps if self.unit == "epoch" else 1
        return tuple(one._replace(start=one.start * factor) for one in self.stretches)


def name_store(store: Any) -> str:
    return str(getattr(store, "path", store))


def _check_schedule(weights: Mapping[Any, Any]) -> dict[int, Any]:
    """Return a schedule with starts as numbers of Python."""
    found = {}
    for start, own in weights.items():
        if not isinstance(own, Mapping):
            raise UsageError(
                f"weights: {start!r} has {own!r} in place of a dict of weights; a schedule is a dict from numbers to dicts, "
                "such as {0: {'web': 1}, 10_000: {'web': 1, 'code': 2}}"
            )
        found[check_number("weights: start of a stretch", start, MOST_STEPS)] = own
    if 0 not in found:
        raise UsageError(f"weights: a schedule starts at {min(found)}; give weights from 0 on, too")
    return found


def _read_stretch(weights: Mapping[Any, Any], *, can_rest: bool) -> dict[Any, float]:
    """Return weights as numbers of Python; `can_rest` says whether a store may have 0."""
    read = {}
    for store, weight in weights.items():
        number = weight.item() if isinstance(weight, np.generic) else weight
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not (_LEAST <= number <= 1 / _LEAST or (can_rest and number == 0)):
            raise UsageError(f"{name_store(store)}: its weight is {weight!r:.80}; give a positive number")
        read[store] = number
    if not any(read.values()):
        raise UsageError(f"weights={weights!r}: no store has a weight above 0; give one to some")
    return read


class RecordShares:
    """How many records of each store a lane takes, if weights are those of records: a function of the step.

    In an epoch with weights w, ``apportion`` gives each store its number of the lane's records, and ``count_before`` those of
    the first steps. A batch has what the numbers differ by for the weights of its own step. So batches before a change do
    not depend on it.

    Parameters
    ----------
    stretches
        Starts in steps.
    steps
        Number of steps of an epoch.
    rows
        Records that the lane has in a batch.
    """

    def __init__(
        self, stretches: Sequence[Stretch], steps: int, rows: int, lane: int = 0, lanes: int = 1
    ) -> None:
        self._starts = [stretch.start for stretch in stretches]
        self.counts = [apportion(steps * rows, stretch.weights) for stretch in stretches]
        """Records of each store in an epoch of each stretch."""
        self.rows = rows
        self._steps, self._lane, self._lanes = steps, lane, lanes
        self._before = [[0] * len(self.counts[0])]
        """Records of each store before each stretch."""
        for stop in self._starts[1:]:
            self._before.append(self._count(len(self._before) - 1, stop))

    def before(self, step: int) -> list[int]:
        """Return how many records of each store come before a step, counted since step 0 of epoch 0."""
        return self._count(bisect_right(self._starts, step) - 1, step)

    def _count(self, stretch: int, stop: int) -> list[int]:
        """Return how many records come before a step that a stretch reaches."""
        start, counts = self._starts[stretch], self.counts[stretch]
        gained = zip(
            self._before[stretch], self._reach(stop, counts), self._reach(start, counts), strict=True
        )
        return [before + reached - skipped for before, reached, skipped in gained]

    def _reach(self, step: int, counts: Sequence[int]) -> list[int]:
        """Return how many records come before a step if these are the counts of all epochs."""
        epochs, step = divmod(step, self._steps or 1)
        inside = count_before(step * self.rows, counts, self._lane, self._lanes)
        return [epochs * count + own for count, own in zip(counts, inside, strict=True)]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Of which stores the lanes of global batches are."""

    stretches: tuple[Stretch, ...]
    """Starts in steps."""
    steps: int
    """Number of steps of an epoch."""
    sharding: Sharding
    seed: int
    stores: tuple[list[Any], ...] = ()
    """What tells each store and its order from others, as JSON values; none for one store without weights."""
    has_shares: bool = True
    """Whether weights are those of records, or of whatever the rows of a batch are."""
    contents: tuple[str, ...] = ()
    """What tells the records of each store from those of a copy that was changed apart."""
    _told: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """What `describe` says of the first changes, as JSON."""

    @property
    def rows(self) -> int:
        """Rows that a lane has in a global batch."""
        return self.sharding.batch // self.sharding.lanes

    def share(self, lane: int) -> RecordShares:
        """Return how many rows of each store a lane takes."""
        return RecordShares(self.stretches, self.steps, self.rows, lane, self.sharding.lanes)

    def draw_labels(self, lane: int, epoch: int, step: int, counts: Sequence[int]) -> NDArray[np.intp]:
        """Return the store of each row of a lane of a batch, which has so many of each."""
        labels = np.repeat(np.arange(len(counts)), counts)
        if not self.stores:
            return labels
        key = (_LABELS, epoch, step) if self.sharding.lanes == 1 else (_LABELS, epoch, step, lane)
        outputs = Philox(SeedSequence(self.seed, spawn_key=key))
        return labels[sort_by_key(outputs.random_raw(self.rows))]

    def describe(self, step: int) -> dict[str, Any]:
        """Return the fields of a state that tell the stores and weights of the batches before a step."""
        if not self.stores:
            return {}
        first, *later = [one for one in self.stretches if not one.start or one.start < step]
        for stretch in later[len(self._told) :]:
            self._told.append(json.dumps([stretch.start, self._identify(stretch)]))
        past = ", ".join(self._told[: len(later)])
        weights = zip(*(stretch.weights for stretch in (first, *later)), strict=True)
        used = [content for content, own in zip(self.contents, weights, strict=True) if any(own)]
        return {
            # Of the id, the snapshot and the seed of each store, and of the records that it gives to an epoch.
            "stores": xxhash.xxh3_128_hexdigest(json.dumps(self._identify(first)).encode()),
            # The same of the changes since.
            "weights": xxhash.xxh3_64_hexdigest(f"[{past}]".encode()) if past else None,
            "sets": xxhash.xxh3_64_hexdigest(json.dumps(used).encode()),
        }

    def _identify(self, stretch: Stretch) -> list[Any]:
        """Return what tells the stores of a stretch, and how much each gives."""
        if self.has_shares:
            shares: Sequence[Any] = RecordShares([stretch], self.steps, self.rows).counts[0]
        else:
            shares = [float(weight).hex() for weight in stretch.weights]
        chosen = zip(self.stores, shares, stretch.weights, strict=True)
        return [[*store[:3], share, *store[3:]] for store, share, weight in chosen if weight]


def find_places(labels: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Return the index array that orders rows as the labels of lanes say, which lie lane by lane and store by store."""
    index, begin = np.empty(sum(map(len, labels)), np.intp), 0
    for own in labels:
        stop = begin + len(own)
        # The k-th of all, by store, belongs where the label of that rank lies.
        index[begin + np.argsort(own, kind="stable")] = np.arange(begin, stop)
        begin = stop
    return index
