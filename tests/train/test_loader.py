"""The loader: the oracle's batches for every rank, exact resumes, and nothing left behind."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pytest

from recshuf.errors import PileError, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.piles.slices import JoinedRecords
from recshuf.system.buffers import allocate
from recshuf.train import batch_reader as cutting
from recshuf.train import loading
from recshuf.train.loader import PileLoader
from tests.support.effort import TRIES_ALL, some
from tests.support.order_statistics import permutation_chi_square
from tests.support.stores.epoch_oracle import Record, Rules, cut_batches, group_records, run_legs
from tests.support.stores.fake_piles import FakePiles

if TYPE_CHECKING:
    from recshuf.system.buffers import Allocate

IS_EVEN = pc.bit_wise_and(pc.field("id"), 1) == 0
"""Of the number of a record, which its row decides."""


def draw_cases(count: int) -> Iterator[tuple[Random, FakePiles, dict[str, Any], dict[str, Any]]]:
    """Yield stores of a few sets, orders, and batches; keys of few bits are often equal."""
    for seed in some(range(count), 12):
        random = Random(seed)
        names = random.sample(["a", "b", "ü"], random.randint(1, 3))
        sets = {name: [random.randint(0, 40) for _ in range(random.randint(1, 3))] for name in names}
        store = FakePiles(sets, random.randint(1, 9), key_bits=random.choice([3, 40, 64]))
        order = {
            "seed": random.choice([0, 7]),
            "epoch": random.randint(0, 3),
            "reshuffle": random.choice(["rotate", "piles", "none"]),
            "mix": random.randint(1, 4),
        }
        lanes, drop_last = random.choice([1, 1, 2, 6]), random.random() < 0.5
        batch = lanes * random.randint(1, 5) if lanes > 1 else 6 * random.randint(1, 4)
        limit = random.choice([None, random.randint(batch if drop_last else 1, 100)])
        batches = {"lanes": lanes, "batch": batch, "drop_last": drop_last, "limit": limit}
        batches["filter"] = random.choice([None, IS_EVEN])
        least = batch if drop_last else 1
        if batches["filter"] is None or not store.records() or len(keep(store, batches)) >= least:
            yield random, store, order, batches  # a filter that leaves no batch is refused


def worlds_of(lanes: int) -> list[int]:
    """Return the numbers of ranks that divide any of the batches."""
    return [1, 2, 3, 6] if lanes == 1 else [world for world in (1, 2, 3, 6) if lanes % world == 0]


def make_ranks(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], world: int, **more: Any
) -> list[PileLoader]:
    cut = {name: value for name, value in batches.items() if name != "batch"}
    arguments = {"columns": ["id", "_id"]} | order | cut | more
    return [
        PileLoader(store, batches["batch"] // world, rank=rank, world_size=world, **arguments)
        for rank in range(world)
    ]


def ids_of(batches: Iterable[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    """Return source and row of the records of batches. What is written to a batch afterwards stays in it."""
    found = []
    for batch in batches:
        found.append([tuple(one) for one in batch["_id"].tolist()])
        assert batch["id"].tolist() == [source * 1_000_000 + row for source, row in found[-1]]
        batch["id"] += 1
        batch["_id"] -= 1
    return found


def expect(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], world: int
) -> list[list[list[tuple[int, int]]]]:
    """Return the ids of each rank's part of each global batch."""
    groups = group_records(keep(store, batches), list(store.names), store.pile_count, Rules(**order))
    ids = [[record.id for record in group] for group in groups]
    lanes, drop_last, limit = batches["lanes"], batches["drop_last"], batches["limit"]
    return cut_batches(ids, batches["batch"] // world, world, lanes, drop_last, limit)


def keep(store: FakePiles, batches: dict[str, Any]) -> list[Record]:
    """Return the records that a filter keeps."""
    return [one for one in store.records() if batches["filter"] is None or not one.row % 2]


def find_loaded(store: FakePiles, order: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """Return the ids of the records of the groups that were loaded, each of which was once."""
    cells = [cell for load in store.loads for cell in load]
    assert len(set(cells)) == len(cells)
    groups = group_records(store.records(), list(store.names), store.pile_count, Rules(**order))
    numbers = {name: number for number, name in enumerate(store.names)}
    return [
        [one.id for one in group]
        for group in groups
        if any((numbers[one.set_name], one.pile) in cells for one in group)
    ]


def test_every_rank_gets_the_batches_of_the_oracle_and_loads_each_of_its_groups_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for random, store, order, batches in draw_cases(300):
        monkeypatch.setattr(cutting, "BUNDLE_BYTES", random.choice([0, 100, 1 << 20]))
        world = random.choice(worlds_of(batches["lanes"]))
        expected = expect(store, order, batches, world)
        prefetch = random.randint(0, 3)
        for rank, loader in enumerate(make_ranks(store, order, batches, world, prefetch=prefetch)):
            # Lanes that yield none are refused, unless the store has fewer records than a global batch.
            if not expected and len(keep(store, batches)) >= batches["batch"]:
                named = rf"^lanes={batches['lanes']}: .* {-(-store.pile_count // order['mix'])} groups; give fewer lanes"
                for use in (len, list):
                    with pytest.raises(UsageError, match=named):
                        use(loader)
                continue
            assert len(loader) == len(expected)
            store.loads.clear()
            assert ids_of(loader) == [step[rank] for step in expected]
            mine = {one for step in expected for one in step[rank]}
            assert all(not mine.isdisjoint(group) for group in find_loaded(store, order))


@pytest.mark.parametrize(("world", "lanes", "count"), [(2, 6, 90), (3, 6, 90), (6, 1, 25)])
def test_ranks_own_lanes_that_follow_each_other_and_few_records_fill_the_last_batch(
    world: int, lanes: int, count: int
) -> None:
    store, order = FakePiles({"a": [count]}, 6), {"seed": 7, "epoch": 1, "reshuffle": "rotate", "mix": 1}
    batches: dict[str, Any] = {
        "lanes": lanes, "batch": 12, "drop_last": False, "limit": None, "filter": None,
    }  # fmt: skip
    expected = expect(store, order, batches, world)
    for rank, loader in enumerate(make_ranks(store, order, batches, world)):
        assert ids_of(loader) == [step[rank] for step in expected]
        loader.seek(1, 1)
        assert ids_of(loader) == [step[rank] for step in expected[1:]]


def test_lanes_that_cost_an_epoch_many_records_are_told_once() -> None:
    store = FakePiles({"a": [700]}, 7)
    order = {"seed": 7, "epoch": 1, "reshuffle": "rotate", "mix": 1}
    batches: dict[str, Any] = {"lanes": 4, "batch": 8}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        first, second = make_ranks(store, order, batches, 2)
        taken = 8 * len(ids_of(first))
        assert len(ids_of(second)) * 8 == taken
        first.set_epoch(2)
        ids_of(first)
    (said,) = [str(one.message) for one in told]
    assert said.startswith(f"lanes=4: epoch 1 leaves out {696 - taken} of 700 records, ")
    for fitting in ({"lanes": 1}, {"drop_last": False}, {"limit": 80}):
        with warnings.catch_warnings(action="error"):
            ids_of(make_ranks(store, order, batches | fitting, 1)[0])


def test_groups_of_records_that_no_batch_takes_are_not_loaded() -> None:
    store, order = FakePiles({"a": [47]}, 12), {"seed": 7, "epoch": 1, "reshuffle": "rotate", "mix": 1}
    for limit in (20, 40, None):
        (loader,) = make_ranks(store, order, {"batch": 20, "limit": limit}, 1)
        taken = {one for ids in ids_of(loader) for one in ids}
        assert all(not taken.isdisjoint(group) for group in find_loaded(store, order))
        store.loads.clear()


def test_chains_of_three_resumes_with_other_numbers_of_ranks_yield_the_epoch_and_its_seeds() -> None:
    for case in draw_cases(300):
        check_chain(*case)


def check_chain(random: Random, store: FakePiles, order: dict[str, Any], batches: dict[str, Any]) -> None:
    whole = expect(store, order, batches, 1)
    if not whole and len(keep(store, batches)) >= batches["batch"]:
        return  # lanes that yield none are refused
    worlds = worlds_of(batches["lanes"])
    delivered = run_legs(
        [(count, random.choice(worlds)) for count in (*(random.randint(0, 12) for _ in range(3)), None)],
        lambda world: make_ranks(
            store,
            order | {"epoch": 0},
            batches,
            world,
            transform=lambda batch, seeds: batch | {"seed": seeds},
        ),
        lambda batch: [*zip(batch["seed"].tolist(), *ids_of([batch]), strict=True)],
        # As training loops do; it must not forget the position.
        then=lambda loader: loader.set_epoch(order["epoch"]),
    )
    epoch = EpochOrder(order["seed"], order["epoch"], order["reshuffle"], store.seed)
    expected = []
    for (ids,) in whole:
        origins = np.array([source << 42 | row for source, row in ids], np.uint64)
        expected.append([*zip(epoch.draw_seeds(origins).tolist(), ids, strict=True)])
    if batches["lanes"] == 1 and not batches["drop_last"]:
        # The padding of the last batch depends on the ranks.
        assert delivered[:-1] == expected[:-1]
        assert not whole or delivered[-1][: len(expected[-1])] == expected[-1]
    else:
        assert delivered == expected


def small_store(**changes: Any) -> FakePiles:
    return replace(FakePiles({"a": [50, 40], "b": [60]}, 6), **changes)


def test_iterating_again_repeats_the_epoch_and_a_position_is_taken_once() -> None:
    loader = PileLoader(small_store(), 8)

    def read() -> list[list[int]]:
        return [batch["id"].tolist() for batch in loader]

    first = read()
    assert read() == first
    loader.set_epoch(1)
    second = read()
    assert second != first
    assert (loader.epoch, loader.state_dict()["step"]) == (1, len(second))
    loader.set_epoch(0)
    assert loader.state_dict()["step"] == 0
    loader.seek(0, 5)
    assert loader.state_dict()["step"] == 5
    assert read() == first[5:]
    assert read() == first


def test_a_resume_loads_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    store = small_store()
    loader = PileLoader(store, 8, prefetch=0, epoch=1)
    loader.seek(2, len(loader) // 2)
    assert store.loads == []
    next(iter(loader))
    assert len(store.loads) <= 2  # two, if the batch lies in two groups
    assert len(store.loads[0]) == 2, "not one region of each set"


SEEDS = 24 * (40 if TRIES_ALL else 15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reshuffle", "epoch", "mix", "lanes"),
    [
        ("rotate", 2, 2, 2),
        ("piles", 1, 1, 1),
        ("none", 0, 1, 1),
        ("none", 0, 1, 2),
        ("rotate", 1, 1, 1),
        ("piles", 1, 2, 2),
    ],
)
def test_over_the_seeds_of_stores_all_orders_are_equally_likely(
    reshuffle: str, epoch: int, mix: int, lanes: int
) -> None:
    options: dict[str, Any] = {"reshuffle": reshuffle, "epoch": epoch, "mix": mix, "lanes": lanes}
    orders = []
    for seed in range(SEEDS):
        store = FakePiles({"a": [3], "b": [1]}, 3, seed=seed)
        batches = ids_of(PileLoader(store, 2, columns=["id", "_id"], drop_last=False, prefetch=0, **options))
        orders.append([source * 3 + row for batch in batches for source, row in batch])
    assert permutation_chi_square(np.array(orders))[1] > 1e-4


def test_positions_beyond_the_epoch_are_refused_and_change_nothing() -> None:
    loader = PileLoader(small_store(), 8)
    before = loader.state_dict()
    with pytest.raises(UsageError, match=f"^step=99: give an integer from 0 to {len(loader)}$"):
        loader.seek(3, 99)
    with pytest.raises(UsageError, match=r"^epoch=-1: "):
        loader.set_epoch(-1)
    assert loader.state_dict() == before


BAD: list[tuple[dict[str, Any], str]] = [
    ({"mix": 0}, "mix=0: give"),
    ({"prefetch": -1}, "prefetch=-1: give"),
    ({"output": "tf"}, "output='tf': give one of 'numpy', "),
    ({"columns": []}, "columns=.*: name at least one"),
    ({"columns": "id"}, "columns='id': give a list"),
    ({"columns": 5}, "columns=5: give a list"),
    ({"columns": ["id", 5]}, "columns=.*: give a list"),
    ({"columns": ["nothing"]}, "columns: no column 'nothing' in the store; it has 'id'$"),
    ({"columns": ["id", "id"]}, "columns: 'id' is named twice"),
    ({"epoch": 1.0}, "epoch=1.0: give an integer"),
    ({"drop_last": "no"}, "drop_last='no': give True or False"),
    ({"transform": 5}, "transform=5: give a function"),
    ({"rank": 2, "world_size": 2}, "rank=2: give an integer from 0 to 1"),
    ({"rank": -1}, "rank=-1: "),
    ({"batch_size": 0}, "batch_size=0: "),
    ({"batch_size": 2.0}, "batch_size=2.0: "),
    ({"world_size": 0}, "world_size=0: "),
    ({"lanes": 0}, "lanes=0: "),
    ({"lanes": True}, "lanes=True: give an integer"),
    ({"lanes": 4, "world_size": 3}, "lanes=4 with world_size=3: "),
    ({"lanes": 4, "world_size": 2, "batch_size": 3}, "lanes=4 with a global batch of 6 "),
    ({"limit": 0}, "limit=0: "),
    ({"limit": 7, "world_size": 2}, "limit=7: is less than a global batch of 8 .*, or drop_last=False$"),
]


def test_bad_arguments_are_named() -> None:
    for arguments, message in BAD:
        with pytest.raises(UsageError, match=f"^{message}"):
            PileLoader(small_store(), **{"batch_size": 4} | arguments)


def live_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "recshuf" in thread.name]


def fail_at_the_first(loader: PileLoader) -> None:
    for _ in loader:
        raise ZeroDivisionError


def test_threads_end_with_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LEAST_AWAY", 0)
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    loader = PileLoader(small_store(), 8, prefetch=3)
    for _ in loader:
        assert live_threads()
    assert not live_threads()
    for _ in loader:
        break
    assert not live_threads()
    for unfinished in (iter(loader), loader.records()):
        next(unfinished)
        assert live_threads()
    del unfinished
    gc.collect()
    assert not live_threads()
    with pytest.raises(ZeroDivisionError):
        fail_at_the_first(loader)
    assert not live_threads()


class BadPiles(FakePiles):
    """A store whose third pile is damaged."""

    def pack(self, regions: Sequence[tuple[int, int]], memory: Allocate = allocate) -> JoinedRecords:
        if (0, 2) in regions:
            raise PileError("set a: region 2 is damaged")
        return super().pack(regions, memory)


@pytest.mark.parametrize(("prefetch", "least_away"), [(0, 0), (1, 1e9), (5, 0)])
def test_an_error_of_a_reader_reaches_the_consumer_in_its_place(
    prefetch: int, least_away: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "LEAST_AWAY", least_away)
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    loader = PileLoader(BadPiles({"a": [60]}, 3), 1, prefetch=prefetch)
    expected = [batch["id"].tolist() for batch in PileLoader(FakePiles({"a": [60]}, 3), 1)]
    received: list[list[int]] = []
    with pytest.raises(PileError, match=r"^set a: region 2 is damaged$"):
        received.extend(batch["id"].tolist() for batch in loader)
    assert expected[: len(received)] == received
    assert len(received) > 20
    assert loader.state_dict()["step"] == len(received)
    assert not live_threads()


@pytest.mark.parametrize("mix", [1, 3])
def test_the_system_is_told_what_is_read_next(monkeypatch: pytest.MonkeyPatch, mix: int) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 400)
    store = FakePiles({"a": [400]}, 40)
    for _ in PileLoader(store, 8, mix=mix):
        pass
    assert len(store.loads) > 4
    assert store.expected == [*store.loads[1:], []]


def test_what_a_transform_returns_is_yielded_and_resumes() -> None:
    def fold(batch: Any, seeds: np.ndarray) -> tuple[list[int], int]:
        assert batch.schema.names == ["id"]
        return batch["id"].to_pylist(), int(seeds.sum())

    loader = PileLoader(small_store(), 6, output="arrow", epoch=1, transform=fold)
    whole = list(loader)
    loader.seek(1, 7)
    assert list(loader) == whole[7:]


def test_single_records_need_columns_and_a_transform_may_leave_none_of_a_batch() -> None:
    with pytest.raises(
        UsageError, match=r"^records: the transform returned ndarray, .*; iterate over the loader"
    ):
        next(PileLoader(small_store(), 6, transform=lambda _, seeds: seeds).records())
    loader = PileLoader(small_store(), 6, transform=lambda batch, seeds: {"id": batch["id"][seeds % 16 == 0]})
    sizes = [len(batch["id"]) for batch in loader]
    assert 0 in sizes
    assert len(list(loader.records())) == sum(sizes)
    assert loader.state_dict()["step"] == len(sizes)


def test_a_batch_counts_as_received_with_its_last_record() -> None:
    loader = PileLoader(small_store(), 6)
    sizes = [len(batch["id"]) for batch in loader]
    records = loader.records()
    for step, size in enumerate(sizes):
        for _ in range(size):
            assert loader.state_dict()["step"] == step
            next(records)
    assert loader.state_dict()["step"] == len(sizes)
    assert next(records, None) is None
