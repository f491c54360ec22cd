"""The battery itself: quiet for uniform permutations, loud for the flaws that real shufflers have."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.statistics import (
    battery,
    chi_square_upper,
    count_cycles,
    count_inversions,
    permutation_chi_square,
    rank_permutations,
    score_agreement,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Shuffler = Callable[[np.random.Generator, int], NDArray[np.int64]]

RECORDS = 100_000
FILES = 100
PILES = 100
LIMIT = 6


def shuffle_by_buffer(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    size = n // 100
    buffer = list(range(size))
    slots = rng.integers(0, size, n - size).tolist()
    out = []
    for record, slot in enumerate(slots, start=size):
        out.append(buffer[slot])
        buffer[slot] = record
    return np.concatenate((np.array(out), rng.permutation(np.array(buffer))))


def deal_one_of_each_file(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    shuffled_files = rng.permuted(np.arange(n).reshape(FILES, -1), axis=1)
    return rng.permuted(shuffled_files.T, axis=1).ravel()


def rotate(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.roll(np.arange(n), rng.integers(n))


def skip_second_pass(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.argsort(rng.integers(0, PILES, n), kind="stable")


def order_every_pile_alike(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    grouped = skip_second_pass(rng, n)
    sizes = rng.multinomial(n, np.full(PILES, 1 / PILES))
    keys = rng.random(sizes.max())
    piles = np.split(grouped, np.cumsum(sizes)[:-1])
    return np.concatenate([pile[np.argsort(keys[: pile.size])] for pile in piles])


def sort_by_short_keys(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.argsort(rng.integers(0, 1 << 16, n), kind="stable")


def deal_round_robin(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rng.permuted(np.arange(n).reshape(-1, PILES).T, axis=1).ravel()


def fill_piles_evenly(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    dealt = rng.permuted(np.arange(n).reshape(-1, PILES), axis=1)
    return rng.permuted(dealt.T, axis=1).ravel()


def swap_with_any(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    out = list(range(n))
    for place, other in enumerate(rng.integers(0, n, n).tolist()):
        out[place], out[other] = out[other], out[place]
    return np.array(out)


def sort_inside_random_piles(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """The exact two-pass shuffle, as control."""
    return np.lexsort((rng.random(n), rng.integers(0, PILES, n)))


def draw(shuffler: Shuffler, seed: int = 0) -> NDArray[np.int64]:
    p = shuffler(np.random.default_rng(seed), RECORDS)
    assert np.array_equal(np.sort(p), np.arange(RECORDS))
    return p


def measure(p: NDArray[np.int64]) -> dict[str, float]:
    return battery(p, [RECORDS // FILES] * FILES)


@pytest.mark.parametrize("shuffler", [np.random.Generator.permutation, sort_inside_random_piles])
def test_uniform_permutations_stay_small(shuffler: Shuffler) -> None:
    scores = [measure(draw(shuffler, seed)) for seed in range(20)]
    for name in scores[0]:
        values = np.array([each[name] for each in scores])
        assert np.abs(values).max() < LIMIT, name
        assert abs(values.mean()) < 1.3, name  # five standard errors and some skew
        assert 0.4 < values.std() < 1.8, name


def test_files_may_differ_in_size() -> None:
    sizes = [1, 999, 50_000, 9_000, 40_000]
    scores = battery(draw(np.random.Generator.permutation), sizes)
    assert max(map(abs, scores.values())) < LIMIT


@pytest.mark.parametrize(
    ("shuffler", "caught_by"),
    [
        (
            shuffle_by_buffer,
            "blk32 blk_root resid pair32 win samefile near10 lag1mean serial spearman inversions",
        ),
        (shuffle_by_buffer, "footrule cycles records"),
        (deal_one_of_each_file, "blk32 blk_root win samefile"),
        (rotate, "blk32 blk_root pair32 near10 near1000 descents footrule records"),
        (skip_second_pass, "blk32 blk_root pair32 win samefile near10 descents"),
        (order_every_pile_alike, "pair32"),
        (sort_by_short_keys, "pair32 descents lag1mean"),
        (deal_round_robin, "resid blk32 blk_root win"),
        (fill_piles_evenly, "blk32 blk_root win"),
        (swap_with_any, "blk32 spearman inversions footrule"),
    ],
)
def test_known_flaws_are_caught(shuffler: Shuffler, caught_by: str) -> None:
    scores = measure(draw(shuffler))
    assert {name: scores[name] for name in caught_by.split() if abs(scores[name]) <= LIMIT} == {}


@pytest.mark.parametrize("shuffler", [deal_one_of_each_file, fill_piles_evenly])
def test_what_is_too_even_shows_in_the_lower_tail(shuffler: Shuffler) -> None:
    assert measure(draw(shuffler))["blk32"] < -LIMIT


def test_permutations_of_one_cycle_are_caught_over_ten_seeds() -> None:
    scores = []
    for seed in range(10):
        order = draw(np.random.Generator.permutation, seed)
        p = np.empty_like(order)
        p[order] = np.roll(order, 1)
        assert count_cycles(p) == 1
        scores.append(measure(p)["cycles"])
    assert sum(scores) / math.sqrt(len(scores)) < -LIMIT


def test_seeds_that_are_related_are_caught() -> None:
    unrelated = np.stack([draw(np.random.Generator.permutation, seed) for seed in range(8)])
    related = np.stack(
        [unrelated[0], *(np.where(np.arange(RECORDS) < 20, unrelated[0], each) for each in unrelated)]
    )
    assert abs(score_agreement(unrelated)) < LIMIT
    assert score_agreement(related) > LIMIT


def test_counts_equal_slow_counts() -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 3, 64, 65, 100):
        p = rng.permutation(n)
        assert count_inversions(p) == sum(p[i] > p[k] for i in range(n) for k in range(i + 1, n))
        unseen, cycles = set(range(n)), 0
        while unseen:
            cycles += 1
            place = min(unseen)
            while place in unseen:
                unseen.remove(place)
                place = int(p[place])
        assert count_cycles(p) == cycles


# All orders of few records


def draw_small(shuffler: Shuffler, n: int, count: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(1)
    return np.stack([shuffler(rng, n) for _ in range(count)])


def test_ranks_number_all_orders() -> None:
    everything = np.array(list(permutations(range(5))))
    assert np.array_equal(rank_permutations(everything), np.arange(120))


@pytest.mark.parametrize(("n", "count"), [(3, 6_000), (4, 24_000), (5, 60_000)])
def test_uniform_orders_pass_the_chi_square(n: int, count: int) -> None:
    drawn = np.argsort(np.random.default_rng(n).random((count, n)), axis=1)
    statistic, p_value = permutation_chi_square(drawn)
    assert p_value > 1e-4
    assert statistic > 0


@pytest.mark.parametrize("n", [4, 5])
def test_naive_swaps_fail_the_chi_square(n: int) -> None:
    assert permutation_chi_square(draw_small(swap_with_any, n, 6_000))[1] < 1e-6


def test_orders_that_are_too_even_fail_the_chi_square() -> None:
    everything = np.array(list(permutations(range(4))))
    too_even = np.repeat(everything, 1000, axis=0)
    too_even[:50] = everything[np.random.default_rng(2).integers(0, 24, 50)]
    assert permutation_chi_square(too_even)[1] < 1e-6


def test_chi_square_tail_follows_simulation_and_known_points() -> None:
    draws = np.random.default_rng(3).chisquare(119, 200_000)
    for statistic in (90.0, 119.0, 150.0):
        assert abs(chi_square_upper(statistic, 119) - (draws > statistic).mean()) < 0.006
    assert chi_square_upper(0.0, 23) == 1.0
    assert math.isclose(chi_square_upper(10.0, 1), math.erfc(math.sqrt(5)))
    assert math.isclose(chi_square_upper(10.0, 2), math.exp(-5))
