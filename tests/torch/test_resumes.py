"""Chains of resumes with any numbers of ranks and workers: of records, of mixes, and of sequences, against the oracle."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.utils.data._utils import worker as torch_worker

import recshuf
from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.effort import some
from tests.support.objects.object_server import Bucket
from tests.support.stores.epoch_oracle import Rules, cut_batches, flatten, group_records, run_legs
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.mix_process import list_records, make_dataset
from tests.support.stores.small_stores import batch_ids, write
from tests.support.stores.token_documents import draw_packing, expect, make_store
from tests.train.test_mixing import check_case, draw

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


def start_worker(dataset: PileDataset, number: int, workers: int, iteration: int) -> Iterator[Any]:
    """Return the iterator of a worker with its own copy of all but the shared memory."""
    mine = copy.copy(dataset)
    # Real processes would take a second for each of the thousands of iterations.
    mine._position, mine._any_loader = copy.copy(dataset._position), copy.copy(dataset._loader)
    info = {"id": number, "num_workers": workers, "seed": 1000 * iteration + number, "dataset": mine}
    torch_worker._worker_info = torch_worker.WorkerInfo(**info)
    try:
        return iter(mine)
    finally:
        torch_worker._worker_info = None


def iterate(dataset: PileDataset, workers: int, iteration: int) -> Iterator[Any]:
    """Yield what workers make as `DataLoader` does: from each in turn, pickled, leaving out those that ended."""
    if not workers:
        yield from dataset
        return
    running = [start_worker(dataset, number, workers, iteration) for number in range(workers)]
    while running:
        for one in list(running):
            made = next(one, None)
            if made is None:
                running.remove(one)
            else:
                yield pickle.loads(pickle.dumps(made))


def run_worker_legs(legs: list[tuple[int | None, int, int]], *given: Any, **how: Any) -> list[list[Any]]:
    """Do what `run_legs` does for data sets, in legs of batches, ranks and workers."""
    iterations = itertools.count()

    def read(dataset: PileDataset, most: int | None, _: int, workers: int) -> Iterator[Any]:
        return islice(iterate(dataset, workers, next(iterations)), most)

    return run_legs(legs, *given, read=read, counts=False, **how)


def draw_legs(random: Random, lanes: int, counts: Sequence[int | None]) -> list[tuple[int | None, int, int]]:
    """Return for each count of batches a number of ranks that fit the lanes, and of workers."""
    worlds = [world for world in (1, 2, 3, 6) if lanes == 1 or lanes % world == 0]
    return [(count, random.choice(worlds), random.randint(0, 3)) for count in counts]


def test_chains_of_three_resumes_yield_the_epoch() -> None:
    for seed in some(range(300), 12):
        check_chain(seed)


def check_chain(seed: int) -> None:
    random = Random(seed)
    sizes, piles = [random.randint(0, 60) for _ in range(random.randint(1, 3))], random.randint(1, 7)
    store, batch = FakePiles({"a": sizes, "b": [20]}, piles), 6 * random.randint(1, 3)
    lanes, epoch, mix = random.choice([1, 2, 6]), random.randint(0, 2), random.randint(1, 3)
    groups = group_records(store.records(), list(store.names), piles, Rules(epoch=epoch, mix=mix))
    expected = cut_batches([[one.id for one in group] for group in groups], batch, 1, lanes, True)
    if not expected and lanes > 1:
        return  # the loader may refuse the lanes
    options = {"lanes": lanes, "mix": mix, "columns": ["_id"]}
    found = run_worker_legs(
        draw_legs(random, lanes, [*(random.randint(0, 12) for _ in range(3)), None]),
        lambda world: make_ranks(store, batch, world, options),
        lambda taken: [tuple(one) for one in taken["_id"].tolist()],
        then=lambda dataset: dataset.set_epoch(epoch),
    )
    assert found == [step[0] for step in expected]


def make_ranks(store: FakePiles, batch: int, world: int, options: dict[str, Any]) -> list[PileDataset]:
    return [
        PileDataset(store, batch // world, rank=rank, world_size=world, **options) for rank in range(world)
    ]


def test_chains_of_resumes_yield_the_batches_of_mixes() -> None:
    for seed in range(8):
        check_case(seed, PileDataset, run_worker_legs)


def test_workers_yield_the_sequences_of_a_mix() -> None:
    stores = draw(7).stores[:2]
    weights = {0: {stores[0]: 1, stores[1]: 2}, 5: {stores[1]: 1}}
    expected = islice(recshuf.MixLoader(weights, 4).packed(3, column="tokens"), 12)
    found = run_worker_legs(
        [(4, 1, 2), (4, 1, 0), (4, 1, 3)],
        lambda _: [PileDataset(weights, 4, rank=0, world_size=1).packed(3, column="tokens")],
        lambda batch: batch["tokens"].tolist(),
    )
    assert found == [batch["tokens"].tolist() for batch in expected]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two stores."""
    folder = tmp_path_factory.mktemp("mix")
    for number, count in enumerate((60, 300)):
        write(
            folder / f"store-{number}",
            "a",
            {"id": range(count), "text": ["x" * (7 * index % 40) for index in range(count)]},
            seed=number,
            piles=8,
        )
    return folder


