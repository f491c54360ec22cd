"""Mixes against the oracle: any stores, weights, lanes, ranks and resumes; and what is refused."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufWarning, UsageError
from recshuf.loader import MixLoader
from recshuf.piles.epochs import EpochOrder
from recshuf.records.keys import RowRange, draw_keys, find_piles
from recshuf.train.loader import PileLoader
from recshuf.train.weights import Mixture
from tests.support.stores.epoch_oracle import Mix, Rules, group_records, mix_batches, run_legs
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.token_documents import tokens_of


def make_mix(sizes: list[int], weights: list[float], batch_size: int, **arguments: Any) -> MixLoader:
    return MixLoader(
        dict(zip(make_stores(sizes), weights, strict=True)),
        batch_size,
        **{"columns": ["_store", "_id"]} | arguments,
    )


def make_stores(sizes: list[int]) -> list[FakePiles]:
    return [
        FakePiles({"a": [size], "b": [size // 2 + 1]}, 3, seed=number, store_id=f"{number:032}")
        for number, size in enumerate(sizes)
    ]


def show(batch: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return store, source and row of each record."""
    return [(one, *ids) for one, ids in zip(batch["_store"].tolist(), batch["_id"].tolist(), strict=True)]


# Against the oracle

EPOCHS = 3


LENGTHS: dict[str | None, Callable[[int, Any], int]] = {
    "tokens": lambda _, record: len(tokens_of(*record[:2])),
    "pairs": lambda *_: 2,
}
"""How much a record of a store weighs by a column."""


def make_tokens(source: int, count: int) -> pa.RecordBatch:
    tokens = pa.array([tokens_of(source, row) for row in range(count)], pa.list_(pa.int32()))
    return pa.record_batch({"tokens": tokens, "pairs": pa.array([[0, 0]] * count, pa.list_(pa.int8(), 2))})


class Case(NamedTuple):
    """A mix, and where it is left and taken up again."""

    stores: list[FakePiles]
    weights: dict[int, list[float]]
    by_epoch: bool
    weight_by: str | None
    batch: int
    lanes: int
    order: dict[str, Any]
    legs: list[tuple[int | None, int, int]]
    """Batches, ranks, and workers."""


def draw(seed: int) -> Case:
    """Return a case."""
    random = Random(seed)
    lanes = random.choice([1, 1, 2, 4])
    piles = random.randint(2, 5) * lanes
    stores = [
        FakePiles(
            {
                "a": [random.randint(6, 20) * lanes, random.randint(0, 9)],
                "b": [random.randint(8, 12) * lanes],
            },
            piles,
            make_tokens,
            seed=random.randint(0, 9),
            store_id=f"{number:032}",
        )
        for number in range(random.randint(1, 4))
    ]
    starts = sorted({0, *random.sample(range(1, 9), random.choice([0, 0, 1, 2]))})
    weights = {start: [random.choice([0, 0.1, 1, 2, 7.5]) for _ in stores] for start in starts}
    for own in weights.values():
        own[random.randrange(len(stores))] = 1
    for number in range(len(stores)):
        weights[0][number] = weights[0][number] or (0 if any(own[number] for own in weights.values()) else 3)
    order = {
        "seed": random.choice([None, 5]),
        "reshuffle": random.choice(["rotate", "rotate", "piles", "none"]),
        "mix": random.choice([1, 1, 2]) if lanes == 1 else 1,
    }
    worlds = [world for world in (1, 2, 3, 4) if lanes == 1 or lanes % world == 0]
    counts = [*(random.randint(0, 5) for _ in range(3)), None]
    legs = [(count, random.choice(worlds), random.randint(0, 3)) for count in counts]
    weight_by = random.choice([None, None, "tokens", *LENGTHS])
    return Case(stores, weights, random.random() < 0.3, weight_by, 12, lanes, order, legs)


