"""The battery: quiet for uniform orders, loud for flaws; test_methods has the flaws of shufflers that exist."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recshuf.audit.order.battery import LIMIT, MIN_RECORDS, combine_scores, pool_files, run_battery
from recshuf.audit.order.shufflers import METHODS, order_shards, shuffle_in_two_passes, use_buffer
from recshuf.audit.order.statistics import (
    count_cycles,
    count_inversions,
    estimate_buffer,
    measure_same_file,
    measure_table,
    measure_windows,
)
from recshuf.errors import UsageError
from tests.support.flawed_orders import (
    deal_round_robin,
    fill_piles_evenly,
    move_along_one_cycle,
    order_every_pile_alike,
    rotate,
    skip_second_pass,
    sort_by_short_keys,
    swap_with_any,
)
from tests.support.order_statistics import battery

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from recshuf.audit.order.battery import Score
    from tests.support.flawed_orders import Shuffler

RECORDS = 100_000
SIZES = [1000] * 100


def draw(shuffler: Shuffler, seed: int = 0) -> NDArray[np.int64]:
    p = shuffler(np.random.default_rng(seed), RECORDS)
    assert np.array_equal(np.sort(p), np.arange(RECORDS))
    return p


def uniform(n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(n)


# Uniform orders


@pytest.mark.parametrize(("n", "seeds"), [(1_000, 200), (10_000, 100), (100_000, 10)])
@pytest.mark.parametrize("shuffle", [uniform, shuffle_in_two_passes])
def test_uniform_orders_stay_small(
    shuffle: Callable[[int, int], NDArray[np.int64]], n: int, seeds: int
) -> None:
    scores = [battery(shuffle(n, seed), [n // 10] * 10) for seed in range(seeds)]
    assert len(scores[0]) == 16
    for name in scores[0]:
        values = np.array([each[name] for each in scores])
        assert np.abs(values).max() < LIMIT, name
        assert abs(values.mean()) < 5 / np.sqrt(seeds), name
        assert abs(values.std() - 1) < 4 / np.sqrt(seeds), name  # counts are skewed


@pytest.mark.parametrize(
    ("sizes", "file_tests"),
    [
        ([2000], 0),
        ([1000, 0, 1000], 2),
        ([1900, 100], 0),
        ([1] * 2000, 0),
        ([2] * 1000, 1),
        ([1] * 100 + [1900], 2),
        ([1] * 20 + [1980], 0),
        ([1, 299, 700, 1000], 2),
    ],
)
def test_small_and_single_files_raise_no_alarm(sizes: list[int], file_tests: int) -> None:
    for seed in range(60):
        scores = battery(uniform(2000, seed), sizes)
        assert len(scores) == 14 + file_tests
        assert max(map(abs, scores.values())) < LIMIT


@given(hnp.arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 5000)))
def test_pools_keep_large_files_and_leave_none_small(sizes: NDArray[np.int64]) -> None:
    sizes[0] += MIN_RECORDS
    groups = pool_files(sizes)
    totals = np.bincount(groups, sizes)
    assert (totals > 0).all()
    assert totals.sum() == sizes.sum()
    assert np.count_nonzero(np.bincount(groups) > 1) <= 1
    windows = sizes.sum() / np.count_nonzero(sizes)
    assert totals.size == 1 or totals.min() >= 6 * np.sqrt(windows / totals.size)


def test_few_records_are_refused() -> None:
    run_battery(uniform(MIN_RECORDS, 1), [MIN_RECORDS])
    with pytest.raises(UsageError, match=f"999 records are too few .* it takes {MIN_RECORDS}"):
        run_battery(uniform(MIN_RECORDS - 1, 1), [MIN_RECORDS - 1])


@pytest.mark.parametrize("sizes", [[50, 50], [5, 20, 75], [10] * 10, [40, 30, 20, 5, 5]])
def test_mean_and_deviation_are_those_of_many_draws(sizes: list[int]) -> None:
    """Also for uneven margins, for which the usual deviation of chi-square is far off."""
    rng = np.random.default_rng(8)
    files = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.repeat([0, 1, 2, 3], [4, 16, 30, 50])
    measures: dict[str, Callable[[NDArray[np.int64]], tuple[float, float, float]]] = {
        "table": lambda drawn: measure_table(drawn, columns),
        "windows": lambda drawn: measure_windows(drawn, len(sizes)),
        "same file": measure_same_file,
    }
    for name, measure in measures.items():
        drawn = np.array([measure(rng.permutation(files)) for _ in range(4000)])
        _, expectation, deviation = drawn[0]
        assert abs(drawn[:, 0].mean() - expectation) < 5 * deviation / np.sqrt(4000), name
        assert drawn[:, 0].std() == pytest.approx(deviation, rel=0.12), name


# Flaws


@pytest.mark.parametrize(
    ("shuffler", "higher", "lower"),
    [
        (
            rotate,
            "blocks fine-blocks pairs file-windows same-file near near-percent serial maxima",
            "residues steps descents",
        ),
        (
            skip_second_pass,
            "fine-blocks pairs file-windows same-file near near-percent serial maxima",
            "steps descents",
        ),
        (order_every_pile_alike, "pairs", ""),
        (sort_by_short_keys, "pairs serial", "steps descents"),
        (deal_round_robin, "residues", "blocks fine-blocks file-windows"),
        (fill_piles_evenly, "", "blocks fine-blocks file-windows"),
        (swap_with_any, "blocks spearman", "inversions footrule"),
    ],
)
def test_flaws_are_flagged(shuffler: Shuffler, higher: str, lower: str) -> None:
    scores = battery(draw(shuffler), SIZES)
    missed = [name for name in higher.split() if scores[name] <= LIMIT]
    missed += [name for name in lower.split() if scores[name] >= -LIMIT]
    assert missed == [], scores


def test_one_cycle_is_flagged_over_ten_seeds_only() -> None:
    batteries = [run_battery(draw(move_along_one_cycle, seed), SIZES) for seed in range(10)]
    assert not any(score.is_flagged for scores in batteries for score in scores)
    assert [score.name for score in combine_scores(batteries) if score.is_flagged] == ["cycles"]


def test_combined_uniform_orders_are_not_flagged() -> None:
    batteries = [run_battery(uniform(10_000, seed), [10_000]) for seed in range(40)]
    combined = combine_scores(batteries)
    assert not any(score.is_flagged for score in combined)
    assert combined[0].z == pytest.approx(sum(scores[0].z for scores in batteries) / np.sqrt(40))


def find(scores: list[Score], name: str) -> Score:
    return next(score for score in scores if score.name == name)


def test_the_meaning_follows_the_side() -> None:
    in_order = find(run_battery(np.arange(2000), [2000]), "descents")
    reverse = find(run_battery(np.arange(2000)[::-1].copy(), [2000]), "descents")
    assert in_order.is_flagged
    assert reverse.is_flagged
    assert (in_order.z < 0, reverse.z > 0) == (True, True)
    assert in_order.meaning == in_order.lower != reverse.meaning
    assert reverse.meaning == reverse.higher


def test_every_meaning_is_a_sentence() -> None:
    for score in run_battery(uniform(10_000, 1), [5000, 5000]):
        for sentence in (score.higher, score.lower):
            assert sentence.endswith(".")
            assert ". " not in sentence


# Buffers


@pytest.mark.parametrize(
    ("ratio", "shard_count"), [(0.001, 1), (0.001, 20), (0.003, 8), (0.01, 1), (0.01, 8), (0.03, 1), (0.1, 1)]
)
def test_the_length_of_a_buffer_is_told(ratio: float, shard_count: int) -> None:
    """Also where it is filled from shards in random order, if it is short beside them."""
    for seed in range(3):
        order = order_shards(RECORDS, seed, ratio, shard_count)
        meaning = find(run_battery(order, SIZES), "steps").meaning
        (told,) = re.findall(r"Neighbours stay together, .* buffer .* about ([0-9.]+) % of the data", meaning)
        assert 1 / 1.3 < float(told) / 100 / ratio < 1.3


def test_the_length_of_a_buffer_is_told_of_a_sample_too() -> None:
    order = use_buffer(300_000, 4, ratio=0.01)
    is_drawn = np.random.default_rng(4).random(order.size) < 0.1
    sampled = np.argsort(np.argsort(order[is_drawn]))
    assert estimate_buffer(sampled) == pytest.approx(0.01, rel=0.1)


ONE_BUFFER = {"one buffer", "shards in random order"}
ONE_BUFFER_A_STREAM = {"parallel interleave", "parallel interleave, uneven shards"}


def test_no_buffer_is_told_where_there_is_not_one_alone() -> None:
    for name, method in METHODS.items():
        for values in product(*method.axes.values()):
            settings = dict(zip(method.axes, values, strict=True))
            if settings.get("buffer_count") == 1:
                continue
            is_one_stream = 1 in (settings.get("shard_count"), settings.get("parallel_reads"))
            if name not in ONE_BUFFER and not (is_one_stream and name in ONE_BUFFER_A_STREAM):
                assert estimate_buffer(method.shuffle(RECORDS, 5, **settings)) is None, (name, settings)


@pytest.mark.parametrize(
    "shuffler",
    [
        rotate,
        skip_second_pass,
        order_every_pile_alike,
        sort_by_short_keys,
        deal_round_robin,
        fill_piles_evenly,
        swap_with_any,
        lambda rng, n: np.concatenate([start + rng.permutation(1000) for start in range(0, n, 1000)]),
        lambda rng, n: np.argsort(np.arange(n) + 1000 * rng.random(n)),
        lambda rng, n: rng.permutation(n),
    ],
)
def test_other_flaws_are_not_taken_for_a_buffer(shuffler: Shuffler) -> None:
    assert estimate_buffer(draw(shuffler)) is None


# Counts


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
