"""`PileDataset` in real worker processes, also in such that start late: the batches of `PileLoader` in its order, or an error."""

from __future__ import annotations

import multiprocessing
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice, product
from multiprocessing.synchronize import Event
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from recshuf import PileLoader, errors
from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.stores.small_stores import batch_ids

WORKERS = [0, 2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))]
METHODS = ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
PLAIN = partial(DataLoader, batch_size=None)
KINDS = pytest.mark.parametrize("kind", [PLAIN, PileDataLoader], ids=["plain", "counts"])
# DataLoader warns where there are more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def expect(store: Path, **options: Any) -> list[list[int]]:
    return batch_ids(PileLoader(store, 16, **options))


def show(batch: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the type and the values of each column."""
    return {
        name: (
            f"{type(column)} {getattr(column, 'dtype', '')}",
            column if isinstance(column, list) else column.tolist(),
        )
        for name, column in batch.items()
    }


def _tell(path: Path, worker: int) -> None:
    """Have a worker append what it warns of to a file."""

    def append(message: Warning | str, *_: Any) -> None:
        with path.open("a") as file:
            file.write(f"{worker}: {message}\n")

    warnings.simplefilter("always")
    warnings.showwarning = append


def test_of_plain_workers_the_first_one_tells_of_short_lanes(store: Path, tmp_path: Path) -> None:
    tell = partial(_tell, tmp_path / "told")
    list(PLAIN(PileDataset(store, 16, lanes=4), num_workers=3, worker_init_fn=tell))
    (said,) = (tmp_path / "told").read_text().splitlines()
    assert said.startswith("0: lanes=")


def add_tensors(batch: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
    """Add what is no array of NumPy, what are views, and what is an array."""
    more = torch.arange(40_000).reshape(2, -1)
    return batch | {
        "half": torch.ones(3).bfloat16(),
        "large": more[1:],
        "turned": more.T,
        "array": np.ones(2),
        "tuned": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    }


@pytest.mark.parametrize("method", METHODS)
@KINDS
def test_workers_yield_what_the_loader_yields(store: Path, kind: Any, method: str) -> None:
    options = {
        "columns": ["id", "vector", "text", "flag", "maybe", "class", "tokens", "_id"],
        "drop_last": False,
        "filter": pc.field("id") != 5,
        "transform": add_tensors,
    }
    expected = list(PileLoader(store, 16, output="torch", epoch=1, **options))
    dataset = PileDataset(store, 16, epoch=1, **options)
    found = list(kind(dataset, num_workers=2, multiprocessing_context=method))
    for batch in expected if kind is PLAIN else ():  # PyTorch makes tensors of arrays
        batch["array"] = torch.from_numpy(batch["array"])
    assert [show(batch) for batch in found] == [show(batch) for batch in expected]
    assert all(type(batch) is dict for batch in found)
    for batch in found:
        batch["id"] += 5000
        batch["vector"][:] = 1
    assert [[index - 5000 for index in ids] for ids in batch_ids(found)] == batch_ids(expected)
    assert all((batch["vector"] == 1).all() for batch in found)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("workers", "options", "given"),
    [
        (0, {}, {}),
        (2, {"lanes": 4, "drop_last": False, "limit": 933, "filter": pc.field("id") >= 30}, {}),
        (2, {}, {"persistent_workers": True}),
        pytest.param(3, {"rank": 1, "world_size": 2, "mix": 2}, {}, marks=SLOW),
        pytest.param(1, {"lanes": 4, "drop_last": False}, {}, marks=SLOW),
        pytest.param(2, {}, {"multiprocessing_context": "spawn"}, marks=SLOW),
        pytest.param(
            2, {}, {"multiprocessing_context": "forkserver", "persistent_workers": True}, marks=SLOW
        ),
    ],
)
def test_any_loader_in_any_workers_begins_at_a_position_once(
    store: Path, workers: int, options: dict[str, Any], given: dict[str, Any]
) -> None:
    """Of the loaders of a data set whichever is next, also if PyTorch is seeded anew."""
    expected, dataset = expect(store, epoch=1, **options), PileDataset(store, 16, **options)
    loaders = [
        dataset,
        PileDataLoader(dataset, num_workers=workers, **given),
        DataLoader(dataset, batch_size=None, num_workers=workers, **given),
    ]
    steps = cycle((55, 0, 1, len(expected)))
    for first, second in product(loaders, loaders):
        step = min(next(steps), len(expected))
        dataset.seek(1, step)
        assert len(first) == len(expected)
        for one, begin in ((first, step), (second, 0)):
            torch.manual_seed(0)
            assert batch_ids(one) == expected[begin:]


@KINDS
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_workers_follow_the_epoch_also_after_an_iteration_that_was_left(
    store: Path, kind: Any, persistent_workers: bool
) -> None:
    dataset = PileDataset(store, 16)
    loader = kind(dataset, num_workers=2, persistent_workers=persistent_workers)
    is_left = kind is PileDataLoader  # the other one takes up the workers of a later iteration
    assert not is_left or batch_ids(islice(loader, 9)) == expect(store)[:9]
    for epoch in (0, 1, 2, 1):
        (loader if is_left else dataset).set_epoch(epoch)
        assert batch_ids(loader) == expect(store, epoch=epoch)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_loader_counts_what_the_training_loop_received(store: Path, workers: int) -> None:
    dataset = PileDataset(store, 16, epoch=1)
    options = {"prefetch_factor": 5} if workers else {}
    loader = PileDataLoader(dataset, num_workers=workers, collate_fn=itemgetter("id"), **options)
    batches = iter(loader)
    for step, ids in enumerate(expect(store, epoch=1)[:12]):
        assert loader.state_dict() == PileLoader(store, 16, epoch=1).state_dict() | {"step": step}
        assert next(batches).tolist() == ids


def test_a_state_of_the_dataset_that_cannot_count_is_refused(store: Path) -> None:
    dataset = PileDataset(store, 16)
    for kind in (PLAIN, PileDataLoader):
        next(iter(kind(dataset, num_workers=1)))
        with pytest.raises(UsageError, match="this process cannot count"):
            dataset.state_dict()
    dataset.set_epoch(1)
    assert dataset.state_dict()["step"] == 0
    next(iter(DataLoader(dataset, batch_size=None)))
    assert dataset.state_dict()["step"] == 1


class Changed(torch.utils.data.IterableDataset):
    """Changes batches in the worker, behind the data set, of which it has none in the first iteration."""

    def __init__(self, dataset: PileDataset) -> None:
        self.parts = [dataset, []]

    def __iter__(self) -> Any:
        for batch in self.parts.pop():
            batch["id"] += 1000
            batch["worker"] = get_worker_info().id
            del batch["text"]
            yield batch


@pytest.mark.parametrize("method", METHODS)
def test_batches_can_be_changed_in_the_worker(store: Path, method: str) -> None:
    dataset, options = PileDataset(store, 16), {"multiprocessing_context": method, "persistent_workers": True}
    loader = DataLoader(Changed(dataset), batch_size=None, num_workers=2, **options)
    assert list(loader) == []
    dataset.set_epoch(1)
    for step, (batch, ids) in enumerate(zip(loader, expect(store, epoch=1), strict=True)):
        assert batch["id"].tolist() == [index + 1000 for index in ids]
        assert "text" not in batch
        assert batch["worker"] == step % 2


def test_what_cannot_be_meant_is_refused(store: Path) -> None:
    dataset = PileDataset(store, 16)
    of_worker = dataset.state_dict() | {"worker": 1, "workers": 2}
    uses: list[tuple[Callable[[], object], str]] = [
        (
            lambda: dataset.load_state_dict(of_worker),
            "that of worker 1 of 2, and this is the main process",
        ),
        (
            lambda: PileDataLoader(dataset, batch_size=4),
            "batch_size: PileDataset makes the batches; give it there",
        ),
        (lambda: PileDataLoader(dataset, sampler=[1]), "sampler: PileDataset makes the batches"),
        (
            lambda: PileDataLoader(dataset, shuffle=True),
            "shuffle: PileDataset makes the batches; leave it out",
        ),
        (lambda: PileDataLoader(dataset, in_order=False), "in_order=False"),
        (lambda: PileDataLoader(str(store)), r"give a PileDataset: PileDataset\(store, batch_size\)"),
        (lambda: PileDataset(store, 16, rank=1), "rank=1 with world_size=None: give both, or neither"),
    ]
    for state in (None, "state.json", 3):
        for one in (dataset, PileDataLoader(dataset)):
            told = r"load_state_dict: .* give what state_dict returned"
            uses.append((partial(one.load_state_dict, state), told))
    for use, message in uses:
        with pytest.raises(UsageError, match=message):
            use()


STARTED: list[int | None] = [None]
"""The number that this worker was started with."""


def note_start(worker: int) -> None:
    STARTED.append(worker)


def mark(folder: Path, batch: dict[str, Any], seeds: np.ndarray) -> dict[str, Any]:
    """Return a batch with its seeds, and the worker that made it. It makes none twice."""
    (folder / str(batch["id"][0].item())).touch(exist_ok=False)
    return OrderedDict(id=batch["id"], seeds=torch.from_numpy(seeds.view(np.int64)), worker=STARTED[-1])


@pytest.mark.parametrize(("workers", "method"), [(0, None), *((2, method) for method in ("fork", "spawn"))])
def test_workers_transform_their_own_batches_only_with_the_same_seeds(
    store: Path, tmp_path: Path, workers: int, method: str | None
) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    here, there = (partial(mark, folder) for folder in folders)
    expected = list(PileLoader(store, 16, epoch=1, output="torch", transform=here))
    dataset = PileDataset(store, 16, epoch=1, transform=there)
    options = {"multiprocessing_context": method, "worker_init_fn": note_start}
    found = list(PileDataLoader(dataset, num_workers=workers, **options))
    for name in ("id", "seeds"):
        assert [batch[name].tolist() for batch in found] == [batch[name].tolist() for batch in expected]
    assert {type(batch) for batch in found} == {OrderedDict}
    chosen = [step % workers if workers else None for step in range(len(found))]
    assert [batch["worker"] for batch in found] == chosen
    assert len([*folders[1].iterdir()]) == len(dataset)


def test_a_dataset_of_files_shares_the_store_of_the_loader(store: Path, tmp_path: Path) -> None:
    files, order = store.parent / "*.parquet", {"epoch": 1, "reshuffle": "piles", "mix": 2}
    options = {"cache": tmp_path, "seed": 7, "piles": 9} | order
    dataset = PileDataset.from_files(files, 16, columns=["id"], local_cache=tmp_path / "near", **options)
    loader = PileLoader.from_files(files, 16, **options)
    assert batch_ids(PileDataLoader(dataset)) == batch_ids(loader) == expect(store, **order)
    assert [*(tmp_path / "near").glob("recshuf-regions/*/*.*/*")]


def test_what_is_shown_names_no_rank_that_is_not_known(store: Path) -> None:
    loader = PileDataLoader(PileDataset(store, 16, lanes=4), num_workers=2)
    shown = f"PileDataset('{store}', batch_size=16, epoch=0, mix=1, num_records=1000)"
    assert repr(loader) == f"PileDataLoader({shown}, num_workers=2)"
    assert len(loader)
    assert repr(loader.dataset) == shown.replace("16,", "16, rank=0, world_size=1,")


def fail(*_: Any) -> None:
    raise errors.DamagedSetError("a.piles", "is cut short", "run again")


@pytest.mark.parametrize("method", METHODS)
@KINDS
def test_an_error_of_a_worker_keeps_its_class(store: Path, kind: Any, method: str) -> None:
    dataset = PileDataset(store, 16, transform=fail)
    with pytest.raises(errors.DamagedSetError, match=r"a\.piles: is cut short; run again") as caught:
        next(iter(kind(dataset, num_workers=1, multiprocessing_context=method)))
    assert type(caught.value) is errors.DamagedSetError


# Workers that start late, and iterations that were left


def wait_for(gate: Event, late_worker: int, worker: int) -> None:
    if worker == late_worker:
        gate.wait()


def make_late(late_worker: int) -> tuple[Event, dict[str, Any]]:
    """Return a gate that one worker waits at before it starts, and options for `DataLoader`."""
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    init = partial(wait_for, gate, late_worker)
    return gate, {"worker_init_fn": init, "multiprocessing_context": context}


@KINDS
@pytest.mark.parametrize("late_worker", [0, 1])
def test_a_position_reaches_workers_that_were_late_before(store: Path, kind: Any, late_worker: int) -> None:
    gate, options = make_late(late_worker)
    dataset = PileDataset(store, 16)
    loader = kind(dataset, num_workers=2, persistent_workers=True, **options)
    batches = iter(loader)
    if late_worker:  # the other one sends the first batches
        next(batches)
    dataset.load_state_dict(dataset.describe(0, 45))
    gate.set()
    assert batch_ids(loader) == expect(store)[45:]
    assert batch_ids(loader) == expect(store)


@pytest.mark.parametrize(
    ("kind", "workers", "late_worker", "persistent_workers"),
    [
        (PileDataLoader, 1, 0, True),
        (PileDataLoader, 2, 1, False),
        (PLAIN, 1, 0, False),
        (PLAIN, 2, 1, False),
    ],
)
def test_an_iteration_yields_the_epoch_that_it_began_with(
    store: Path, kind: Any, workers: int, late_worker: int, persistent_workers: bool
) -> None:
    gate, options = make_late(late_worker)
    dataset = PileDataset(store, 16)
    dataset.seek(0, 45)
    loader = kind(dataset, num_workers=workers, persistent_workers=persistent_workers, **options)
    batches = iter(loader)
    found = batch_ids(islice(batches, late_worker))
    dataset.set_epoch(1)
    gate.set()
    assert found + batch_ids(batches) == expect(store)[45:]
    assert dataset.state_dict() == dataset.describe(1, 0)
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