def read_groups(number: int, store: FakePiles, order: dict[str, Any]) -> Callable[[int], list[list[Any]]]:
    """Return what gives source, row and seed of the records of the groups of an epoch."""
    records = store.records()
    own = store.seed if order["seed"] is None else order["seed"]

    @cache
    def read(epoch: int) -> list[list[Any]]:
        rules = Rules(own, epoch, order["reshuffle"], order["mix"], store.seed)
        groups = group_records(records, list(store.names), store.pile_count, rules)
        origins = np.array([one.source << 42 | one.row for group in groups for one in group], np.uint64)
        order_of_epoch = EpochOrder(own, epoch, order["reshuffle"], store.seed)
        seeds = iter(order_of_epoch.draw_seeds(origins, number).tolist())
        return [[(*one.id, next(seeds)) for one in group] for group in groups]

    return read


def expect(case: Case) -> list[list[list[tuple[int, Any]]]]:
    """Return the global batches of all epochs."""
    mix = Mix(
        [read_groups(number, store, case.order) for number, store in enumerate(case.stores)],
        case.weights,
        case.batch,
        case.stores[0].seed if case.order["seed"] is None else case.order["seed"],
        case.lanes,
        LENGTHS.get(case.weight_by),
    )
    if case.by_epoch:
        mix = mix._replace(weights={epoch * mix.steps: own for epoch, own in case.weights.items()})
    return mix_batches(mix, EPOCHS)


def make_ranks(case: Case, world: int, make: Any = MixLoader) -> list[Any]:
    named = {
        start: {store: weight for store, weight in zip(case.stores, own, strict=True) if weight or not start}
        for start, own in case.weights.items()
    }
    return [
        make(
            named, case.batch // world, rank=rank, world_size=world, lanes=case.lanes, columns=["_store", "_id"],
            schedule_by="epoch" if case.by_epoch else "step", transform=lambda batch, seeds: batch | {"seed": seeds}, **case.order, weight_by=case.weight_by,
        )
        for rank in range(world)
    ]  # fmt: skip


def check_case(seed: int, make: Any = MixLoader, run: Any = run_legs) -> None:
    """Compare all batches of an epoch, and the seeds of their records, read in legs by other numbers of ranks, with the oracle's."""
    case, epoch = draw(seed), seed % EPOCHS
    found = run(
        case.legs,
        lambda world: make_ranks(case, world, make),
        lambda batch: [(*one, seed) for one, seed in zip(show(batch), batch["seed"].tolist(), strict=True)],
        then=lambda loader: loader.set_epoch(epoch),
    )
    expected = expect(case)[epoch]
    assert found == [[(store, *ids) for store, ids in batch] for batch in expected], seed
    if make is MixLoader and not case.weight_by:
        (loader,) = make_ranks(case, 1)
        loader.set_epoch(epoch)
        counts = Counter(store for batch in expected for store, _ in batch)
        assert loader.counts == [counts[number] for number in range(len(case.stores))]


@pytest.mark.parametrize(
    "seeds",
    [
        (*range(25), 33),  # which begins other weights of tokens within an epoch
        *(pytest.param(range(first, first + 57), marks=pytest.mark.slow) for first in range(25, 310, 57)),
    ],
)
def test_chains_of_resumes_on_other_numbers_of_ranks_yield_the_batches_of_the_oracle(
    monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]
) -> None:
    for seed in seeds:
        # Groups are loaded one by one, or all of a store at once.
        monkeypatch.setattr("recshuf.train.batch_reader.BUNDLE_BYTES", (1, 4 << 20)[seed % 2])
        check_case(seed)


