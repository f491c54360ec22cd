"""Mixes through the data set of PyTorch against the oracle: any stores, weights, lanes, ranks, workers and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import pyarrow as pa

import recshuf
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.stores.epoch_oracle import Mix, Rules, flatten, group_records, mix_batches
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.mix_process import list_records, make_dataset
from tests.support.stores.token_documents import tokens_of
from tests.torch.test_resumes import iterate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

CASES = 300
EPOCHS = 3
LEGS = 4


def make_tokens(source: int, count: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"tokens": pa.array([tokens_of(source, row) for row in range(count)], pa.list_(pa.int32()))}
    )


class HashedPiles(FakePiles):
    """A store that can be the key of a dict."""

    __hash__ = object.__hash__


class Case(NamedTuple):
    """A mix, and where it is left and taken up again."""

    stores: list[HashedPiles]
    weights: dict[int, list[float]]
    by_epoch: bool
    by_tokens: bool
    batch: int
    lanes: int
    order: dict[str, Any]
    legs: list[tuple[int, int, int]]
    """Batches, workers, ranks."""


def draw(seed: int) -> Case:
    """Return a case."""
    random = Random(seed)
    lanes = random.choice([1, 1, 2, 4])
    piles = random.randint(2, 5) * lanes
    stores = [
        HashedPiles(
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
    legs = [(random.randint(0, 5), random.randint(0, 3), random.choice(worlds)) for _ in range(LEGS)]
    return Case(
        stores, weights, random.random() < 0.3, random.random() < 0.5, 12, lanes, order, legs
    )  # fmt: skip


def read_groups(store: FakePiles, order: dict[str, Any]) -> Callable[[int], list[list[Any]]]:
    records = store.records()
    own = store.seed if order["seed"] is None else order["seed"]

    @cache
    def read(epoch: int) -> list[list[Any]]:
        rules = Rules(own, epoch, order["reshuffle"], order["mix"], store.seed)
        groups = group_records(records, list(store.names), store.pile_count, rules)
        return [[one.id for one in group] for group in groups]

    return read


def expect(case: Case) -> list[list[list[tuple[int, Any]]]]:
    """Return the global batches of all epochs."""
    mix = Mix(
        [read_groups(store, case.order) for store in case.stores],
        case.weights,
        case.batch,
        case.stores[0].seed if case.order["seed"] is None else case.order["seed"],
        case.lanes,
        (lambda _, record: len(tokens_of(*record))) if case.by_tokens else None,
    )
    if case.by_epoch:
        mix = mix._replace(weights={epoch * mix.steps: own for epoch, own in case.weights.items()})
    return mix_batches(mix, EPOCHS)


def make_ranks(case: Case, world: int, stores: list[HashedPiles] | None = None) -> list[PileDataset]:
    named = {
        start: {
            store: weight
            for store, weight in zip(stores or case.stores, own, strict=True)
            if weight or not start
        }
        for start, own in case.weights.items()
    }
    options: dict[str, Any] = {"weight_by": "tokens"} if case.by_tokens else {}
    return [
        PileDataset(
            named, case.batch // world, rank=rank, world_size=world, lanes=case.lanes, columns=["_store", "_id"],
            schedule_by="epoch" if case.by_epoch else "step", **case.order, **options,
        )
        for rank in range(world)
    ]  # fmt: skip


def show(batch: dict[str, Any]) -> list[tuple[int, Any]]:
    return [
        (store, tuple(one))
        for store, one in zip(batch["_store"].tolist(), batch["_id"].tolist(), strict=True)
    ]


def check(seed: int) -> None:
    """Compare all batches of an epoch, read in legs by other numbers of ranks and workers, with the oracle's."""
    case, epoch = draw(seed), seed % EPOCHS
    found: list[Any] = []
    state = None
    for iteration, (count, workers, world) in enumerate(case.legs):
        parts, states = [], set()
        for dataset in make_ranks(case, world):
            if state is None:
                dataset.set_epoch(epoch)
            else:
                dataset.load_state_dict(json.loads(state))
            begun = dataset.state_dict()
            made = iterate(dataset, workers, iteration)
            parts.append([show(one) for one in islice(made, None if iteration == LEGS - 1 else count)])
            made.close()
            states.add(json.dumps(dataset.describe(epoch, begun["step"] + len(parts[-1]))))
        (state,) = states
        found += [flatten(step) for step in zip(*parts, strict=True)]
    assert found == expect(case)[epoch], seed


@pytest.mark.parametrize(
    "seeds",
    [
        range(15),
        *(pytest.param(range(first, first + 57), marks=pytest.mark.slow) for first in range(15, CASES, 57)),
    ],
)
def test_chains_of_resumes_yield_the_batches_of_the_oracle(seeds: range) -> None:
    for seed in seeds:
        check(seed)


def test_workers_yield_the_sequences_of_a_mix() -> None:
    stores = draw(7).stores[:2]
    weights = {0: {stores[0]: 1, stores[1]: 2}, 5: {stores[1]: 1}}
    expected = [
        one["tokens"].tolist() for one in islice(recshuf.MixLoader(weights, 4).packed(3, column="tokens"), 12)
    ]
    found: list[Any] = []
    state = None
    for iteration, workers in enumerate((2, 0, 3)):
        dataset = PileDataset(weights, 4, rank=0, world_size=1).packed(3, column="tokens")
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        made = iterate(dataset, workers, iteration)
        found += [one["tokens"].tolist() for one in islice(made, 4)]
        made.close()
        state = json.dumps(dataset.describe(0, len(found)))
    assert found == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two stores."""
    folder = tmp_path_factory.mktemp("mix")
    for number, count in enumerate((60, 300)):
        with recshuf.PileWriter(folder / f"store-{number}", name="a", seed=number, piles=8) as writer:
            writer.write({"id": range(count), "text": ["x" * (7 * index % 40) for index in range(count)]})
    return folder


def list_all(folder: Path) -> list[list[list[int]]]:
    """Return the records of all global batches of an epoch."""
    return [list_records(one) for one in make_dataset(folder, 16, rank=0, world_size=1)]


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
)
def test_workers_go_on_with_a_mix(folder: Path, method: str) -> None:
    found: list[list[list[int]]] = []
    state = None
    for workers, count in ((2, 9), (1, None)):
        loader = PileDataLoader(make_dataset(folder, 16), num_workers=workers, multiprocessing_context=method)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        found += [list_records(one) for one in islice(loader, count)]
        state = json.dumps(loader.state_dict())
    assert found == list_all(folder)


@pytest.mark.slow
def test_ranks_of_torchrun_go_on_with_a_mix(folder: Path) -> None:
    found: list[list[list[int]]] = []
    state: list[str] = []
    for world, count in ((2, 9), (4, 1000)):
        command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m"]
        arguments = ["tests.support.stores.mix_process", str(folder), "16", str(count), *state]
        subprocess.run([sys.executable, "-m", *command, *arguments], check=True, capture_output=True)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]
        found += [flatten(parts) for parts in zip(*(batches for batches, _ in ranks), strict=True)]
        (text,) = {json.dumps(state) for _, state in ranks}
        state = [text]
    assert found == list_all(folder)
