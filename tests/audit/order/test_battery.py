"""The battery: quiet for uniform orders, loud for flaws; test_shufflers has the flaws of shufflers that exist."""

import re
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from recshuf.audit.order.battery import Score, combine_scores, pool_files, run_battery
from recshuf.audit.order.shufflers import interleave_shards, shuffle_in_two_passes
from recshuf.audit.order.statistics import (
    Measure,
    count_cycles,
    count_inversions,
    estimate_buffer,
    measure_cycles,
    measure_descents,
    measure_footrule,
    measure_inversions,
    measure_maxima,
    measure_same_file,
    measure_spearman,
    measure_table,
    measure_windows,
)
from tests.support import flawed_orders as flawed
from tests.support.effort import examples, mostly_slow
from tests.support.flawed_orders import Shuffler
from tests.support.order_statistics import (
    battery,
    permutation_chi_square,
    rank_permutations,
)

Order = NDArray[np.int64]


RECORDS = 100_000
SIZES = [1000] * 100
LIMIT = 6
"""What docs/check.md promises."""


def draw(shuffler: Shuffler, seed: int = 0) -> Order:
    p = shuffler(np.random.default_rng(seed), RECORDS)
    assert np.array_equal(np.sort(p), np.arange(RECORDS))
    return p


def uniform(n: int, seed: int) -> Order:
    return np.random.default_rng(seed).permutation(n)


def find(scores: list[Score], name: str) -> Score:
    return next(score for score in scores if score.name == name)


@pytest.mark.parametrize(("z", "is_flagged"), [(5.99, False), (-5.99, False), (6.01, True), (-6.01, True)])
def test_six_deviations_on_either_side_are_the_limit(z: float, is_flagged: bool) -> None:
    assert Score("steps", 10 + 3 * z, 10, 3, "", "").is_flagged is is_flagged


@pytest.mark.parametrize(
    ("shuffle", "n", "seeds"),
    [
        (uniform, 1_000, 80),
        (shuffle_in_two_passes, 10_000, 20),
        pytest.param(uniform, 1_000, 200, marks=pytest.mark.slow),
        pytest.param(uniform, 10_000, 100, marks=pytest.mark.slow),
        pytest.param(uniform, 100_000, 10, marks=pytest.mark.slow),
    ],
)
def test_uniform_orders_stay_small(shuffle: Callable[[int, int], Order], n: int, seeds: int) -> None:
    scores = [battery(shuffle(n, seed), [n // 10] * 10) for seed in range(seeds)]
    assert len(scores[0]) == 16
    for name in scores[0]:
        values = np.array([each[name] for each in scores])
        assert np.abs(values).max() < LIMIT, name
        assert abs(values.mean()) < 5 / np.sqrt(seeds), name
        assert abs(values.std() - 1) < 4 / np.sqrt(seeds), name  # counts are skewed


@settings(max_examples=examples(100))
@given(hnp.arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 5000)))
def test_pools_keep_large_files_and_leave_none_small(sizes: Order) -> None:
    sizes[0] += 1000
    groups = pool_files(sizes)
    totals = np.bincount(groups, sizes)
    assert (totals > 0).all()
    assert totals.sum() == sizes.sum()
    assert np.count_nonzero(np.bincount(groups) > 1) <= 1
    windows = sizes.sum() / np.count_nonzero(sizes)
    assert totals.size == 1 or totals.min() >= 6 * np.sqrt(windows / totals.size)


def test_files_are_compared_where_there_is_enough_to_compare() -> None:
    """Files without records count for nothing, and a test needs two windows, or ten expected pairs."""
    order = uniform(1000, 1)
    assert battery(order, [500, 0, 500]) == battery(order, [500, 500])
    for sizes, name in (([400] + [1] * 600, "file-windows"), ([10] * 100, "same-file")):
        scores = battery(order, sizes)
        assert ("file-windows" in scores) + ("same-file" in scores) == 1
        assert name not in scores


FILES, COLUMNS = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 0, 0, 0, 1, 2])
EXACT: dict[str, Callable[[Order], Measure]] = {
    "table": lambda p: measure_table(FILES[p], COLUMNS),
    "windows": lambda p: measure_windows(FILES[p], 3),
    "same file": lambda p: measure_same_file(FILES[p]),
    "descents": measure_descents,
    "spearman": measure_spearman,
    "inversions": measure_inversions,
    "footrule": measure_footrule,
    "cycles": measure_cycles,
    "maxima": measure_maxima,
}


@pytest.mark.parametrize("name", EXACT)
def test_mean_and_deviation_are_those_of_all_orders(name: str) -> None:
    """Also for uneven margins, for which the usual deviation of chi-square is far off."""
    measured = np.array([EXACT[name](np.array(p)) for p in permutations(range(6))])
    _, expectation, deviation = measured[0]
    assert measured[:, 0].mean() == pytest.approx(expectation, abs=1e-9)
    assert measured[:, 0].std() == pytest.approx(deviation)


