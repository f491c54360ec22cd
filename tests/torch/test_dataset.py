"""`PileDataset` in real worker processes: the batches of `PileLoader` in its order, and exact resumes."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import DataLoader, get_worker_info

from recshuf import PileLoader, errors
from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.stores.epoch_oracle import flatten
from tests.support.stores.small_stores import batch_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORKERS = [0, 2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))]
METHODS = ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "kind", [partial(DataLoader, batch_size=None), PileDataLoader], ids=["plain", "counts"]
)
def test_workers_yield_what_the_loader_yields(store: Path, kind: Any, method: str) -> None:
    options = {
        "columns": ["id", "vector", "text", "flag", "maybe", "class", "tokens", "_id"],
        "drop_last": False,
        "filter": pc.field("id") != 5,
    }
    expected = list(PileLoader(store, 16, output="torch", epoch=1, **options))
    dataset = PileDataset(store, 16, epoch=1, **options)
    found = list(kind(dataset, num_workers=2, multiprocessing_context=method))
    assert [show(batch) for batch in found] == [show(batch) for batch in expected]
    assert all(type(batch) is dict for batch in found)
    for batch in found:
        batch["id"] += 5000
        batch["vector"][:] = 1
    assert [[index - 5000 for index in ids] for ids in batch_ids(found)] == batch_ids(expected)
    assert all((batch["vector"] == 1).all() for batch in found)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"lanes": 4, "drop_last": False, "limit": 533, "filter": pc.field("id") >= 300},
    {"rank": 1, "world_size": 2, "mix": 2},
    {"lanes": 4, "drop_last": False},
]


@pytest.mark.parametrize(
    ("workers", "options", "first"),
    [
        pytest.param(*case, marks=() if number % 5 == 0 else pytest.mark.slow)
        for number, case in enumerate(product([0, 1, 2, 3], OPTIONS, [0, 1, 50]))
    ],
)
def test_the_order_is_the_same_for_any_number_of_workers(
    store: Path, workers: int, options: dict[str, Any], first: int
) -> None:
    expected = expect(store, epoch=1, **options)
    first = min(first, len(expected))
    dataset = PileDataset(store, 16, **options)
    for loader in (
        DataLoader(dataset, batch_size=None, num_workers=workers),
        PileDataLoader(dataset, num_workers=workers),
    ):
        dataset.seek(1, first)
        assert len(loader) == len(expected)
        assert batch_ids(loader) == expected[first:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_position_that_the_data_set_has_used_is_not_used_again(store: Path, workers: int) -> None:
    """By whichever of its loaders, in whatever turn."""
    expected, dataset = expect(store, epoch=1), PileDataset(store, 16)
    loaders = [
        dataset,
        PileDataLoader(dataset, num_workers=workers),
        DataLoader(dataset, batch_size=None, num_workers=workers),
    ]
    for first in loaders:
        for second in loaders:
            dataset.seek(1, 55)
            assert batch_ids(first) == expected[55:]
            assert batch_ids(second) == expected


@pytest.mark.parametrize(
    "kind", [partial(DataLoader, batch_size=None), PileDataLoader], ids=["plain", "counts"]
)
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


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_position_holds_for_one_iteration_in_workers(
    store: Path, persistent_workers: bool, method: str
) -> None:
    expected = expect(store, epoch=3)
    dataset = PileDataset(store, 16)
    dataset.seek(3, 57)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=3 if method == "fork" else 2,  # of the others each imports PyTorch
        persistent_workers=persistent_workers,
        multiprocessing_context=method,
    )
    assert batch_ids(loader) == expected[57:]
    assert batch_ids(loader) == expected
    dataset.seek(3, 60)
    assert batch_ids(loader) == expected[60:]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_loader_counts_what_the_training_loop_received(store: Path, workers: int) -> None:
    dataset = PileDataset(store, 16, epoch=1)
    loader = PileDataLoader(dataset, num_workers=workers, **({"prefetch_factor": 5} if workers else {}))
    batches = iter(loader)
    for step in range(12):
        assert loader.state_dict() == PileLoader(store, 16, epoch=1).state_dict() | {"step": step}
        next(batches)


def test_three_resumes_with_other_numbers_of_workers_and_ranks(store: Path) -> None:
    expected = expect(store, epoch=2)
    found, state = [], None
    for workers, world, count in ((2, 1, 9), (3, 2, 8), (0, 4, 7), (1, 2, 10**6)):
        ranks = []
        for rank in range(world):
            dataset = PileDataset(store, 16 // world, rank=rank, world_size=world)
            loader = PileDataLoader(dataset, num_workers=workers)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            loader.set_epoch(2)
            ranks.append((batch_ids(islice(loader, count)), json.dumps(loader.state_dict())))
        found += [flatten(parts) for parts in zip(*(ids for ids, _ in ranks), strict=True)]
        (state,) = {state for _, state in ranks}
    assert found == expected


def test_a_state_of_the_dataset_that_cannot_count_is_refused(store: Path) -> None:
    dataset = PileDataset(store, 16)
    for _ in DataLoader(dataset, batch_size=None, num_workers=1):
        break
    with pytest.raises(UsageError, match="this process cannot count"):
        dataset.state_dict()
    dataset.set_epoch(1)
    assert dataset.state_dict()["step"] == 0
    next(iter(DataLoader(dataset, batch_size=None)))
    assert dataset.state_dict()["step"] == 1


class Changed(torch.utils.data.IterableDataset):
    """Changes batches in the worker, as a transform of the user does."""

    def __init__(self, dataset: PileDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        for number, batch in enumerate(self.dataset):
            if number % 2:
                batch["id"] += 1000
                batch["worker"] = get_worker_info().id
                assert dict(batch) == {name: batch[name] for name in batch}
                assert "worker" in batch
                assert len(batch) == len(batch.keys())
                del batch["text"]
            yield batch


@pytest.mark.parametrize("method", METHODS)
def test_batches_can_be_changed_in_the_worker(store: Path, method: str) -> None:
    loader = DataLoader(
        Changed(PileDataset(store, 16)), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    expected = expect(store)
    for step, (batch, ids) in enumerate(zip(loader, expected, strict=True)):
        is_changed = step // 2 % 2
        assert batch["id"].tolist() == [index + 1000 * is_changed for index in ids]
        assert ("text" in batch) is not bool(is_changed)
        assert batch.get("worker") == (step % 2 if is_changed else None)


def test_what_cannot_be_meant_is_refused(store: Path) -> None:
    dataset = PileDataset(store, 16)
    uses: list[tuple[Callable[[], object], str]] = [
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


def mark(batch: dict[str, Any], seeds: np.ndarray) -> dict[str, Any]:
    """Return a batch with its seeds, and the worker that made it."""
    worker = get_worker_info()
    seeds = torch.from_numpy(seeds.view(np.int64))
    return {"id": batch["id"], "seeds": seeds, "worker": None if worker is None else worker.id}


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_gets_the_same_seeds_in_any_worker(store: Path, workers: int) -> None:
    expected = list(PileLoader(store, 16, epoch=1, output="torch", transform=mark))
    loader = PileDataLoader(PileDataset(store, 16, epoch=1, transform=mark), num_workers=workers)
    found = list(loader)
    for name in ("id", "seeds"):
        assert [batch[name].tolist() for batch in found] == [batch[name].tolist() for batch in expected]
    chosen = [step % workers if workers else None for step in range(len(found))]
    assert [batch["worker"] for batch in found] == chosen
    loader.seek(1, 5)
    assert batch_ids(loader) == batch_ids(expected)[5:]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_transform_their_own_batches_only(store: Path, tmp_path: Path, method: str) -> None:
    dataset = PileDataset(store, 16, transform=partial(note, tmp_path))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert len(list(loader)) == len(list(tmp_path.iterdir())) == len(dataset)


def test_a_dataset_of_files_shares_the_store_of_the_loader(store: Path, tmp_path: Path) -> None:
    files, options = store.parent / "*.parquet", {"cache": tmp_path, "seed": 7, "piles": 9}
    dataset = PileDataset.from_files(files, 16, epoch=1, columns=["id"], **options)
    loader = PileLoader.from_files(files, 16, epoch=1, **options)
    assert batch_ids(PileDataLoader(dataset)) == batch_ids(loader) == expect(store, epoch=1)


def test_what_is_shown_names_no_rank_that_is_not_known(store: Path) -> None:
    loader = PileDataLoader(PileDataset(store, 16, lanes=4), num_workers=2)
    shown = f"PileDataset('{store}', batch_size=16, epoch=0, mix=1, num_records=1000)"
    assert repr(loader) == f"PileDataLoader({shown}, num_workers=2)"
    assert len(loader)
    assert repr(loader.dataset) == shown.replace("16,", "16, rank=0, world_size=1,")


def fail(kind: type[Exception], arguments: tuple[str, ...], *_: Any) -> None:
    raise kind(*arguments)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loader", [partial(DataLoader, batch_size=None), PileDataLoader])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (errors.ForbiddenInputError, ("a.jsonl", "may not be read")),
        (errors.ConversionError, ("a.b", "has no type")),
        (errors.DamagedSetError, ("a.piles", "is cut short", "run again")),
        (errors.DiskFullError, ("no space left",)),
    ],
)
def test_an_error_of_a_worker_keeps_its_class(
    store: Path, loader: Any, kind: type[Exception], arguments: tuple[str, ...], method: str
) -> None:
    dataset = PileDataset(store, 16, transform=partial(fail, kind, arguments))
    with pytest.raises(kind, match=str(kind(*arguments))) as caught:
        next(iter(loader(dataset, num_workers=1, multiprocessing_context=method)))
    assert type(caught.value) is kind


def add_tensors(batch: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
    """Add what is no array of NumPy, what is a view, and what is an array."""
    more = torch.arange(40_000).reshape(2, -1)
    return batch | {
        "half": torch.ones(3).bfloat16(),
        "large": more[1:],
        "array": np.ones(2),
    }


def test_any_tensors_of_a_transform_arrive(store: Path) -> None:
    expected = next(iter(PileLoader(store, 16, output="torch", transform=add_tensors)))
    batch = next(iter(PileDataLoader(PileDataset(store, 16, transform=add_tensors), num_workers=1)))
    assert list(batch) == list(expected)
    assert type(batch) is dict
    for name in ("id", "vector", "half", "large"):
        assert batch[name].dtype == expected[name].dtype
        assert torch.equal(batch[name], expected[name])
    assert isinstance(batch["array"], np.ndarray)


def note(folder: Path, batch: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
    (folder / str(batch["id"][0].item())).touch(exist_ok=False)
    return batch
