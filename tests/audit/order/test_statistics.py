"""The tests' own statistics: chi-square over all orders of few records, and agreement between seeds."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np

from tests.support.flawed_orders import swap_with_any
from tests.support.order_statistics import (
    chi_square_upper,
    permutation_chi_square,
    rank_permutations,
    score_agreement,
)

RECORDS = 100_000


def test_seeds_that_are_related_are_caught() -> None:
    unrelated = np.stack([np.random.default_rng(seed).permutation(RECORDS) for seed in range(8)])
    related = np.where(np.arange(RECORDS) < 20, unrelated[0], unrelated)
    assert abs(score_agreement(unrelated)) < 6 < score_agreement(related)


def test_the_chi_square_passes_uniform_orders_only() -> None:
    everything = np.array(list(permutations(range(5))))
    assert np.array_equal(rank_permutations(everything), np.arange(120))
    rng = np.random.default_rng(4)
    uniform = np.argsort(rng.random((24_000, 4)), axis=1)
    swapped = np.stack([swap_with_any(rng, 4) for _ in range(6_000)])
    of_four = np.array(list(permutations(range(4))))
    too_even = np.concatenate([np.repeat(of_four, 1000, axis=0), of_four[rng.integers(0, 24, 50)]])
    p_values = [permutation_chi_square(drawn)[1] for drawn in (uniform, swapped, too_even)]
    assert p_values[0] > 1e-4
    assert max(p_values[1:]) < 1e-6


def test_chi_square_tail_is_that_of_known_points() -> None:
    assert chi_square_upper(0.0, 23) == 1.0
    assert math.isclose(chi_square_upper(10.0, 1), math.erfc(math.sqrt(5)))
    assert math.isclose(chi_square_upper(10.0, 2), math.exp(-5))
    assert round(chi_square_upper(145.461, 119), 3) == 0.05
