"""Chains of resumes with any numbers of ranks and workers, against the oracle. Workers are simulated in this process."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.pin_memory import pin_memory

from recshuf.torch import PileDataset
from recshuf.train import batch_reader as cutting
from tests.support.stores.epoch_oracle import Rules, cut_batches, flatten, group_records
from tests.support.stores.fake_piles import FakePiles

if TYPE_CHECKING:
    from collections.abc import Iterator

WORLDS = [1, 2, 3, 6]


@pytest.fixture(autouse=True, scope="module")
def bundle_bytes_are_restored() -> Iterator[None]:
    before = cutting.BUNDLE_BYTES
    yield
    cutting.BUNDLE_BYTES = before


def start_worker(
    dataset: PileDataset, number: int, workers: int, iteration: int, bundles: tuple[int, int] | None
) -> Iterator[Any]:
    """Return the iterator of a worker with its own copy of all but the shared memory."""
    mine = copy.copy(dataset)
    mine._position, mine._loader = copy.copy(dataset._position), copy.copy(dataset._loader)
    if bundles is not None:
        return mine.share_bundles(*bundles, number, workers)
    info = {"id": number, "num_workers": workers, "seed": 1000 * iteration + number, "dataset": mine}
    torch_worker._worker_info = torch_worker.WorkerInfo(**info)
    try:
        return iter(mine)
    finally:
        torch_worker._worker_info = None


def iterate(
    dataset: PileDataset, workers: int, iteration: int, bundles: tuple[int, int] | None = None
) -> Iterator[Any]:
    """Yield what workers make as `DataLoader` does: from each in turn, pickled, leaving out those that ended.

    Bundles are those of an epoch from a step on; else they make batches.
    """
    if not workers:
        yield from dataset
        return
    running = [start_worker(dataset, number, workers, iteration, bundles) for number in range(workers)]
    while running:
        for one in list(running):
            made = next(one, None)
            if made is None:
                running.remove(one)
            else:
                yield pickle.loads(pickle.dumps(made))


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    piles=st.integers(1, 7),
    lanes=st.sampled_from([1, 2, 6]),
    share=st.integers(1, 3),
    epoch=st.integers(0, 2),
    mix=st.integers(1, 3),
    bundle_bytes=st.sampled_from([0, 200, 4 << 20]),
    legs=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 3), st.sampled_from(WORLDS), st.booleans()),
        min_size=4,
        max_size=4,
    ),
)
def test_chains_of_three_resumes_yield_the_epoch(
    sizes: list[int],
    piles: int,
    lanes: int,
    share: int,
    epoch: int,
    mix: int,
    bundle_bytes: int,
    legs: list[tuple[int, int, int, bool]],
) -> None:
    cutting.BUNDLE_BYTES = bundle_bytes
    store, batch = FakePiles({"a": sizes, "b": [20]}, piles), 6 * share
    groups = group_records(store.records(), list(store.names), piles, Rules(epoch=epoch, mix=mix))
    expected = cut_batches([[one.id for one in group] for group in groups], batch, 1, lanes, True)
    assume(expected or lanes == 1)  # else the loader may refuse the lanes
    found: list[list[tuple[int, ...]]] = []
    state = None
    for iteration, (count, workers, wanted, wants_bundles) in enumerate(legs):
        world = wanted if lanes == 1 or lanes % wanted == 0 else 1
        ranks, states = [], set()
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "lanes": lanes, "mix": mix, "columns": ["_id"]}
            dataset = PileDataset(store, batch // world, **options)
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            dataset.set_epoch(epoch)
            in_bundles = wants_bundles and workers > 0
            _, begun = dataset.begin(in_workers=in_bundles)
            bundles = (begun["epoch"], begun["step"]) if in_bundles else None
            made = iterate(dataset, workers, iteration, bundles)
            batches = dataset.cut_bundles(begun["step"], made) if in_bundles else made
            taken = list(islice(batches, None if iteration == 3 else count))
            made.close()
            ranks.append([[tuple(one) for one in taken_one["_id"].tolist()] for taken_one in taken])
            states.add(json.dumps(begun | {"step": begun["step"] + len(taken)}))
        (state,) = states
        found += [flatten(parts) for parts in zip(*ranks, strict=True)]
    assert found == [step[0] for step in expected]


@pytest.mark.parametrize("lanes", [1, 2])
def test_each_group_is_read_by_one_worker(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    store = FakePiles({"a": [60], "b": [20]}, 7)
    dataset = PileDataset(store, 4, lanes=lanes)
    blocks = list(iterate(dataset, 3, 0, bundles=(0, 0)))
    loaded = [region for regions in store.loads for region in regions]
    assert len(blocks) == len(store.loads) >= 6
    assert len(loaded) == len(set(loaded)) == 2 * len(blocks)


def test_tensors_cut_from_pinned_blocks_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, since pinning needs an accelerator."""
    pinned: list[int] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy_of_it = tensor.clone()
        pinned.append(copy_of_it.untyped_storage().data_ptr())
        return copy_of_it

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    dataset = PileDataset(FakePiles({"a": [60]}, 3), 7)
    blocks = (pin_memory(block) for block in iterate(dataset, 2, 0, bundles=(0, 0)))
    batches = list(dataset.cut_bundles(0, blocks))
    assert [batch["id"].tolist() for batch in batches] == [batch["id"].tolist() for batch in dataset]
    assert all(batch["id"].untyped_storage().data_ptr() in pinned for batch in batches)
