"""Chains of resumes with any numbers of ranks and workers, against the oracle. Workers are simulated in this process."""

from __future__ import annotations

import copy
import pickle
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data._utils import worker as torch_worker

from recshuf.torch import PileDataset
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import Rules, cut_batches, group_records
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.legs import run_legs

if TYPE_CHECKING:
    from collections.abc import Iterator

WORLDS = [1, 2, 3, 6]


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
    iterations = count()

    def read(dataset: PileDataset, most: int | None, _: int, workers: int) -> Iterator[Any]:
        return islice(iterate(dataset, workers, next(iterations)), most)

    return run_legs(legs, *given, read=read, counts=False, **how)


@settings(max_examples=examples(240))
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    piles=st.integers(1, 7),
    lanes=st.sampled_from([1, 2, 6]),
    share=st.integers(1, 3),
    epoch=st.integers(0, 2),
    mix=st.integers(1, 3),
    legs=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 3), st.sampled_from(WORLDS)),
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
    legs: list[tuple[int, int, int]],
) -> None:
    store, batch = FakePiles({"a": sizes, "b": [20]}, piles), 6 * share
    groups = group_records(store.records(), list(store.names), piles, Rules(epoch=epoch, mix=mix))
    expected = cut_batches([[one.id for one in group] for group in groups], batch, 1, lanes, True)
    assume(expected or lanes == 1)  # else the loader may refuse the lanes
    options = {"lanes": lanes, "mix": mix, "columns": ["_id"]}
    found = run_worker_legs(
        [
            (None if number == 3 else taken, world if lanes == 1 or lanes % world == 0 else 1, workers)
            for number, (taken, workers, world) in enumerate(legs)
        ],
        lambda world: [
            PileDataset(store, batch // world, rank=rank, world_size=world, **options)
            for rank in range(world)
        ],
        lambda taken: [tuple(one) for one in taken["_id"].tolist()],
        then=lambda dataset: dataset.set_epoch(epoch),
    )
    assert found == [step[0] for step in expected]
