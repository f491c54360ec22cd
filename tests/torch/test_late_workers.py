"""Workers that start late, and iterations that were left: each iteration yields its own batches, or says that it cannot."""

from __future__ import annotations

import multiprocessing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from torch.utils.data import DataLoader

from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from recshuf.train.loader import PileLoader
from tests.support.stores.small_stores import batch_ids

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path

# DataLoader warns where there are more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def expect(store: Path, epoch: int = 0) -> list[list[int]]:
    return batch_ids(PileLoader(store, 16, epoch=epoch))


def wait_for(gate: Event, late_worker: int, worker: int) -> None:
    if worker == late_worker:
        gate.wait()


def make_late(late_worker: int) -> tuple[Event, dict[str, Any]]:
    """Return a gate that one worker waits at before it starts, and options for `DataLoader`."""
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    init = partial(wait_for, gate, late_worker)
    return gate, {"worker_init_fn": init, "multiprocessing_context": context}


@pytest.mark.parametrize("late_worker", [0, 1])
def test_a_resume_does_not_depend_on_workers_that_were_late_before(store: Path, late_worker: int) -> None:
    gate, options = make_late(late_worker)
    loader = PileDataLoader(PileDataset(store, 16), num_workers=2, persistent_workers=True, **options)
    state = loader.state_dict() | {"step": 12}
    batches = iter(loader)
    if late_worker:  # the other one sends the first batches
        next(batches)
    loader.load_state_dict(state)
    gate.set()
    assert batch_ids(loader) == expect(store)[12:]
    assert batch_ids(loader) == expect(store)


@pytest.mark.parametrize(("workers", "late_worker", "persistent_workers"), [(1, 0, True), (2, 1, False)])
def test_an_iteration_yields_the_epoch_that_it_began_with(
    store: Path, workers: int, late_worker: int, persistent_workers: bool
) -> None:
    gate, options = make_late(late_worker)
    dataset = PileDataset(store, 16)
    loader = PileDataLoader(dataset, num_workers=workers, persistent_workers=persistent_workers, **options)
    batches = iter(loader)
    found = batch_ids(islice(batches, late_worker))
    loader.set_epoch(1)
    gate.set()
    assert found + batch_ids(batches) == expect(store)
    assert batch_ids(loader) == expect(store, epoch=1)


def test_an_iterator_whose_workers_serve_a_later_one_is_refused(store: Path) -> None:
    loader = PileDataLoader(PileDataset(store, 16), num_workers=2, persistent_workers=True)
    earlier = iter(loader)
    first, later = next(earlier), iter(loader)
    with pytest.raises(UsageError, match="persistent_workers=True: a later iterator has the workers"):
        batch_ids(earlier)
    assert batch_ids(later) == expect(store)
    assert batch_ids([first]) == expect(store)[:1]


def test_iterators_with_workers_of_their_own_do_not_disturb_each_other(store: Path) -> None:
    loader = PileDataLoader(PileDataset(store, 16), num_workers=1)
    earlier = iter(loader)
    loader.set_epoch(1)
    later = iter(loader)
    assert batch_ids(later) == expect(store, epoch=1)
    assert batch_ids(earlier) == expect(store)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_position_holds_once_also_if_torch_is_seeded_anew(store: Path, persistent_workers: bool) -> None:
    dataset = PileDataset(store, 16)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent_workers)
    dataset.seek(0, 45)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(batch_ids(loader))
    assert found == [expect(store)[45:], expect(store)]


@pytest.mark.parametrize("late_worker", [0, 1])
def test_a_seek_reaches_plain_workers_that_were_late(store: Path, late_worker: int) -> None:
    gate, options = make_late(late_worker)
    dataset = PileDataset(store, 16)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True, **options)
    batches = iter(loader)
    if late_worker:
        next(batches)
    dataset.seek(0, 45)
    gate.set()
    assert batch_ids(loader) == expect(store)[45:]
    assert batch_ids(loader) == expect(store)


@pytest.mark.parametrize(("workers", "late_worker"), [(1, 0), (2, 1)])
def test_plain_workers_begin_where_the_dataset_was_when_they_were_started(
    store: Path, workers: int, late_worker: int
) -> None:
    gate, options = make_late(late_worker)
    dataset = PileDataset(store, 16)
    dataset.seek(0, 45)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, **options)
    batches = iter(loader)
    found = batch_ids(islice(batches, late_worker))
    dataset.set_epoch(1)
    gate.set()
    assert found + batch_ids(batches) == expect(store)[45:]
    assert batch_ids(loader) == expect(store, epoch=1)


def test_a_plain_worker_that_another_iteration_overtook_is_an_error(store: Path) -> None:
    gate, options = make_late(1)
    dataset = PileDataset(store, 16)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, **options)
    overtaken = iter(loader)
    next(overtaken)
    dataset.set_epoch(1)
    later = iter(loader)
    first = next(later)
    gate.set()
    with pytest.raises(UsageError, match="begun before all workers of this one had started"):
        batch_ids(overtaken)
    assert batch_ids([first, *later]) == expect(store, epoch=1)