def test_a_schedule_may_differ_from_that_of_a_state_after_its_step_only() -> None:
    first, second, new = make_stores([30, 20, 10])
    past = {0: {first: 1}, 3: {first: 1, second: 2}}
    loader = MixLoader(past, 4, columns=["_store", "_id"])
    whole = [show(batch) for batch in loader]
    loader.seek(0, 6)
    state = loader.state_dict()
    for later in ({}, {6: {second: 1}}, {7: {second: 1, new: 5}}, {100: {new: 1}}):
        other = MixLoader(past | later, 4, columns=["_store", "_id"])
        other.load_state_dict(state)
        found = whole[:6] + [show(batch) for batch in other]
        assert found[:7] == whole[:7] or 6 in later
        for number in range(3):
            rows = [row[1:] for batch in found for row in batch if row[0] == number]
            assert len(set(rows)) == len(rows), "a record came twice"
    for changed in ({3: {first: 2, second: 1}}, {4: past[3], 3: past[0]}, {5: {second: 1}}):
        with pytest.raises(
            UsageError, match=r"^load_state_dict: 'weights' is .*; what comes later may differ"
        ):
            MixLoader(past | changed, 4).load_state_dict(state)
    with pytest.raises(UsageError, match=r"^load_state_dict: 'stores' is "):
        MixLoader(past | {0: {second: 1}}, 4).load_state_dict(state)
    plain = MixLoader({first: 1}, 4)
    plain.seek(0, 5)
    MixLoader({0: {first: 1}, 5: {new: 1}}, 4).load_state_dict(plain.state_dict())
    with pytest.raises(UsageError, match=r"^load_state_dict: 'weights' is None"):
        MixLoader({0: {first: 1}, 4: {new: 1}}, 4).load_state_dict(plain.state_dict())


