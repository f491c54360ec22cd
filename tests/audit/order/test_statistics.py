"""Chi-square over all orders of few records, and agreement between seeds: quiet for uniform orders only."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.flawed_orders import swap_with_any
from tests.support.order_statistics import (
    chi_square_upper,
    permutation_chi_square,
    rank_permutations,
    score_agreement,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.support.flawed_orders import Shuffler

RECORDS = 100_000


def test_seeds_that_are_related_are_caught() -> None:
    unrelated = np.stack([np.random.default_rng(seed).permutation(RECORDS) for seed in range(8)])
    related = np.stack(
        [unrelated[0], *(np.where(np.arange(RECORDS) < 20, unrelated[0], each) for each in unrelated)]
    )
    assert abs(score_agreement(unrelated)) < 6
    assert score_agreement(related) > 6


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
