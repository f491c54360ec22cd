"""What an epoch is, slowly: every record a tuple, sorted by Python and cut as lists."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
import xxhash


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


def count_before(done: int, counts: list[int], lane: int = 0, lanes: int = 1) -> list[int]:
    """Return how many of the first records of a lane of a mix are of each store."""
    found: list[int] = []
    for number, own in enumerate(counts):
        left = sum(counts[number:])
        share = Fraction((done - sum(found)) * own, left) + Fraction(lane, lanes) if left else 0
        found.append(math.floor(share))
    return found


class Mix(NamedTuple):
    """What decides the batches of a mix."""

    stores: list[Callable[[int], list[list]]]
    """Gives the groups of an epoch of each store."""
    weights: dict[int, list[float]]
    """By the step from which on they hold, since step 0 of epoch 0; 0 for a store that rests."""
    batch: int
    seed: int
    lanes: int = 1
    measure: Callable[[int, object], int] | None = None
    """Gives the tokens of a record of a store, if weights are those of tokens."""
    first_epoch: int = 0

    @property
    def steps(self) -> int:
        sizes = [len(flatten(read(0))) for read, own in zip(self.stores, self.weights[0], strict=True) if own]
        return sum(sizes) // self.batch


def mix_batches(mix: Mix, epochs: int) -> list[list[list[tuple[int, object]]]]:
    """Return the batches of the first epochs: for each lane back to back, the number of the store and the record."""
    lanes = [mix_lane(mix, lane) for lane in range(mix.lanes)]
    steps = mix.steps
    batches = [flatten(next(lane) for lane in lanes) for _ in range(epochs * steps)]
    return [batches[epoch * steps : (epoch + 1) * steps] for epoch in range(epochs)]


def stream_lane(read: Callable[[int], list[list]], lane: int, lanes: int) -> Iterator[object]:
    """Yield the records of a lane of a store, epoch after epoch."""
    for epoch in count():
        yield from flatten(read(epoch)[lane::lanes])


def mix_lane(mix: Mix, lane: int) -> Iterator[list[tuple[int, object]]]:
    """Yield the part of a lane of each global batch, epoch after epoch."""
    rows, key = mix.batch // mix.lanes, (lane,) if mix.lanes > 1 else ()
    streams = [stream_lane(read, lane, mix.lanes) for read in mix.stores]
    weights, tokens, steps = mix.weights[0], [0] * len(streams), mix.steps
    for done in count():
        if done in mix.weights:
            weights, tokens = mix.weights[done], [0] * len(streams)
        epoch, step = divmod(done, steps)
        taken: list[list] = [[] for _ in streams]
        if mix.measure is None:
            counts = share_out(steps * rows, weights)
            ends, begins = (count_before(end * rows, counts, lane, mix.lanes) for end in (step + 1, step))
            for own, stream, end, begin in zip(taken, streams, ends, begins, strict=True):
                own += islice(stream, end - begin)
        else:
            for _ in range(rows):
                _, number = min((tokens[number] / own, number) for number, own in enumerate(weights) if own)
                taken[number].append(next(streams[number]))
                tokens[number] += mix.measure(number, taken[number][-1])
        labels = flatten([number] * len(own) for number, own in enumerate(taken))
        order = sort_by(raw(mix.seed, 6, mix.first_epoch + epoch, step, *key, count=rows), labels)
        yield [(number, taken[number].pop(0)) for number in order]


# Chains of loaders, each of which goes on where the one before was left, on another number of ranks


def run_legs(
    legs: Iterable[Sequence[Any]],
    make_ranks: Callable[[int], Iterable[Any]],
    show: Callable[[Any], list[Any]],
    *,
    then: Callable[[Any], object] = lambda _: None,
    read: Callable[..., Iterable[Any]] = lambda loader, count, *_: islice(loader, count),
    counts: bool = True,
) -> list[list[Any]]:
    """Return the rows of all global batches. The state that all ranks are left with is the same, and that of their position.

    Parameters
    ----------
    legs
        How many batches are taken, None for all, on how many ranks, and what else `read` wants to know.
    show
        Returns the rows of a batch.
    then
        Called with each loader when it has its state.
    read
        Gives the batches of a loader in a leg.
    counts
        Whether loaders count what they yield.
    """
    found: list[list[Any]] = []
    text = None
    for leg in legs:
        ranks, texts = [], set()
        for loader in make_ranks(leg[1]):
            if text is not None:
                loader.load_state_dict(json.loads(text))
            then(loader)
            begun = loader.state_dict()
            assert text in (None, json.dumps(begun))
            ranks.append([show(batch) for batch in read(loader, *leg)])
            state = loader.describe(begun["epoch"], begun["step"] + len(ranks[-1]))
            assert not counts or loader.state_dict() == state
            texts.add(json.dumps(state))
        (text,) = texts
        found += [flatten(parts) for parts in zip(*ranks, strict=True)]
    return found
