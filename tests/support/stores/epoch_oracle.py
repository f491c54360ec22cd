"""What an epoch is, slowly: every record a tuple, sorted by Python and cut as lists."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, count, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Record(NamedTuple):
    """One record; its source and row name it."""

    key: int
    source: int
    row: int
    set_name: str
    pile: int

    @property
    def id(self) -> tuple[int, int]:
        return self.source, self.row


class Rules(NamedTuple):
    """What decides the order of an epoch."""

    seed: int = 7
    epoch: int = 0
    reshuffle: str = "rotate"
    mix: int = 1
    store_seed: int = 7

    @property
    def is_stored(self) -> bool:
        return self.drawn_epoch == 0 and self.seed == self.store_seed and self.mix == 1

    @property
    def drawn_epoch(self) -> int:
        return 0 if self.reshuffle == "none" else self.epoch


def raw(seed: int, *stream: int, count: int) -> list[int]:
    """Return the first outputs of a stream."""
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)).random_raw(count).tolist()


def words(name: str) -> list[int]:
    """Return the four words of a set's name."""
    return np.frombuffer(xxhash.xxh3_128_digest(name.encode())[::-1], "<u4").tolist()


def sort_by(values: list[int], items: list) -> list:
    """Return the items in the order of their values."""
    return [item for _, _, item in sorted(zip(values, range(len(items)), items, strict=True))]


def slots_of(set_name: str, piles: int, rules: Rules) -> list[int]:
    """Return the pile in each slot of a set."""
    if rules.is_stored:
        return list(range(piles))
    stream = (3, rules.epoch) if rules.reshuffle == "piles" else (1, rules.drawn_epoch, *words(set_name))
    return sort_by(raw(rules.seed, *stream, count=piles), list(range(piles)))


def group_records(
    records: list[Record], set_names: list[str], piles: int, rules: Rules
) -> list[list[Record]]:
    """Return the records of each group, in the order of the epoch."""
    slots = {name: slots_of(name, piles, rules) for name in set_names}
    groups: list[list[Record]] = [[] for _ in range(-(-piles // rules.mix))]
    for record in records:
        groups[slots[record.set_name].index(record.pile) // rules.mix].append(record)
    for number, group in enumerate(groups):
        group.sort(key=lambda record: (record.key, record.source, record.row))
        if not rules.is_stored:
            group[:] = sort_by(raw(rules.seed, 2, rules.drawn_epoch, number, count=len(group)), group)
    return groups


def flatten(parts: Iterable[list]) -> list:
    """Return the items of all parts."""
    return list(chain.from_iterable(parts))


def cut_batches(
    groups: list[list], batch_size: int, world: int, lanes: int, drop_last: bool, limit: int | None = None
) -> list[list[list]]:
    """Return the batch of each rank, for each step."""
    batch = batch_size * world
    rows = [flatten(groups[lane::lanes]) for lane in range(lanes)]
    steps = min(len(lane) for lane in rows) // (batch // lanes)
    share = batch // lanes
    whole = [flatten(lane[t * share : (t + 1) * share] for lane in rows) for t in range(steps)]
    if not drop_last:
        tail = flatten(lane[steps * share :] for lane in rows)
        whole += [tail[start : start + batch] for start in range(0, len(tail), batch)]
    if limit is not None:
        part = [] if drop_last else [one[: limit % batch] for one in whole[limit // batch :][:1]]
        whole = whole[: limit // batch] + list(filter(None, part))
        steps = min(steps, limit // batch)
    if not drop_last:
        tail = flatten(whole[steps:])
        extra = 0
        while whole and len(whole[-1]) % max(lanes, world):
            whole[-1] = [*whole[-1], tail[extra % len(tail)]]
            extra += 1
    return [
        [one[len(one) * rank // world : len(one) * (rank + 1) // world] for rank in range(world)]
        for one in whole
    ]


def share_out(total: int, weights: list[float]) -> list[int]:
    """Return whole numbers in proportion to weights, those of the largest remainders."""
    exact = [total * Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    counts = [int(one) for one in exact]
    for _ in range(total - sum(counts)):
        rests = [one - own for one, own in zip(exact, counts, strict=True)]
        counts[rests.index(max(rests))] += 1
    return counts


def count_before(done: int, counts: list[int]) -> list[int]:
    """Return how many of the first records of a mix are of each store."""
    found: list[int] = []
    for number, own in enumerate(counts):
        left = sum(counts[number:])
        found.append((done - sum(found)) * own // left if left else 0)
    return found


def mix_batches(
    epochs: list[Callable[[int], list]], weights: list[float], batch: int, seed: int, epoch: int
) -> list[list[tuple[int, object]]]:
    """Return the global batches of a mix: number of the store and record, from what gives the epochs of each store."""
    steps = sum(len(read(0)) for read in epochs) // batch
    counts = share_out(steps * batch, weights)
    streams = [
        islice(chain.from_iterable(map(read, count())), epoch * own, None)
        for read, own in zip(epochs, counts, strict=True)
    ]
    batches = []
    for step in range(steps):
        ends, begins = count_before((step + 1) * batch, counts), count_before(step * batch, counts)
        labels = flatten([number] * (ends[number] - begins[number]) for number in range(len(counts)))
        order = sort_by(raw(seed, 6, epoch, step, count=batch), labels)
        batches.append([(number, next(streams[number])) for number in order])
    return batches
