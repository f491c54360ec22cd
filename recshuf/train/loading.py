"""Stores as loaders open them, the groups that they read, and how threads load these ahead, while the consumer does something else."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np

from recshuf.errors import UsageError
from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputSummary
from recshuf.piles.groups import Groups
from recshuf.piles.kept.place import StorePlace
from recshuf.piles.kept.region_cache import RegionCache
from recshuf.piles.kept.stored import StoredPiles, open_place
from recshuf.system.threads import Pool
from recshuf.system.units import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from recshuf.interfaces import Decoder
    from recshuf.piles.epochs import EpochOrder
    from recshuf.storage import StorageOptions


LEAST_AWAY = 0.5
"""Part of the CPU time that a value takes for which the consumer must be away, so that computing ahead pays.

Two threads of Python take turns. In a loop that does nothing else, that takes more than what they do at once saves.
"""
Item = TypeVar("Item")
Value = TypeVar("Value")
_unfinished: WeakSet[Generator[Any]] = WeakSet()


def open_piles(store: Any, storage: StorageOptions | None = None) -> tuple[StoredPiles, bool]:
    """Return the piles of a store, and whether the caller must close them.

    Parameters
    ----------
    store
        Path or URL of a store, a `PileStore`, or its piles.
    storage
        For URLs.
    """
    if isinstance(store, str | os.PathLike | StorePlace):
        return StoredPiles(open_place(store, storage)), True
    if hasattr(store, "piles"):
        return store.piles(), True
    if not hasattr(store, "store_id"):
        raise UsageError(f"store={store!r}: give the path or URL of a store, or a PileStore")
    return store, False


def open_cache(place: Any, most_bytes: Any) -> RegionCache | None:
    """Return the cache of regions that a loader was given, if any: a folder, and a size or None."""
    if place is None:
        if most_bytes is not None:
            raise UsageError(f"cache_bytes={most_bytes!r}: there is no cache; give its folder, too")
        return None
    if place == "":
        raise UsageError("cache='': give a folder, or None")
    return RegionCache(place, None if most_bytes is None else check_size("cache_bytes", most_bytes, least=1))


def restore_decoder(piles: StoredPiles) -> Decoder:
    """Return the decoder from native records, without provenance, to table form."""
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    return StoredSource(piles.schema, piles.info.origin, inputs).decoder()


class Bundle(NamedTuple):
    """Groups to load together."""

    epoch: int
    groups: Groups
    numbers: list[int]
    following: list[int]
    """Groups that are loaded next."""


def list_bundles(epoch: int, groups: Groups, bundles: Iterable[list[int]]) -> Iterator[Bundle]:
    """Yield bundles of groups of an epoch, each with the one that follows it."""
    for numbers, following in pairwise(chain(bundles, [[]])):
        yield Bundle(epoch, groups, numbers, following)


@dataclass(frozen=True, slots=True)
class GroupSource:
    """The groups of a store, epoch by epoch."""

    piles: StoredPiles
    """They stay open."""
    order: EpochOrder
    """That of one epoch; others differ in their number."""
    prefetch: int
    """Number of groups that threads load ahead."""

    def open(self, epoch: int) -> Groups:
        return Groups(self.piles, replace(self.order, epoch=epoch))

    def check_lanes(self, epoch: int, lanes: int) -> None:
        """Refuse lanes of which one has no records in an epoch."""
        groups = self.open(epoch)
        for lane in range(lanes):
            find_lane(groups, epoch, lane, lanes)

    def walk_lane(self, lane: int, lanes: int, epoch: int, first: int, most_bytes: int) -> Iterator[Bundle]:
        """Yield the groups of a lane from one on, epoch after epoch without end, up to so many bytes together."""
        while True:
            groups = self.open(epoch)
            numbers = find_lane(groups, epoch, lane, lanes)
            wanted = groups.bundle(numbers[numbers >= first].tolist(), most_bytes)
            yield from list_bundles(epoch, groups, groups.announce(wanted))
            epoch, first = epoch + 1, 0


def find_lane(groups: Groups, epoch: int, lane: int, lanes: int) -> NDArray[np.int64]:
    """Return the numbers of the groups of a lane of an epoch that have records, in order."""
    sizes = groups.sizes
    numbers = np.arange(lane, len(sizes), lanes)
    filled = numbers[sizes[numbers] > 0]
    if not sizes.any():
        raise UsageError("the store holds no records; append some, or give another store")
    if not filled.size:
        raise UsageError(f"lane {lane} has no records in epoch {epoch}; give fewer lanes")
    return filled


@dataclass(slots=True)
class Absence:
    """What the consumer has done since the latest value."""

    seconds: float = 0.0
    """How long it was doing something else."""
    is_relieved: bool = False
    """Whether another thread computes the next values, so that what this one holds to do so can go. The consumer may reset it."""


def compute_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], ahead: int, absence: Absence | None = None
) -> Generator[Value]:
    """Yield a function's value for each item in turn; threads compute up to `ahead` of the next ones meanwhile.

    The threads end with the iterator: when it is exhausted, closed or dropped, or after an error of the function,
    which is raised in place of the value.

    Parameters
    ----------
    absence
        Kept by the consumer. While it is short, the thread that iterates computes the values. Default: it is long.
    """
    process = os.getpid()
    waiting = iter(items)
    computed: deque[Future[Value]] = deque()
    seconds = 0.0  # CPU time of the latest call

    def compute(item: Item) -> Value:
        nonlocal seconds
        begin = time.thread_time()
        value = function(item)
        seconds = time.thread_time() - begin
        return value

    with Pool(max(1, min(ahead, os.cpu_count() or 1)), "load") as pool:
        try:
            while True:
                if os.getpid() != process:
                    raise UsageError(
                        "this iterator belongs to another process: call iter(loader) in this one"
                    )
                if computed:
                    value = computed.popleft().result()
                else:
                    following = list(islice(waiting, 1))
                    if not following:
                        return
                    value = compute(following[0])
                if absence is None or absence.seconds >= LEAST_AWAY * seconds:
                    for item in islice(waiting, ahead - len(computed)):
                        computed.append(pool.submit(compute, item))
                if absence is not None:
                    absence.seconds, absence.is_relieved = 0.0, bool(computed)
                yield value
                del value  # to be freed before the next one is there
        finally:
            for future in computed:
                future.cancel()


def close_at_exit(values: Generator[Value]) -> Generator[Value]:
    """Return a generator, which is closed before the interpreter takes modules apart, so that it can still clean up."""
    _unfinished.add(values)
    return values


@atexit.register
def _close_unfinished() -> None:
    for values in list(_unfinished):
        with suppress(ValueError):  # another thread is in it
            values.close()
