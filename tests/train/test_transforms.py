"""Transforms: a seed for each record, the same in every batch, rank and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.stores.fake_piles import FakePiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORE = FakePiles({"a": [30, 20], "b": [25]}, 5)


def keep(batch: dict[str, Any], seeds: NDArray[np.uint64]) -> dict[str, Any]:
    assert seeds.dtype == np.uint64
    return batch | {"seed": seeds}


def find_seeds(loader: PileLoader) -> dict[tuple[int, int], int]:
    """Return the seed of each record that a loader yields."""
    found: dict[tuple[int, int], int] = {}
    for batch in loader:
        found |= zip(map(tuple, batch["_id"].tolist()), batch["seed"].tolist(), strict=True)
    return found


@settings(max_examples=examples(100))
@given(
    st.integers(0, 3),
    st.sampled_from(["rotate", "piles", "none"]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 2)]),
    st.integers(1, 4),
    st.sampled_from([8, 9]),
)
def test_a_seed_is_that_of_source_and_row(
    epoch: int, reshuffle: str, ranks: tuple[int, int], size: int, seed: int
) -> None:
    world, lanes = ranks
    lanes *= world if lanes > 1 else 1
    found: dict[tuple[int, int], int] = {}
    for rank in range(world):
        loader = PileLoader(
            STORE, size * lanes, columns=["_id"], seed=seed, reshuffle=reshuffle, rank=rank, world_size=world, lanes=lanes,
            drop_last=False, transform=keep,
        )  # fmt: skip
        loader.set_epoch(epoch)
        found |= find_seeds(loader)
    ids = np.array(sorted(found), np.uint64)
    expected = EpochOrder(seed, epoch, reshuffle, 7).draw_seeds(ids[:, 0] << np.uint64(42) | ids[:, 1])
    assert [found[one] for one in sorted(found)] == expected.tolist()
    assert len(found) == 75


def test_seeds_are_new_in_each_epoch_and_with_each_seed() -> None:
    options: dict[str, Any] = {"columns": ["_id"], "drop_last": False, "transform": keep}
    found = [
        set(find_seeds(PileLoader(STORE, 5, seed=seed, epoch=epoch, **options)).values())
        for seed, epoch in ((8, 0), (8, 1), (9, 0))
    ]
    assert len(set.union(*found)) == 3 * 75


def test_what_the_transform_returns_is_yielded_and_resumes() -> None:
    def fold(batch: Any, seeds: NDArray[np.uint64]) -> tuple[list[int], int]:
        assert batch.schema.names == ["id"]
        return batch["id"].to_pylist(), int(seeds.sum())

    arguments: dict[str, Any] = {"output": "arrow", "epoch": 1, "transform": fold}
    whole = list(PileLoader(STORE, 6, **arguments))
    loader = PileLoader(STORE, 6, **arguments)
    loader.seek(1, 7)
    assert list(loader) == whole[7:]


def test_records_need_columns() -> None:
    loader = PileLoader(STORE, 6, transform=lambda _, seeds: seeds)
    with pytest.raises(
        UsageError, match=r"^records: the transform returned ndarray, .*; iterate over the loader"
    ):
        next(loader.records())


def test_a_transform_may_leave_no_record_of_a_batch() -> None:
    loader = PileLoader(STORE, 6, transform=lambda batch, seeds: {"id": batch["id"][seeds % 16 == 0]})
    sizes = [len(batch["id"]) for batch in loader]
    assert 0 in sizes
    assert len(list(loader.records())) == sum(sizes)
    assert loader.state_dict()["step"] == len(sizes)
