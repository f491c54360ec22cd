"""The order: keys that never change, piles that are ranges of keys, sorts that keep ties in place."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recshuf.records.keys import (
    MAX_PILES,
    MAX_SEED,
    KeyRange,
    draw_keys,
    find_piles,
    sort_by_key,
    sort_by_words,
)
from tests.support.effort import examples
from tests.support.order_statistics import battery

SEEDS = st.integers(0, MAX_SEED)
KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=60).map(
    lambda keys: np.array(keys, np.uint64)
)


def order_of(seed: int, row_counts: list[int]) -> NDArray[np.intp]:
    return sort_by_key(draw_keys(seed, [(index, 0, count) for index, count in enumerate(row_counts)]))


@settings(max_examples=examples(100))
@given(
    SEEDS,
    st.lists(
        st.tuples(st.integers(0, 1) | st.integers(0, 2**32 - 1), st.integers(0, 70), st.integers(0, 70)),
        min_size=1,
    ),
)
def test_spans_have_the_keys_that_numpy_draws_for_their_inputs(
    seed: int, ranges: list[tuple[int, int, int]]
) -> None:
    expected = []
    for input_index, first_row, count in ranges:
        stream = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(input_index,)))
        expected += stream.random_raw(first_row + count)[first_row:].tolist()
    found = draw_keys(seed, ranges)
    assert found.dtype == np.uint64
    assert found.tolist() == expected


@settings(max_examples=examples(100))
@given(KEYS, st.lists(st.integers(1, MAX_PILES), min_size=2, max_size=5))
@example(np.array([0, 2**64 - 1], np.uint64), [MAX_PILES, 1])
def test_piles_are_ranges_of_keys_and_split_into_finer_ones(
    keys: NDArray[np.uint64], pile_counts: list[int]
) -> None:
    key_range = KeyRange()
    for pile_count in pile_counts:
        before = keys.tolist()
        piles = find_piles(keys, pile_count, key_range)
        assert piles.tolist() == [
            ((key - key_range.low >> key_range.shift) * pile_count) >> 32 for key in before
        ]
        assert keys.tolist() == before
        assert np.all(np.diff(piles[np.argsort(keys)].astype(int)) >= 0)
        assert np.all(piles < pile_count)
        if not keys.size:
            return
        pile = int(piles[0])
        keys = keys[piles == pile]
        part = key_range.part(pile, pile_count)
        assert part.shift <= key_range.shift
        assert part.low <= int(keys.min())
        assert int(keys.max()) < part.low + (1 << 32 + part.shift)
        key_range = part


@settings(max_examples=examples(100))
@given(st.integers(1, MAX_PILES), st.data())
def test_the_first_and_the_last_key_of_a_pile_are_in_its_range(pile_count: int, data: st.DataObject) -> None:
    pile = data.draw(st.integers(0, pile_count - 1))
    first, end = (-(-(edge << 32) // pile_count) << 32 for edge in (pile, pile + 1))
    part = KeyRange().part(pile, pile_count)
    keys = np.array([first, end - 1], np.uint64)
    assert find_piles(keys, pile_count).tolist() == [pile, pile]
    assert part.low <= first < end <= part.low + (1 << 32 + part.shift)
    assert int(find_piles(keys, 1000, part).max()) < 1000


@settings(max_examples=examples(100))
@given(KEYS)
@example(np.array([3, 2**64 - 1, 1], np.uint64))
@example(np.array([1, 0, 2**62], np.uint64))
def test_sorting_keeps_ties_in_place(keys: NDArray[np.uint64]) -> None:
    assert sort_by_key(keys).tolist() == sorted(range(keys.size), key=lambda row: int(keys[row]))


def test_sorting_many_ties_and_keys_that_differ_in_their_lowest_bits() -> None:
    rng = np.random.default_rng(2)
    ties = rng.integers(0, 500, 100_000).astype(np.uint64)
    keys = rng.integers(0, 2**64, 300, np.uint64)[rng.integers(0, 300, 50_000)]
    close = keys & ~np.uint64(0xFFFFFF) | rng.integers(0, 4, keys.size, np.uint64)
    for drawn in (ties, close):
        assert np.array_equal(sort_by_key(drawn), np.argsort(drawn, kind="stable"))
    first, second = np.repeat(np.array([7, 1], np.uint64), [190_000, 10_000]), np.tile(ties, 2)
    assert np.array_equal(sort_by_words([first, second]), np.lexsort((second, first)))


@pytest.mark.parametrize(
    "seed", [0, MAX_SEED, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 12345))]
)
def test_the_order_is_uniform_in_the_large(seed: int) -> None:
    sizes = [20_000, 1, 50_000, 29_999]
    scores = battery(order_of(seed, sizes), sizes)
    assert {name: score for name, score in scores.items() if abs(score) > 6} == {}
