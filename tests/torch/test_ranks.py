"""Rank and world size are those of the training when it begins, however early the loader was made, or an error tells why not."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch.utils.data import DataLoader

from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from recshuf.train.loader import PileLoader
from tests.support.processes.deaths import fork, join
from tests.support.stores.epoch_oracle import flatten
from tests.support.stores.small_stores import batch_ids

PLAIN = partial(DataLoader, batch_size=None)
METHODS = ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]


def expect(store: Path, rank: int, world_size: int, **options: Any) -> list[list[int]]:
    return batch_ids(PileLoader(store, 16, rank=rank, world_size=world_size, **options))


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes this process one of several, as `torch.distributed` or torchrun does."""

    def set_ranks(rank: int, world_size: int, by: str = "group") -> None:
        if by == "group":
            monkeypatch.setattr(distributed, "is_initialized", lambda: True)
            monkeypatch.setattr(distributed, "get_rank", lambda _=None: rank)
            monkeypatch.setattr(distributed, "get_world_size", lambda _=None: world_size)
        else:
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return set_ranks


@pytest.mark.parametrize("by", ["group", "environment"])
@pytest.mark.parametrize("kind", [PLAIN, PileDataLoader])
@pytest.mark.parametrize("method", [None, *METHODS])
def test_ranks_are_those_of_the_first_iteration(
    store: Path, tell: Any, kind: Any, method: str | None, by: str
) -> None:
    dataset = PileDataset(store, 16, lanes=2)
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    loader = kind(dataset, **workers)
    dataset.set_epoch(1)
    tell(1, 2, by)
    assert batch_ids(loader) == expect(store, 1, 2, lanes=2, epoch=1)
    assert len(loader) == len(expect(store, 1, 2, lanes=2, epoch=1))
    assert "rank=1, world_size=2" in repr(dataset)


def test_a_group_that_was_initialized_counts_more_than_the_environment(store: Path, tell: Any) -> None:
    tell(0, 4, "environment")
    tell(1, 2)
    assert batch_ids(PileDataset(store, 16)) == expect(store, 1, 2)


def test_the_state_of_an_untouched_loader_is_that_of_all_ranks(store: Path, tell: Any) -> None:
    states = []
    for rank in range(2):
        loader = PileDataLoader(PileDataset(store, 8))
        tell(rank, 2)
        states.append(loader.state_dict())
    assert states == [PileLoader(store, 16).state_dict()] * 2
    loader = PileDataLoader(PileDataset(store, 8))
    loader.load_state_dict(states[0] | {"step": 5})
    assert batch_ids(loader) == batch_ids(PileLoader(store, 8, rank=1, world_size=2))[5:]


USES: dict[str, Callable[[PileDataLoader], Any]] = {
    "length": len,
    "iteration": list,
    "state": PileDataLoader.state_dict,
    "position": lambda loader: loader.seek(0, 3),
}


@pytest.mark.parametrize(
    ("use", "by", "is_told"),
    [(use, by, (place + (by == "group")) % 2 > 0) for place, use in enumerate(USES) for by in ("group", "environment")],
)  # fmt: skip
def test_ranks_that_change_after_they_were_used_are_an_error(
    store: Path, tell: Any, use: str, by: str, is_told: bool
) -> None:
    loader, said = PileDataLoader(PileDataset(store, 16)), "0 of 1, told by no launcher,"
    if is_told:
        tell(1, 2, by)
        said = "1 of 2, told by .*"
    USES[use](loader)
    tell(0, 2, by)
    with pytest.raises(UsageError, match=rf"divided as for rank {said} and .* rank 0 of 2;"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("given", "told", "by", "is_refused"),
    [
        ((1, 2), (1, 2), "group", False),
        ((0, 2), (1, 2), "environment", True),
        ((0, 4), (0, 2), "group", True),
        ((0, 1), (1, 2), "environment", True),
        ((0, 1), (1, 2), "group", True),
        ((0, 1), (0, 2), "environment", False),  # a framework divides what rank 0 reads
    ],
)
def test_given_ranks_that_are_not_those_of_the_processes_are_an_error(
    store: Path, tell: Any, given: tuple[int, int], told: tuple[int, int], by: str, is_refused: bool
) -> None:
    rank, world_size = given
    dataset = PileDataset(store, 16, rank=rank, world_size=world_size)
    tell(*told, by)
    for loader in (PLAIN(dataset), PLAIN(dataset, num_workers=1), PileDataLoader(dataset)):
        if is_refused:
            with pytest.raises(UsageError, match=f"rank={rank} with world_size={world_size}: .* has rank"):
                next(iter(loader))
        else:
            assert batch_ids(loader) == expect(store, rank, world_size)


