"""Every epoch is uniform: over the seeds of stores, a loader yields all orders of four records equally often."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from recshuf.piles.epochs import EpochOrder
from recshuf.piles.groups import Groups
from recshuf.records.provenance import find_origins
from recshuf.train.loader import PileLoader
from recshuf.train.schedule import Schedule, Sharding
from tests.support.effort import TRIES_ALL
from tests.support.order_statistics import permutation_chi_square
from tests.support.stores.fake_piles import FakePiles

SEEDS = 24 * (40 if TRIES_ALL else 15)
STORES = 48 if TRIES_ALL else 20
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


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


def count_meetings(store: FakePiles, epoch: int, reshuffle: str, mix: int) -> float:
    """Return how much more often than by chance two records of a batch share a group in the next epoch."""
    first, second = (
        np.concatenate(
            [batch["id"] for batch in PileLoader(store, 8, epoch=number, reshuffle=reshuffle, mix=mix)]
        )
        for number in (epoch, epoch + 1)
    )
    sizes = Groups(store, EpochOrder(store.seed, epoch + 1, reshuffle, store.seed, mix)).sizes
    group_of = np.empty(first.max() + 1, np.intp)
    group_of[second] = np.repeat(np.arange(len(sizes)), sizes)
    batches = group_of[first].reshape(-1, 8)
    table = np.stack([(batches == group).sum(axis=1) for group in range(len(sizes))])
    shares = (sizes * (sizes - 1)).sum() / (len(first) * (len(first) - 1))
    return float((table * (table - 1)).sum() / (len(batches) * 8 * 7) / shares)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reshuffle", "mix", "epoch"),
    [
        (*one, epoch)
        for one in [("rotate", 1), ("rotate", 4), ("piles", 4), ("rotate", 2)]
        for epoch in (0, 1)
    ],
)
def test_batches_meet_again_as_often_as_the_page_says(reshuffle: str, mix: int, epoch: int) -> None:
    """Also those of epoch 0, which is in the order of the keys with one pile alone."""
    (formula,) = re.findall(rf'^\| `"{reshuffle}"` .* \| (1 \+ .*) \|$', PAGE.read_text(), re.MULTILINE)
    formula = formula.replace("^", "**").replace("K (", "K * (")
    expected = eval(formula, {"M": 16, "K": 4, "m": mix})
    stores = [FakePiles({name: [512] for name in "abcd"}, 16, seed=seed) for seed in range(STORES)]
    found = [count_meetings(store, epoch, reshuffle, mix) for store in stores]
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / len(found) ** 0.5
    assert np.std(found) / len(found) ** 0.5 < 0.05 * expected
