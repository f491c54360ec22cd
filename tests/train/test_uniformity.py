"""Every epoch is uniform: over the seeds of stores, a loader yields all orders of four records equally often."""

from __future__ import annotations

import numpy as np
import pytest

from recshuf.piles.epochs import EpochOrder
from recshuf.piles.groups import Groups
from recshuf.records.provenance import find_origins
from recshuf.train.schedule import Schedule, Sharding
from tests.support.effort import TRIES_ALL
from tests.support.order_statistics import permutation_chi_square
from tests.support.stores.fake_piles import FakePiles

SEEDS = 24 * (40 if TRIES_ALL else 15)


def yield_order(seed: int, reshuffle: str, epoch: int, mix: int, lanes: int) -> list[int]:
    """Return the records in the order of a loader, without its threads."""
    store = FakePiles({"a": [3], "b": [1]}, 3, seed=seed)
    return read_order(Groups(store, EpochOrder(seed, epoch, reshuffle, seed, mix)), lanes)


def read_order(groups: Groups, lanes: int) -> list[int]:
    rows: list[int] = []
    for phase, first in Schedule(groups.sizes, Sharding(2, lanes=lanes, drop_last=False)).starting_at(0):
        for tracks in phase.walk(first):
            for piece in (piece for track in tracks for piece in track):
                records = groups.load([piece.group])
                origins = find_origins(records.batch)[piece.start : piece.stop].tolist()
                rows += [(origin >> 42) * 3 + origin % (1 << 42) for origin in origins]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reshuffle", "epoch", "mix", "lanes"),
    [
        ("rotate", 2, 2, 2),
        ("piles", 1, 1, 1),
        ("none", 0, 1, 1),
        ("none", 0, 1, 2),
        ("rotate", 1, 1, 1),
        ("piles", 1, 2, 2),
    ],
)
def test_all_orders_are_equally_likely(reshuffle: str, epoch: int, mix: int, lanes: int) -> None:
    orders = [yield_order(seed, reshuffle, epoch, mix, lanes) for seed in range(SEEDS)]
    assert permutation_chi_square(np.array(orders))[1] > 1e-4
