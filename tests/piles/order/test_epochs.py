"""The order of epochs is the same for ever; see `tests.train.test_loader` for what the oracle says."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.piles.epochs import MAX_EPOCH, RESHUFFLES, EpochOrder
from recshuf.records.keys import MAX_SEED
from tests.support.effort import examples
from tests.support.stores import epoch_oracle as oracle

GOLDEN = Path(__file__).parents[2] / "golden" / "epochs" / "streams.json"
NAMES = ["b", "part-00000.set", "ü", "\udcff"]
SEEDS = st.integers(0, MAX_SEED)
EPOCHS = st.integers(0, 3) | st.integers(0, MAX_EPOCH)


def order_of(reshuffle: str = "rotate", epoch: int = 1, seed: int = 7) -> EpochOrder:
    return EpochOrder(seed=seed, epoch=epoch, reshuffle=reshuffle, store_seed=7)


def record_streams() -> dict[str, object]:
    """Return some of the order of some epochs."""
    cases: dict[str, object] = {}
    for seed in (7, MAX_SEED):
        for epoch in (0, 1, MAX_EPOCH):
            for reshuffle in RESHUFFLES:
                order = order_of(reshuffle, epoch, seed)
                cases[f"seed {seed}, epoch {epoch}, {reshuffle}"] = {
                    "slots": order.find_slots(NAMES, 6).tolist(),
                    "group 2": order.sort_group(
                        2, np.arange(8, dtype=np.uint64), np.zeros(8, np.uint64)
                    ).tolist(),
                }
    return cases


def test_golden_epochs() -> None:
    assert record_streams() == json.loads(GOLDEN.read_text())


def mix_slowly(word: int) -> int:
    """Return the output of splitmix64 for a state."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


@settings(max_examples=examples(150))
@given(SEEDS, EPOCHS, st.lists(st.integers(0, 2**64 - 1)))
def test_seeds_of_transforms_are_those_of_the_formula(seed: int, epoch: int, origins: list[int]) -> None:
    first, second = oracle.raw(seed, 5, epoch, count=2)
    drawn = order_of("none", epoch, seed).draw_seeds(np.array(origins, np.uint64))
    assert drawn.tolist() == [mix_slowly(mix_slowly(one ^ first) ^ second) for one in origins]


@pytest.mark.parametrize(("reshuffle", "epoch"), [("rotate", 0), ("rotate", 1), ("piles", 2), ("none", 1)])
def test_records_of_equal_keys_are_in_the_order_of_sources_and_rows(reshuffle: str, epoch: int) -> None:
    members = [(2**64 - 1, 1, 0), (5, 2, 0), (5, 0, 3), (2**64 - 1, 0, 9), (5, 0, 1), (0, 3, 3)]
    keys = np.array([key for key, _, _ in members], np.uint64)
    origins = np.array([source << 42 | row for _, source, row in members], np.uint64)
    expected, order = sorted(range(len(members)), key=lambda k: members[k]), order_of(reshuffle, epoch)
    if not order.is_stored:
        drawn = 0 if reshuffle == "none" else epoch
        expected = oracle.sort_by(oracle.raw(7, 2, drawn, 5, count=len(members)), expected)
    assert order.sort_group(5, keys, origins).tolist() == expected


def test_bad_arguments_are_named() -> None:
    for field, value in (
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("seed", True),
        ("epoch", MAX_EPOCH + 1),
        ("epoch", 1.0),
        ("reshuffle", "all"),
    ):
        with pytest.raises(UsageError, match=f"^{field}={value!r}: give "):
            EpochOrder(**{"seed": 7, "epoch": 1, "reshuffle": "rotate", "store_seed": 7} | {field: value})


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in record_streams().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
