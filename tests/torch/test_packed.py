"""Packed sequences in workers: the same as without, resumed on other numbers of ranks and workers."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.stores.token_documents import PACKINGS, expect, make_store
from tests.torch.test_resumes import run_worker_legs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
@settings(max_examples=examples(120))
@given(
    lanes=st.sampled_from([1, 2, 6]),
    epoch=st.integers(0, 2),
    packing=PACKINGS,
    legs=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from([1, 2, 3, 6])), min_size=3, max_size=3
    ),
)
def test_chains_of_resumes_yield_the_sequences_of_the_oracle(
    lanes: int, epoch: int, packing: dict[str, Any], legs: list[tuple[int, int, int]]
) -> None:
    store = make_store(sizes=(15, 20, 12), piles=12)
    options = {"lanes": lanes, "epoch": epoch}
    found = run_worker_legs(
        [
            (taken, world if lanes == 1 or lanes % world == 0 else 1, workers)
            for taken, workers, world in legs
        ],
        lambda world: [
            PileDataset(store, 6 // world, rank=rank, world_size=world, **options).packed(**packing)
            for rank in range(world)
        ],
        lambda batch: list(zip(*(column.tolist() for column in batch.values()), strict=True)),
    )
    shown = 3 if packing.pop("boundaries", False) else 1
    expected = expect(store, {"epoch": epoch}, lanes, 6, len(found), **packing)
    assert found == [list(zip(*columns[:shown], strict=True)) for columns in expected]


def test_a_loader_counts_what_workers_make_and_another_goes_on(store: Path) -> None:
    packing = {"tokens": 8, "column": "tokens", "boundaries": True, "eos": 5, "documents": "whole"}
    plain = PileLoader(store, 4, output="torch").packed(**packing)
    whole = [{name: one.tolist() for name, one in batch.items()} for batch in islice(plain, 60)]
    loader = PileDataLoader(PileDataset(store, 4).packed(**packing), num_workers=2)
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