def test_an_environment_that_tells_no_rank_is_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = PileDataset(store, 16)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(PileDataset(store, 16)) == len(expect(store, 0, 1))
    monkeypatch.setenv("WORLD_SIZE", "2")  # Lightning sets it alone
    for rank in ("", "2", "-1", "x"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(UsageError, match=f"WORLD_SIZE=2 and RANK={rank} in the environment tell no rank"):
            len(dataset)
    assert batch_ids(PileDataset(store, 16, rank=1, world_size=4)) == expect(store, 1, 4)
    with pytest.raises(UsageError, match="rank=0 with group="):
        PileDataset(store, 16, rank=0, world_size=1, group="some")


def test_what_is_sent_to_a_worker_has_the_ranks_of_its_sender(
    store: Path, tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = PileDataset(store, 16, group=lambda: "of this process")
    tell(1, 2)
    sent = pickle.dumps(dataset)
    monkeypatch.undo()
    assert batch_ids(pickle.loads(sent)) == expect(store, 1, 2)


def test_a_child_goes_on_from_where_its_parent_is_and_leaves_it_there(store: Path) -> None:
    loader, whole = PileDataLoader(PileDataset(store, 16)), expect(store, 0, 1)

    def seek() -> None:
        loader.seek(1, 5)
        assert loader.state_dict() == loader.dataset.describe(1, 5)

    def read() -> None:
        assert batch_ids(loader) == whole[3:]

    for move in (seek, lambda: loader.load_state_dict(loader.dataset.describe(1, 5)), seek):
        assert join(fork(move)) == 0
        assert batch_ids(loader) == whole
    loader.seek(0, 3)
    assert join(fork(read)) == 0
    read()


def train(dataset: PileDataset, store: Path, workers: int, folder: Path, rank: int) -> None:
    """Train as one of two processes that have got one dataset: rank 1 begins where rank 0 has ended."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    loader = PileDataLoader(dataset, num_workers=workers)
    found = []
    for turn in range(2):
        if turn == rank:
            for epoch in (2, 3):
                loader.set_epoch(epoch)
                found += [batch_ids(loader)]
        distributed.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    alone = PileDataset(store, 16, group=distributed.new_group([rank], use_local_synchronization=True))
    assert batch_ids(alone) == expect(store, 0, 1)
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 0), ("fork", 2), pytest.param("spawn", 0, marks=pytest.mark.slow)]
)
def test_processes_that_get_one_dataset_divide_it(
    store: Path, tmp_path: Path, method: str, workers: int
) -> None:
    context = multiprocessing.get_context(method)
    dataset = PileDataset(store, 8)
    dataset.seek(2, 0)
    processes = [
        context.Process(target=train, args=(dataset, store, workers, tmp_path, rank)) for rank in range(2)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(100)
        one.kill()  # or else it would wait for the other one
    assert [one.exitcode for one in processes] == [0, 0]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for number, epoch in enumerate((2, 3)):
        found = [flatten(parts) for parts in zip(*(rank[number] for rank in ranks), strict=True)]
        assert found == batch_ids(PileLoader(store, 16, epoch=epoch))
