"""Data sets of stores in a bucket: workers connect by themselves."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.object_server import Bucket

pytest.importorskip("torch", reason="PyTorch is not installed")

import pyarrow as pa

import recshuf
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.stores.small_stores import batch_ids, write

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("method", [None, *METHODS])
def test_batches_of_a_bucket_are_those_of_a_disk_also_after_a_resume(
    tmp_path: Path, s3_bucket: Bucket, method: str | None
) -> None:
    url, loaders = f"{s3_bucket.url}/store", []
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    for place in (tmp_path / "store", url):
        for name in ("a", "b"):
            write(place, name, pa.table({"id": range(300)}), seed=3, piles=4)
        dataset = PileDataset(place, 32, epoch=1)
        assert dataset.state_dict()["epoch"] == 1  # the main process has asked before the workers are forked
        loaders.append(PileDataLoader(dataset, **workers))
    expected, found = (batch_ids(loader) for loader in loaders)
    assert found == expected
    for loader in loaders:
        loader.dataset.seek(1, 0)
    batches = iter(loaders[1])
    begun = [next(batches)["id"].tolist() for _ in range(5)]
    state = loaders[1].state_dict()
    del batches
    fresh = PileDataLoader(PileDataset(url, 32, epoch=1), **workers)
    fresh.load_state_dict(state)
    assert begun + batch_ids(fresh) == expected


LEGS = [
    (1, 2, "fork"),
    pytest.param(2, 0, None, marks=pytest.mark.slow),
    pytest.param(
        2, 1, "spawn", marks=pytest.mark.slow
    ),  # a server of forks would have the environment of its first test
]


@pytest.mark.parametrize(("world", "workers", "method"), LEGS)
def test_a_mix_of_a_bucket_and_a_disk_goes_on_with_other_ranks_and_workers(
    tmp_path: Path, s3_bucket: Bucket, world: int, workers: int, method: str | None
) -> None:
    far, near = f"{s3_bucket.url}/far", str(tmp_path / "near")
    for place, first in ((far, 0), (near, 1000), (tmp_path / "far", 0)):
        write(place, "a", pa.table({"id": range(first, first + 90)}), seed=3, piles=4)

    def read_rank(rank: int, ranks: int, count: int | None, state: Any, **options: Any) -> tuple[Any, Any]:
        dataset = PileDataset({far: 2, near: 1}, 12 // ranks, rank=rank, world_size=ranks, lanes=2, **options)
        loader = PileDataLoader(
            dataset,
            num_workers=workers if count is None else 0,
            multiprocessing_context=method if count is None else None,
        )
        if state is not None:
            loader.load_state_dict(state)
        return batch_ids(islice(loader, count)), loader.state_dict()

    whole = recshuf.MixLoader({tmp_path / "far": 2, near: 1}, 12, lanes=2)
    begun, state = read_rank(0, 1, 4, None)
    ranks = [read_rank(rank, world, None, state, cache=tmp_path / "cache")[0] for rank in range(world)]
    assert begun + [[*chain(*parts)] for parts in zip(*ranks, strict=True)] == batch_ids(whole)