def test_a_state_tells_changes_that_an_earlier_one_told_without_counting_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frameworks take a state of each batch."""
    (store,) = make_stores([90])
    loader = MixLoader({step: {store: step + 1} for step in range(20)}, 4)
    told, identify = list[int](), Mixture._identify
    monkeypatch.setattr(
        Mixture, "_identify", lambda self, stretch: told.append(stretch.start) or identify(self, stretch)
    )
    states = [loader.describe(0, step) for step in (15, 5, 17, 15)]
    assert [start for start in told if start] == [*range(1, 17)]
    assert states[0] == states[3]
    assert len({state["weights"] for state in states}) == 3


def make_texts(source: int, count: int) -> pa.RecordBatch:
    lengths = np.random.default_rng([source, count]).integers(0, 60, count)
    return pa.record_batch(
        {"text": pa.array(["x" * length for length in lengths], pa.string()), "id": np.arange(count)}
    )


def test_a_lane_without_tokens_of_a_store_gives_its_records_where_their_tag_puts_them() -> None:
    def make(source: int, count: int) -> pa.RecordBatch:
        piles = find_piles(draw_keys(1, [RowRange(source, 0, count)]), 2)
        return pa.record_batch({"text": pa.array(["" if pile else "xx" for pile in piles], pa.string())})

    full, half = (FakePiles({"a": [40]}, 2, one, seed=1, store_id=str(one)) for one in (make_texts, make))
    options: dict[str, Any] = {
        "weight_by": "text",
        "lanes": 2,
        "reshuffle": "none",
        "columns": ["_store", "_id"],
    }
    epoch = list(map(show, MixLoader({full: 1, half: 1}, 8, **options)))
    taken = [store for batch in epoch for store, *_ in batch[4:]]  # those of the lane of pile 1
    assert (taken.count(0), taken.count(1)) == (1, 39)  # the first of the other one has the tag 0, too
    for step in range(len(epoch)):
        loader = MixLoader({full: 1, half: 1}, 8, **options)
        loader.seek(0, step)
        assert list(map(show, loader)) == epoch[step:]


def test_records_of_one_length_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next one of the first store is not loaded yet, and one of the other has the same tag."""
    monkeypatch.setattr("recshuf.train.batch_reader.BUNDLE_BYTES", 1)

    def make(_: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"text": pa.array(["x"] * count, pa.string())})

    for rows in (3, 5, 7, 21):
        stores = [FakePiles({"a": [200]}, 20, make, seed=number, store_id=str(number)) for number in range(2)]
        loader = MixLoader(dict.fromkeys(stores, 1), rows, columns=["_store", "text"], weight_by="text")
        firsts = np.cumsum([np.count_nonzero(batch["_store"] == 0) for batch in loader]).tolist()
        assert firsts == [-(-step * rows // 2) for step in range(1, 400 // rows + 1)]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_resume_reads_few_groups(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    monkeypatch.setattr("recshuf.train.batch_reader.BUNDLE_BYTES", 1)
    stores = [
        FakePiles({"a": [300 + number]}, 40, make_texts, seed=number, store_id=f"{number:032}")
        for number in range(3)
    ]
    for options, most in (({}, 1), ({"weight_by": "text"}, 3)):
        loader = MixLoader(dict.fromkeys(stores, 1), 2, lanes=lanes, prefetch=0, **options)
        loader.seek(2, 400)
        for store in stores:
            store.loads.clear()
        next(iter(loader))
        for store in stores:
            assert len(store.loads) <= most * lanes


@pytest.mark.parametrize("weight_by", [None, "text"])
def test_a_rank_reads_its_own_lanes_of_each_store(weight_by: str | None) -> None:
    options: dict[str, Any] = {"world_size": 2, "lanes": 4, "weight_by": weight_by, "reshuffle": "none"}
    for rank in range(2):
        stores = [
            FakePiles({"a": [200]}, 8, make_texts, seed=number, store_id=str(number)) for number in range(2)
        ]
        list(islice(MixLoader(dict.fromkeys(stores, 1), 2, rank=rank, **options), 50))
        for store in stores:
            assert {pile % 4 for load in store.loads for _, pile in load} == {2 * rank, 2 * rank + 1}


def test_a_limit_is_the_length_of_an_epoch_and_a_filter_is_that_of_each_store() -> None:
    assert len(make_mix([20, 30], [1, 1], 4, limit=1000)) == len(make_mix([20, 30], [1, 1], 4))
    keep = pc.field("id") >= 1_000_000
    loader = make_mix([20, 30], [1, 1], 4, limit=10, filter=keep)
    assert loader.schema.names == ["_store", "_id"]
    found = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        batches = [show(batch) for batch in loader]
        assert [len(one) for one in batches] == [4, 4]
        found += list(chain.from_iterable(batches))
    assert loader.counts == [4, 4]
    assert {row[1] for row in found} == {1}, "records that the filter drops came"
    for number in range(2):
        rows = [row for row in found if row[0] == number]
        most = (11, 16)[number]
        assert len(set(rows[:most])) == most
    for other in ({"limit": 12}, {"filter": pc.field("id") >= 1_000_001}):
        with pytest.raises(UsageError, match=r"^load_state_dict: '(limit|stores)' is "):
            make_mix([20, 30], [1, 1], 4, **{"limit": 10, "filter": keep} | other).load_state_dict(
                loader.state_dict()
            )


def test_a_column_called_store_is_no_riddle() -> None:
    stores = make_stores([9, 9])
    for store in stores:
        store.make = lambda source, count: pa.record_batch(
            {"id": pa.array(range(count)), "_store": ["mine"] * count}
        )
    weights = dict.fromkeys(stores, 1)
    assert next(iter(MixLoader(weights, 2)))["_store"] == ["mine"] * 2
    with pytest.raises(UsageError, match="columns: two columns are called '_store'"):
        MixLoader(weights, 2, columns=["id", "_store"])


def test_stores_whose_labels_contradict_each_other_are_mixed_aloud(tmp_path: Path) -> None:
    stores = []
    for names in (["a", "b"], ["a", "b", "c"], ["b", "a"]):
        features = {"info": {"features": {"y": {"names": names, "_type": "ClassLabel"}}}}
        table = pa.table({"y": [0, 1] * 10, "x": range(20)}, metadata={"huggingface": json.dumps(features)})
        stores.append(tmp_path / "".join(names))
        pq.write_table(table, f"{stores[-1]}.parquet")
        recshuf.scatter(f"{stores[-1]}.parquet", stores[-1], seed=1)
    first, longer, other = stores
    MixLoader({first: 0.5, longer: 0.5}, 4)
    said = r"field 'y', .*names', is \[\"a\", \"b\"\] and \[\"b\", \"a\"\];"
    with pytest.warns(RecshufWarning, match=said):
        MixLoader({first: 0.5, longer: 0.2, other: 0.3}, 4)
    MixLoader({first: 0.5, other: 0.5}, 4, columns=["x"])


def test_bad_mixes_are_named() -> None:
    for other in ("other", "id"):
        first, second = make_stores([9, 9])
        second.make = lambda _, count, name=other: pa.record_batch({name: pa.array(range(count), pa.int8())})
        said = f"has other columns than .*: {other}: int8 and id: int64;"
        with pytest.raises(UsageError, match=said):
            MixLoader({first: 1, second: 1}, 2)
    with warnings.catch_warnings(action="error"):
        MixLoader({first: 1, replace(first, snapshot=2): 1}, 2)  # the same store later
    for twins in ({first: 1, make_stores([9])[0]: 1}, {0: {first: 1}, 5: {make_stores([9])[0]: 1}}):
        with pytest.warns(
            RecshufWarning, match="is the store .*, or a copy; .*; give it one name and one weight"
        ):
            MixLoader(twins, 2)
    for weight in (0, -1, 1e-320, 10**400, float("nan"), "1", True, np.int64(0), np.bool_(True)):
        with pytest.raises(UsageError, match="its weight is"):
            MixLoader({first: weight}, 2)
    with pytest.raises(UsageError, match="no records"):
        MixLoader({first: 1, FakePiles({"a": [0]}, 2): 1}, 2)
    for weights, message in [
        ({}, "weights={}: give a dict from stores"),
        (None, "weights=None: give a dict"),
        ({0: {first: 1}, first: 1}, "weights: .* in place of a dict of weights"),
        ({5: {first: 1}}, "weights: a schedule starts at 5; give weights from 0 on, too$"),
        ({0: {first: 1}, -3: {first: 1}}, "weights: start of a stretch=-3: give an integer from 0"),
        ({0: {first: 0}, 4: {first: 1}}, "weights=.*: no store has a weight above 0"),
        ({0: {first: 1, second: 0}}, ".*its weight is 0 from the first step on; leave it out"),
    ]:
        with pytest.raises(UsageError, match=f"^{message}"):
            MixLoader(weights, 2)
    for options, message in [
        ({"columns": "id"}, "columns='id': give a list"),
        ({"columns": ["_store"]}, r"columns=\['_store'\]: name at least one column of the stores, too$"),
        ({"columns": ["_store", "id", "_store"]}, "columns: '_store' is named twice"),
        ({"columns": ["id", "id"]}, "columns: 'id' is named twice"),
        ({"drop_last": False}, "drop_last=False: a mix drops nothing"),
        ({"schedule_by": "week"}, "schedule_by='week': give 'step' or 'epoch'"),
        ({"weight_by": "id"}, "weight_by='id': .* has int64 there, which has no length"),
        ({"weight_by": "none"}, "weight_by='none': no such column in .*; it has 'id'$"),
        ({"weight_by": 3}, "weight_by=3: give the name of a column"),
        ({"lanes": 4, "batch_size": 4}, ".*: lane 3 has no records in epoch 0; give fewer lanes"),
    ]:
        with pytest.raises(UsageError, match=f"^{message}"):
            MixLoader({first: 1}, **{"batch_size": 2} | options)
    for options in ({"weight_by": "id"}, {"schedule_by": "epoch"}):
        with pytest.raises(UsageError, match=r"^weight_by, schedule_by: one store has no weights"):
            PileLoader(first, 2, **options)
