"""docs/store.md says what an epoch is: its random numbers, and the loaders over stores that its own reader reads."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import (
    Mix,
    Record,
    Rules,
    count_before,
    cut_batches,
    group_records,
    mix_batches,
    raw,
)
from tests.support.stores.small_stores import write
from tests.support.stores.store_reader import read_sets, read_snapshot

PAGE = Path(__file__).parents[2] / "docs" / "store.md"
OTHER_SEED = 9


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Return what the programs of the page define."""
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(program, names)
    return names


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a store of inputs and appended slices, one of writers, and the first one after it was compacted."""
    folder = tmp_path_factory.mktemp("stores")
    inputs = []
    for number, count in enumerate((40, 0, 25)):
        inputs.append(folder / f"{number}.txt")
        inputs[-1].write_text("".join(f"{number} {row}\n" for row in range(count)))
    stores = [folder / "inputs", folder / "writers", folder / "compacted"]
    for store in (stores[0], stores[2]):
        recshuf.scatter(inputs, store, seed=2**90 + 5, piles=7)
        for time in (1, 2):
            with recshuf.PileStore(store).update() as update:
                update.append(inputs[time], time=time)
    recshuf.compact(stores[2])
    for name in ("x", "y-1"):
        write(stores[1], name, {"text": [f"{name} {row}" for row in range(33)]}, seed=5, piles=5)
    return stores


def read_groups(store: Path, seed: int | None, **rules: Any) -> list[list[tuple[int, int]]]:
    """Return source and row of the records of each group of an epoch, read and ordered without recshuf."""
    snapshot = read_snapshot(store)
    piles, own = snapshot["pile_count"], int(snapshot["seed"])
    records = [
        Record(row.key, row.source, row.row, name, ((row.key >> 32) * piles) >> 32)
        for name, rows in read_sets(store).items()
        for row in rows
    ]
    rules = {"seed": own if seed is None else seed, "store_seed": own} | rules
    names = [one["name"] for one in snapshot["sets"]]
    return [[one.id for one in group] for group in group_records(records, names, piles, Rules(**rules))]


@settings(max_examples=examples(100))
@given(st.integers(0, 2**128 - 1), st.lists(st.integers(0, 2**40), max_size=7))
def test_random_numbers_are_those_of_the_page(page: dict[str, Any], seed: int, numbers: list[int]) -> None:
    assert list(islice(page["draw"](seed, *numbers), 9)) == raw(seed, *numbers, count=9)


@settings(max_examples=examples(100))
@given(st.integers(0, 60), st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_counts_in_a_mix_are_those_of_the_page(page: dict[str, Any], done: int, counts: list[int]) -> None:
    done = min(done, sum(counts))
    assert page["count_before"](done, counts) == count_before(done, counts)


@pytest.mark.parametrize(
    ("reshuffle", "epoch", "seed"),
    [
        ("rotate", 0, None),
        ("rotate", 1, None),
        ("rotate", 0, OTHER_SEED),
        ("piles", 1, None),
        ("piles", 2, OTHER_SEED),
        ("none", 1, OTHER_SEED),
    ],
)
def test_stores_give_the_epochs_of_the_page(
    stores: list[Path], reshuffle: str, epoch: int, seed: int | None
) -> None:
    order: dict[str, Any] = {"reshuffle": reshuffle, "epoch": epoch, "seed": seed}
    for store in stores:
        for mix in (1, 3):
            (expected,) = zip(*cut_batches(read_groups(store, mix=mix, **order), 4, 1, 1, False), strict=True)
            loader = recshuf.PileLoader(store, 4, columns=["_id"], drop_last=False, mix=mix, **order)
            assert [[tuple(one) for one in batch["_id"].tolist()] for batch in loader] == list(expected)


@pytest.mark.parametrize(
    ("reshuffle", "seed", "weights"),
    [("rotate", None, [0.7, 0.3]), ("piles", OTHER_SEED, [1, 9]), ("rotate", OTHER_SEED, [1, 1])],
)
def test_mixes_give_the_batches_of_the_page(
    stores: list[Path], reshuffle: str, seed: int | None, weights: list[float]
) -> None:
    def read(store: Path) -> Any:
        return lambda epoch: read_groups(store, seed, epoch=epoch, reshuffle=reshuffle)

    chosen = dict(zip(stores, weights, strict=False))
    own = int(read_snapshot(stores[0])["seed"]) if seed is None else seed
    mix = Mix([read(store) for store in chosen], {0: weights}, 8, own)
    for epoch, expected in enumerate(mix_batches(mix, 3)):
        order: dict[str, Any] = {"reshuffle": reshuffle, "seed": seed, "epoch": epoch}
        loader = recshuf.MixLoader(chosen, 8, columns=["_store", "_id"], **order)
        found = [np.column_stack((batch["_store"], batch["_id"])).tolist() for batch in loader]
        assert found == [[[number, *ids] for number, ids in batch] for batch in expected]