FLAWS: list[tuple[Shuffler, str, str]] = [
    (flawed.rotate, "blocks fine-blocks pairs file-windows same-file near near-percent serial maxima", "residues steps descents"),
    (flawed.skip_second_pass, "fine-blocks pairs file-windows same-file near near-percent serial maxima", "steps descents"),
    (flawed.order_every_pile_alike, "pairs", ""),
    (flawed.sort_by_short_keys, "pairs serial", "steps descents"),
    (flawed.deal_round_robin, "residues", "blocks fine-blocks file-windows"),
    (flawed.fill_piles_evenly, "", "blocks fine-blocks file-windows"),
    (flawed.swap_with_any, "blocks spearman", "inversions footrule"),
]  # fmt: skip


@pytest.mark.parametrize(("shuffler", "higher", "lower"), mostly_slow(FLAWS, *FLAWS[::2]))
def test_flaws_are_flagged_and_not_taken_for_a_buffer(shuffler: Shuffler, higher: str, lower: str) -> None:
    order = draw(shuffler)
    scores = battery(order, SIZES)
    missed = [name for name in higher.split() if scores[name] <= LIMIT]
    missed += [name for name in lower.split() if scores[name] >= -LIMIT]
    assert missed == [], scores
    assert estimate_buffer(order) is None


def test_scores_of_several_orders_are_those_of_their_sums() -> None:
    batteries = [run_battery(uniform(2000, seed), [2000]) for seed in range(9)]
    for score, *each in zip(combine_scores(batteries), *batteries, strict=True):
        assert not score.is_flagged
        assert score.z == pytest.approx(sum(one.z for one in each) / 3)


def test_the_meaning_is_a_sentence_and_follows_the_side() -> None:
    in_order, reverse = (
        find(run_battery(order, [1000, 1000]), "descents")
        for order in (np.arange(2000), np.arange(2000)[::-1].copy())
    )
    assert (in_order.is_flagged, in_order.z < 0, in_order.meaning) == (True, True, in_order.lower)
    assert (reverse.is_flagged, reverse.z > 0, reverse.meaning) == (True, True, reverse.higher)
    scores = run_battery(uniform(10_000, 1), [5000, 5000])
    for sentence in [text for score in scores for text in (score.higher, score.lower)]:
        assert sentence.endswith(".")
        assert ". " not in sentence


# Buffers


@pytest.mark.parametrize(("ratio", "shard_count"), [(0.001, 1), (0.003, 8), (0.01, 8), (0.17, 1)])
def test_the_length_of_a_buffer_is_told(ratio: float, shard_count: int) -> None:
    """Also where it is filled from shards in random order, if it is short beside them."""
    order = interleave_shards(RECORDS, 1, shard_count, 1, ratio)
    meaning = find(run_battery(order, SIZES), "steps").meaning
    (told,) = re.findall(r"Neighbours stay together, .* buffer .* about ([0-9.]+) % of the data", meaning)
    assert 1 / 1.3 < float(told) / 100 / ratio < 1.3


@pytest.mark.parametrize(
    "order",
    [
        np.concatenate([start + uniform(1000, start) for start in range(0, RECORDS, 1000)]),
        np.argsort(np.arange(RECORDS) + 1000 * np.random.default_rng(1).random(RECORDS)),
        uniform(RECORDS, 1),
    ],
    ids=["blocks", "jitter", "uniform"],
)
def test_other_short_moves_are_not_taken_for_a_buffer(order: Order) -> None:
    assert estimate_buffer(order) is None


def test_counts_equal_slow_counts() -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 3, 64, 65, 100):
        p = rng.permutation(n)
        assert count_inversions(p) == sum(p[i] > p[k] for i in range(n) for k in range(i + 1, n))
        unseen, cycles = set(range(n)), 0
        while unseen:
            cycles += 1
            index = min(unseen)
            while index in unseen:
                unseen.remove(index)
                index = int(p[index])
        assert count_cycles(p) == cycles


# The tests' own statistics: chi-square over all orders of few records, and agreement between seeds


def test_the_chi_square_passes_uniform_orders_only() -> None:
    everything = np.array(list(permutations(range(5))))
    assert np.array_equal(rank_permutations(everything), np.arange(120))
    rng = np.random.default_rng(4)
    uniform = np.argsort(rng.random((24_000, 4)), axis=1)
    swapped = np.stack([flawed.swap_with_any(rng, 4) for _ in range(6_000)])
    of_four = np.array(list(permutations(range(4))))
    too_even = np.concatenate([np.repeat(of_four, 1000, axis=0), of_four[rng.integers(0, 24, 50)]])
    p_values = [permutation_chi_square(drawn)[1] for drawn in (uniform, swapped, too_even)]
    assert p_values[0] > 1e-4
    assert max(p_values[1:]) < 1e-6
