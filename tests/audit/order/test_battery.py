"""The battery: quiet for uniform orders, loud for the flaws of shufflers that exist and of those that real code has had."""

import re
from collections.abc import Callable
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from recshuf.audit.order import shufflers
from recshuf.audit.order.battery import Score, combine_scores, pool_files, run_battery
from recshuf.audit.order.shufflers import METHODS, interleave_shards, shuffle_in_two_passes
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
from tests.support.effort import examples, mostly_slow
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


def test_mean_and_deviation_are_those_of_all_orders() -> None:
    """Also for uneven margins, for which the usual deviation of chi-square is far off."""
    for name, measure in EXACT.items():
        measured = np.array([measure(np.array(p)) for p in permutations(range(6))])
        _, expectation, deviation = measured[0]
        assert measured[:, 0].mean() == pytest.approx(expectation, abs=1e-9), name
        assert measured[:, 0].std() == pytest.approx(deviation), name


# Shuffles with a flaw that real code has had

PILES = 100


def rotate(rng: np.random.Generator, n: int = RECORDS) -> Order:
    return np.roll(np.arange(n), rng.integers(n))


def skip_second_pass(rng: np.random.Generator, n: int = RECORDS) -> Order:
    return np.argsort(rng.integers(0, PILES, n), kind="stable")


def order_every_pile_alike(rng: np.random.Generator, n: int = RECORDS) -> Order:
    grouped = skip_second_pass(rng, n)
    sizes = rng.multinomial(n, np.full(PILES, 1 / PILES))
    keys = rng.random(sizes.max())
    piles = np.split(grouped, np.cumsum(sizes)[:-1])
    return np.concatenate([pile[np.argsort(keys[: pile.size])] for pile in piles])


def sort_by_short_keys(rng: np.random.Generator, n: int = RECORDS) -> Order:
    return np.argsort(rng.integers(0, 1 << 16, n), kind="stable")


def deal_round_robin(rng: np.random.Generator, n: int = RECORDS) -> Order:
    return rng.permuted(np.arange(n).reshape(-1, PILES).T, axis=1).ravel()


def fill_piles_evenly(rng: np.random.Generator, n: int = RECORDS) -> Order:
    dealt = rng.permuted(np.arange(n).reshape(-1, PILES), axis=1)
    return rng.permuted(dealt.T, axis=1).ravel()


def swap_with_any(rng: np.random.Generator, n: int = RECORDS) -> Order:
    out = list(range(n))
    for place, other in enumerate(rng.integers(0, n, n).tolist()):
        out[place], out[other] = out[other], out[place]
    return np.array(out)


def run_method(name: str, given: dict[str, float], _: np.random.Generator) -> Order:
    return METHODS[name].shuffle(RECORDS, 1, **given)


