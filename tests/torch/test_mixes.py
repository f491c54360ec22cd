"""Mixes through the data set of PyTorch against the oracle: any stores, weights, lanes, ranks, workers and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")


import recshuf
from recshuf.torch import PileDataLoader, PileDataset
from tests.support.stores.epoch_oracle import flatten
from tests.support.stores.mix_process import list_records, make_dataset
from tests.torch.test_resumes import run_worker_legs
from tests.train.test_mixing import check_case, draw

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


def test_chains_of_resumes_yield_the_batches_of_the_oracle() -> None:
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