def list_all(folder: Path) -> list[list[list[int]]]:
    """Return the records of all global batches of an epoch."""
    return [list_records(one) for one in make_dataset(folder, 16, rank=0, world_size=1)]


# With spawn, a worker that is left early may abort while it ends; docs/decisions.md tells why.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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


@pytest.mark.timeout(900)
def test_chains_of_resumes_yield_sequences() -> None:
    for seed in some(range(120), 12):
        check_sequences(seed)


def check_sequences(seed: int) -> None:
    random = Random(seed)
    store, lanes = make_store(sizes=(15, 20, 12), piles=12), random.choice([1, 2, 6])
    options, packing = {"lanes": lanes, "epoch": random.randint(0, 2)}, draw_packing(random)
    found = run_worker_legs(
        draw_legs(random, lanes, [random.randint(0, 4) for _ in range(3)]),
        lambda world: [dataset.packed(**packing) for dataset in make_ranks(store, 6, world, options)],
        lambda batch: list(zip(*(column.tolist() for column in batch.values()), strict=True)),
    )
    shown = 3 if packing.pop("boundaries", False) else 1
    expected = expect(store, {"epoch": options["epoch"]}, lanes, 6, len(found), **packing)
    assert found == [list(zip(*columns[:shown], strict=True)) for columns in expected]


def test_a_loader_counts_what_workers_make_and_another_goes_on(store: Path) -> None:
    packing = {"tokens": 8, "column": "tokens", "boundaries": True, "eos": 5, "documents": "whole"}
    plain = recshuf.PileLoader(store, 4, output="torch").packed(**packing)
    whole = [{name: one.tolist() for name, one in batch.items()} for batch in islice(plain, 60)]
    records = PileDataset(store, 4)
    loader = PileDataLoader(records.packed(**packing), num_workers=2)
    records.seek(1, 3)
    batches = iter(loader)
    found = [next(batches) for _ in range(25)]
    del batches
    state = json.loads(json.dumps(loader.state_dict()))
    assert state == plain.state_dict() | {"step": 25}
    loader = PileDataLoader(PileDataset(store, 4).packed(**packing), num_workers=1)
    loader.load_state_dict(state)
    found += islice(loader, 35)
    assert [{name: one.tolist() for name, one in batch.items()} for batch in found] == whole
    assert {one.dtype for one in found[0].values()} == {torch.int64, torch.int32}


def test_what_has_no_end_has_no_length_and_no_epochs() -> None:
    dataset = PileDataset(make_store(), 2, epoch=1).packed(4, column="large")
    assert next(iter(dataset))["large"].dtype == torch.uint32
    dataset.set_epoch(1)
    with pytest.raises(UsageError, match=r"^set_epoch\(2\): packed sequences go on"):
        dataset.set_epoch(2)
    with pytest.raises(TypeError, match="packed sequences have no end"):
        len(PileDataLoader(dataset))
    with pytest.raises(UsageError, match=r"^packed: these are packed"):
        dataset.packed(4, column="large")


# Stores in a bucket: workers connect by themselves


@pytest.mark.parametrize(
    ("is_mix", "world", "workers", "method"),
    [
        (True, 1, 2, "fork"),
        (False, 1, 2, "fork"),
        pytest.param(True, 2, 0, None, marks=pytest.mark.slow),
        # A server of forks would have the environment of its first test.
        pytest.param(True, 2, 1, "spawn", marks=pytest.mark.slow),
    ],
)
def test_batches_of_a_bucket_are_those_of_a_disk_also_with_other_ranks_and_workers(
    tmp_path: Path, s3_bucket: Bucket, is_mix: bool, world: int, workers: int, method: str | None
) -> None:
    far, near = f"{s3_bucket.url}/far", str(tmp_path / "near")
    for place, first in ((far, 0), (near, 1000), (tmp_path / "far", 0)):
        for name in ("a", "b"):
            write(place, name, {"id": range(first, first + 90)}, seed=3, piles=4)

    def read_rank(rank: int, ranks: int, count: int | None, state: Any, **options: Any) -> tuple[Any, Any]:
        dataset = PileDataset(
            {far: 2, near: 1} if is_mix else far, 12 // ranks, rank=rank, world_size=ranks, lanes=2, **options
        )
        assert dataset.state_dict()["step"] == 0  # this process has asked before the workers are forked
        there = {} if count else {"num_workers": workers, "multiprocessing_context": method}
        loader = PileDataLoader(dataset, **there)
        if state is not None:
            loader.load_state_dict(state)
        return batch_ids(islice(loader, count)), loader.state_dict()

    begun, state = read_rank(0, 1, 4, None)
    ranks = [read_rank(rank, world, None, state, cache=tmp_path / "cache")[0] for rank in range(world)]
    whole = recshuf.PileLoader({tmp_path / "far": 2, near: 1} if is_mix else tmp_path / "far", 12, lanes=2)
    assert begun + [flatten(parts) for parts in zip(*ranks, strict=True)] == batch_ids(whole)