Shuffler = Callable[[np.random.Generator], Order]
FLAWS: list[tuple[Shuffler, str, str]] = [
    (rotate, "blocks fine-blocks pairs file-windows same-file near near-percent serial maxima", "residues steps descents"),
    (skip_second_pass, "fine-blocks pairs file-windows same-file near near-percent serial maxima", "steps descents"),
    (order_every_pile_alike, "pairs", ""),
    (sort_by_short_keys, "pairs serial", "steps descents"),
    (deal_round_robin, "residues", "blocks fine-blocks file-windows"),
    (fill_piles_evenly, "", "blocks fine-blocks file-windows"),
    (swap_with_any, "blocks spearman", "inversions footrule"),
]  # fmt: skip
FLAWS_OF_METHODS: list[tuple[Shuffler, str, str]] = [
    (partial(run_method, "one buffer", {"ratio": 0.01}), "blocks fine-blocks pairs file-windows same-file near near-percent serial spearman cycles maxima", "residues steps inversions footrule"),
    (partial(run_method, "one buffer", {"ratio": 0.5}), "blocks fine-blocks pairs file-windows near-percent serial spearman", "steps footrule"),
    (partial(run_method, "piles over two epochs", {}), "blocks fine-blocks pairs file-windows same-file near near-percent serial", "steps"),
    (partial(run_method, "rotate over two epochs", {}), "blocks fine-blocks pairs file-windows same-file near-percent", ""),
    (partial(run_method, "chained buffers", {}), "blocks fine-blocks pairs file-windows near cycles", "residues steps"),
    (partial(run_method, "shards in random order", {"shard_count": 100}), "blocks fine-blocks pairs file-windows same-file near", "residues steps"),
    (partial(run_method, "parallel interleave", {}), "blocks fine-blocks pairs file-windows same-file near maxima", "residues inversions footrule"),
    (partial(run_method, "parallel interleave, uneven shards", {}), "blocks fine-blocks pairs file-windows same-file near", "residues inversions"),
    (partial(run_method, "two-stage sharding", {}), "fine-blocks file-windows near", ""),
    (partial(run_method, "columns and rows", {"file_count": 9.5}), "blocks pairs steps footrule", "file-windows same-file near-percent serial"),
    (partial(run_method, "columns and rows", {"file_count": 100}), "", "blocks fine-blocks file-windows same-file near-percent"),
    (partial(run_method, "columns and rows, by rejection", {}), "pairs steps", "file-windows same-file near-percent serial"),
    (partial(run_method, "strided chunks into buckets", {"stride": 10}), "fine-blocks pairs file-windows same-file near serial", "steps descents"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shuffler", "higher", "lower"),
    mostly_slow([*FLAWS, *FLAWS_OF_METHODS], *FLAWS[::2], *FLAWS_OF_METHODS[::2]),
)
def test_flaws_are_flagged(shuffler: Shuffler, higher: str, lower: str) -> None:
    """And none that is not a buffer is taken for one."""
    order = shuffler(np.random.default_rng(0))
    assert np.array_equal(np.sort(order), np.arange(RECORDS))
    scores = battery(order, SIZES)
    missed = [name for name in higher.split() if scores[name] <= LIMIT]
    missed += [name for name in lower.split() if scores[name] >= -LIMIT]
    assert missed == [], scores
    assert isinstance(shuffler, partial) or estimate_buffer(order) is None


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


# What other shufflers do: each method equals the slow loop it stands for


@pytest.mark.parametrize(("n", "ratio"), [(70, 0), (70, 0.01), (70, 0.1), (1000, 0.5), (70, 1)])
def test_a_buffer_yields_no_record_before_it_is_read_nor_many_at_once(n: int, ratio: float) -> None:
    size = int(n * ratio) + 1
    order = shufflers.chain_buffers(n, 1, ratio, 1)
    assert (order < np.arange(n) + size).all()
    assert n <= size or (order >= np.arange(n) + size - 1).any()


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_gives_a_permutation_and_the_seed_decides(name: str) -> None:
    method = METHODS[name]
    for values in product(*method.axes.values()):
        given = dict(zip(method.axes, values, strict=True))
        for n in (0, 1, 2, 3, 1000):
            p = method.shuffle(n, 5, **given)
            assert p.dtype == np.int64
            assert np.array_equal(np.sort(p), np.arange(n)), given
        assert np.array_equal(p, method.shuffle(1000, 5, **given))
    assert not np.array_equal(method.shuffle(1000, 5), method.shuffle(1000, 6))
    assert method.sentence.endswith(".")
    assert ". " not in method.sentence
    assert method.source


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("chain_buffers", {"ratio": 1, "buffer_count": 1}),
        ("merge_runs", {"run_records": 2}),
        pytest.param("merge_runs", {"run_records": 3}, marks=pytest.mark.slow),
        ("shuffle_in_two_passes", {"pile_count": 2}),
    ],
)
def test_exact_methods_reach_all_orders_alike(name: str, given: dict[str, int]) -> None:
    drawn = np.stack([getattr(shufflers, name)(4, seed, **given) for seed in range(2400)])
    assert permutation_chi_square(drawn)[1] > 1e-6


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.is_exact])
def test_exact_methods_are_not_flagged(name: str) -> None:
    scores = battery(run_method(name, {}, np.random.default_rng(0)), SIZES)
    assert {test: z for test, z in scores.items() if abs(z) > LIMIT} == {}


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
    swapped = np.stack([swap_with_any(rng, 4) for _ in range(6_000)])
    of_four = np.array(list(permutations(range(4))))
    too_even = np.concatenate([np.repeat(of_four, 1000, axis=0), of_four[rng.integers(0, 24, 50)]])
    p_values = [permutation_chi_square(drawn)[1] for drawn in (uniform, swapped, too_even)]
    assert p_values[0] > 1e-4
    assert max(p_values[1:]) < 1e-6
