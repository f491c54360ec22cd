"""Data sets of stores in a bucket: workers connect by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import pyarrow as pa

import recshuf
from recshuf.torch import PileDataLoader, PileDataset

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def read(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("method", [None, *METHODS])
def test_batches_of_a_bucket_are_those_of_a_disk_also_after_a_resume(
    tmp_path: Path, s3_bucket: Bucket, method: str | None
) -> None:
    url, loaders = f"{s3_bucket.url}/store", []
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    for place in (tmp_path / "store", url):
        for name in ("a", "b"):
            with recshuf.PileWriter(place, name, seed=3, piles=4) as writer:
                writer.write(pa.table({"id": range(300)}))
        dataset = PileDataset(place, 32, epoch=1)
        assert dataset.state_dict()["epoch"] == 1  # the main process has asked before the workers are forked
        loaders.append(PileDataLoader(dataset, **workers))
    expected, found = (read(loader) for loader in loaders)
    assert found == expected
    for loader in loaders:
        loader.dataset.seek(1, 0)
    batches = iter(loaders[1])
    begun = [next(batches)["id"].tolist() for _ in range(5)]
    state = loaders[1].state_dict()
    del batches
    fresh = PileDataLoader(PileDataset(url, 32, epoch=1), **workers)
    fresh.load_state_dict(state)
    assert begun + read(fresh) == expected
