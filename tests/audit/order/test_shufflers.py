"""What other shufflers do: each method equals the slow loop it stands for, and has the flaws known of it."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.audit.order.shufflers import (
    METHODS,
    chain_buffers,
    interleave_shards,
    interleave_uneven_shards,
    merge_runs,
    order_shards,
    reorder_piles,
    rotate_piles,
    scatter_chunks,
    shuffle_columns_and_rows,
    shuffle_columns_and_rows_by_rejection,
    shuffle_in_two_passes,
    shuffle_in_two_stages,
    swap_all,
    use_buffer,
)
from tests.support.effort import examples
from tests.support.order_statistics import battery, permutation_chi_square

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RECORDS = 100_000
FILES = 100
LIMIT = 6
RARE = 1e-6

few = st.integers(0, 70)
seeds = st.integers(0, 1000)
ratios = st.sampled_from([0, 0.01, 0.1, 0.5, 1])
counts = st.integers(1, 9)


# The loops, over the same draws


def let_through(rng: np.random.Generator, records: list[int], size: int) -> list[int]:
    """A buffer yields the record drawn, the foremost one moves to its slot, and the next one is read."""
    indices = np.arange(len(records))
    draws = rng.integers(indices, np.minimum(indices + size, len(records))) - indices
    unread = records.copy()
    buffer = [unread.pop(0) for _ in range(min(size, len(unread)))]
    yielded = []
    for draw in draws.tolist():
        yielded.append(buffer[draw])
        buffer[draw] = buffer[0]
        del buffer[0]
        if unread:
            buffer.append(unread.pop(0))
    return yielded


def read_in_turn(shards: list[list[int]], parallel_reads: int) -> list[int]:
    unopened = [shard.copy() for shard in shards]
    slots: list[list[int] | None] = [None] * parallel_reads
    yielded = []
    while unopened or any(slot is not None for slot in slots):
        for number in range(parallel_reads):
            if slots[number] is None and unopened:
                slots[number] = unopened.pop(0)
            if (shard := slots[number]) is not None:
                if shard:
                    yielded.append(shard.pop(0))
                else:
                    slots[number] = None
    return yielded


def cut(records: list[int], count: int) -> list[list[int]]:
    n = len(records)
    return [records[i * n // count : (i + 1) * n // count] for i in range(count)]


def read_slowly(
    rng: np.random.Generator, shards: list[list[int]], parallel_reads: int, size: int
) -> list[int]:
    ordered = [shards[shard] for shard in rng.permutation(len(shards))]
    return let_through(rng, read_in_turn(ordered, parallel_reads), size)


def fill_files(rng: np.random.Generator, n: int, file_count: float) -> tuple[int, list[list[int]]]:
    lines = max(1, math.ceil(n / file_count))
    files = [list(range(start, min(start + lines, n))) for start in range(0, max(n, 1), lines)]
    return lines, [[file[line] for line in rng.permutation(len(file))] for file in files]


@settings(max_examples=examples(200))
@given(few, seeds)
def test_swapping_all_equals_the_loop(n: int, seed: int) -> None:
    draws = np.random.default_rng(seed).integers(np.arange(n), n)
    records = list(range(n))
    for index, other in enumerate(draws.tolist()):
        records[index], records[other] = records[other], records[index]
    assert swap_all(n, seed).tolist() == records


@settings(max_examples=examples(200))
@given(few, seeds, ratios)
def test_a_buffer_equals_the_loop(n: int, seed: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    assert use_buffer(n, seed, ratio).tolist() == let_through(rng, list(range(n)), int(n * ratio) + 1)


@given(few, seeds, ratios, counts)
def test_chained_buffers_equal_the_loop(n: int, seed: int, ratio: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    records = list(range(n))
    for _ in range(count):
        records = let_through(rng, records, int(n * ratio / count) + 1)
    assert chain_buffers(n, seed, ratio, count).tolist() == records


@settings(max_examples=examples(200))
@given(few, seeds, counts, counts, ratios)
def test_interleaved_shards_equal_the_loop(n: int, seed: int, shards: int, reads: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    expected = read_slowly(rng, cut(list(range(n)), shards), reads, int(n * ratio) + 1)
    assert interleave_shards(n, seed, shards, reads, ratio).tolist() == expected


@given(few, seeds, counts, ratios)
def test_ordered_shards_equal_the_loop(n: int, seed: int, shards: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    expected = read_slowly(rng, cut(list(range(n)), shards), 1, int(n * ratio) + 1)
    assert order_shards(n, seed, ratio, shards).tolist() == expected


@settings(max_examples=examples(200))
@given(few, seeds, counts, counts, ratios)
def test_uneven_shards_equal_the_loop(n: int, seed: int, shards: int, reads: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    fixed = n * 3 // 4
    spare = sorted(rng.integers(0, n - fixed + 1, shards - 1).tolist())
    bounds = [0, *(fixed * (i + 1) // shards + more for i, more in enumerate(spare)), n]
    pieces = [list(range(*bounds[i : i + 2])) for i in range(shards)]
    expected = read_slowly(rng, pieces, reads, int(n * ratio) + 1)
    assert interleave_uneven_shards(n, seed, shards, reads, ratio).tolist() == expected


@given(few, seeds, counts, counts, ratios)
def test_two_stages_equal_the_loop(n: int, seed: int, shards: int, reads: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    size = int(n * ratio) + 1
    once = [read_slowly(rng, cut(shard, shards), reads, size) for shard in cut(list(range(n)), shards)]
    assert shuffle_in_two_stages(n, seed, shards, reads, ratio).tolist() == read_slowly(
        rng, once, reads, size
    )


@settings(max_examples=examples(200))
@given(few, seeds, st.sampled_from([1, 1.5, 2, 3.3, 5, 9.5, 100]))
def test_columns_and_rows_equal_the_loop(n: int, seed: int, file_count: float) -> None:
    rng = np.random.default_rng(seed)
    lines, files = fill_files(rng, n, file_count)
    rows = rng.permuted(np.tile(np.arange(len(files)), (lines, 1)), axis=1)
    yielded = [files[file].pop(0) for row in rows.tolist() for file in row if files[file]]
    assert shuffle_columns_and_rows(n, seed, file_count).tolist() == yielded


@settings(max_examples=examples(200))
@given(few, seeds, st.sampled_from([1, 1.5, 2, 3.3, 5, 9.5, 100]))
def test_rejection_equals_the_loop(n: int, seed: int, file_count: float) -> None:
    rng = np.random.default_rng(seed)
    lines, files = fill_files(rng, n, file_count)
    share = len(files[-1]) / lines
    is_taken = (rng.random(lines) < share).tolist()
    rows = rng.permuted(np.tile(np.arange(len(files)), (lines, 1)), axis=1)
    yielded = [
        files[file].pop(0)
        for row, takes_last in zip(rows.tolist(), is_taken, strict=True)
        for file in row
        if files[file] and (takes_last or file < len(files) - 1)
    ]
    assert shuffle_columns_and_rows_by_rejection(n, seed, file_count).tolist() == yielded + files[-1]


@given(few, seeds, st.sampled_from([1, 2, 3, 10, 100, 1000]))
def test_scattered_chunks_equal_the_loop(n: int, seed: int, stride: int) -> None:
    rng = np.random.default_rng(seed)
    chunks = [range(start, min(start + stride, n)) for start in range(0, n, stride)]
    lines = [line for chunk in rng.permutation(len(chunks)) for line in chunks[chunk]]
    buckets: list[list[int]] = [[] for _ in range(min(512, stride * 2))]
    for line, bucket in zip(lines, rng.integers(0, len(buckets), n).tolist(), strict=True):
        buckets[bucket].append(line)
    assert scatter_chunks(n, seed, stride).tolist() == [line for bucket in buckets for line in bucket]


@settings(max_examples=examples(200))
@given(few, seeds, counts, st.booleans())
def test_merged_runs_equal_the_loop(n: int, seed: int, size: int, is_fixed_width: bool) -> None:
    rng = np.random.default_rng(seed)
    pieces = [range(start, min(start + size, n)) for start in range(0, n, size)]
    runs = [[piece[line] for line in rng.permutation(len(piece))] for piece in pieces]
    if is_fixed_width and runs and len(runs[-1]) == size:
        runs.append([runs[-1][line] for line in rng.permutation(size)])
    drawn = rng.permutation([number for number, run in enumerate(runs) for _ in run])
    assert merge_runs(n, seed, size, is_fixed_width).tolist() == [
        runs[run].pop(0) for run in drawn.astype(int)
    ]


@given(few, seeds, counts)
def test_two_passes_equal_the_loop(n: int, seed: int, pile_count: int) -> None:
    rng = np.random.default_rng(seed)
    piles: list[list[int]] = [[] for _ in range(pile_count)]
    for record, pile in enumerate(rng.integers(0, pile_count, n).tolist()):
        piles[pile].append(record)
    expected = [pile[index] for pile in piles for index in rng.permutation(len(pile))]
    assert shuffle_in_two_passes(n, seed, pile_count).tolist() == expected


# All of them


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_gives_a_permutation(name: str) -> None:
    method = METHODS[name]
    for values in product(*method.axes.values()):
        settings = dict(zip(method.axes, values, strict=True))
        for n in (0, 1, 2, 3, 1000):
            p = method.shuffle(n, 5, **settings)
            assert p.dtype == np.int64
            assert np.array_equal(np.sort(p), np.arange(n)), settings


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides(name: str) -> None:
    shuffle = METHODS[name].shuffle
    assert np.array_equal(shuffle(1000, 5), shuffle(1000, 5))
    assert not np.array_equal(shuffle(1000, 5), shuffle(1000, 6))


def test_what_is_said_of_a_method_is_one_sentence() -> None:
    for method in METHODS.values():
        assert method.sentence.endswith(".")
        assert ". " not in method.sentence
        assert method.source


# What each can reach


def draw_few(
    shuffle: Callable[..., NDArray[np.int64]], n: int, seed_count: int, **settings: float
) -> NDArray[np.int64]:
    return np.stack([shuffle(n, seed, **settings) for seed in range(seed_count)])


@pytest.mark.parametrize(
    ("n", "size", "reachable"), [(4, 2, 8), (5, 2, 16), (5, 3, 54), (5, 4, 96), (5, 5, 120)]
)
def test_a_buffer_reaches_few_orders(n: int, size: int, reachable: int) -> None:
    orders = draw_few(use_buffer, n, 3000, ratio=(size - 1) / n)
    assert len(np.unique(orders, axis=0)) == reachable


@pytest.mark.parametrize(("file_count", "reachable"), [(1, 24), (2, 16), (4, 24)])
def test_columns_and_rows_reach_few_orders(file_count: int, reachable: int) -> None:
    orders = draw_few(shuffle_columns_and_rows, 4, 1000, file_count=file_count)
    assert len(np.unique(orders, axis=0)) == reachable


def test_a_row_never_has_two_lines_of_a_file() -> None:
    rows = shuffle_columns_and_rows(10_000, 3, 10).reshape(-1, 10) // 1000
    assert (np.sort(rows, axis=1) == np.arange(10)).all()


@pytest.mark.parametrize(
    ("shuffle", "settings"),
    [
        (swap_all, {}),
        (merge_runs, {"run_records": 2}),
        (merge_runs, {"run_records": 3}),
        (shuffle_in_two_passes, {"pile_count": 2}),
        (scatter_chunks, {"stride": 1}),
    ],
)
def test_exact_methods_reach_all_orders_alike(
    shuffle: Callable[..., NDArray[np.int64]], settings: dict[str, float]
) -> None:
    _, p_value = permutation_chi_square(draw_few(shuffle, 4, 4_800, **settings))
    assert p_value > RARE


def test_a_run_that_fills_the_buffer_is_written_twice() -> None:
    p = merge_runs(64, 1, 16, is_fixed_width=True)
    assert np.bincount(p).tolist() == [1] * 48 + [2] * 16
    assert merge_runs(63, 1, 16, is_fixed_width=True).size == 63


# What the statistics make of them


def measure(name: str, **settings: float) -> dict[str, float]:
    return battery(METHODS[name].shuffle(RECORDS, 1, **settings), [RECORDS // FILES] * FILES)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.is_exact])
def test_exact_methods_are_not_flagged(name: str) -> None:
    assert {test: z for test, z in measure(name).items() if abs(z) > LIMIT} == {}


FLAWS: list[tuple[str, dict[str, float], str, str]] = [
    (
        "one buffer",
        {"ratio": 0.01},
        "blocks fine-blocks pairs file-windows same-file near near-percent serial spearman cycles maxima",
        "residues steps inversions footrule",
    ),
    (
        "one buffer",
        {"ratio": 0.1},
        "blocks fine-blocks pairs file-windows same-file near near-percent serial spearman maxima",
        "steps",
    ),
    (
        "one buffer",
        {"ratio": 0.5},
        "blocks fine-blocks pairs file-windows near-percent serial spearman",
        "steps footrule",
    ),
    (
        "piles over two epochs",
        {},
        "blocks fine-blocks pairs file-windows same-file near near-percent serial",
        "steps",
    ),
    ("rotate over two epochs", {}, "blocks fine-blocks pairs file-windows same-file near-percent", ""),
    ("chained buffers", {}, "blocks fine-blocks pairs file-windows near cycles", "residues steps"),
    (
        "shards in random order",
        {"shard_count": 100},
        "blocks fine-blocks pairs file-windows same-file near",
        "residues steps",
    ),
    (
        "parallel interleave",
        {},
        "blocks fine-blocks pairs file-windows same-file near maxima",
        "residues inversions footrule",
    ),
    (
        "parallel interleave, uneven shards",
        {},
        "blocks fine-blocks pairs file-windows same-file near",
        "residues inversions",
    ),
    ("two-stage sharding", {}, "fine-blocks file-windows near", ""),
    (
        "columns and rows",
        {"file_count": 9.5},
        "blocks pairs steps footrule",
        "file-windows same-file near-percent serial",
    ),
    ("columns and rows", {"file_count": 10}, "pairs steps", "file-windows same-file near-percent serial"),
    ("columns and rows", {"file_count": 100}, "", "blocks fine-blocks file-windows same-file near-percent"),
    ("columns and rows, by rejection", {}, "pairs steps", "file-windows same-file near-percent serial"),
    (
        "strided chunks into buckets",
        {"stride": 10},
        "fine-blocks pairs file-windows same-file near serial",
        "steps descents",
    ),
    (
        "strided chunks into buckets",
        {"stride": 100},
        "fine-blocks pairs file-windows same-file near",
        "steps descents",
    ),
]


@pytest.mark.parametrize(("name", "settings", "higher", "lower"), FLAWS)
def test_flaws_are_flagged(name: str, settings: dict[str, float], higher: str, lower: str) -> None:
    scores = measure(name, **settings)
    missed = [test for test in higher.split() if scores[test] <= LIMIT]
    missed += [test for test in lower.split() if scores[test] >= -LIMIT]
    assert missed == [], scores


def test_every_inexact_method_has_a_flaw_that_is_flagged() -> None:
    assert {name for name, *_ in FLAWS} == {name for name, method in METHODS.items() if not method.is_exact}


@pytest.mark.parametrize(
    ("name", "settings", "blind"),
    [
        ("columns and rows", {"file_count": 10}, "spearman inversions footrule descents cycles maxima"),
        ("columns and rows, by rejection", {}, "spearman inversions footrule descents cycles maxima"),
        ("strided chunks into buckets", {}, "blocks residues spearman inversions footrule cycles"),
        ("strided chunks into buckets", {"stride": 1}, "pairs near descents"),
    ],
)
def test_some_statistics_see_nothing(name: str, settings: dict[str, float], blind: str) -> None:
    scores = measure(name, **settings)
    assert {test: scores[test] for test in blind.split() if abs(scores[test]) > LIMIT} == {}


def test_buffers_in_a_chain_are_worse_than_one() -> None:
    one, chain = (measure(name, ratio=0.01) for name in ("one buffer", "chained buffers"))
    assert all(chain[test] > one[test] for test in ("blocks", "file-windows", "same-file", "near-percent"))


def test_two_stages_are_better_than_one() -> None:
    one, two = (measure(name) for name in ("parallel interleave", "two-stage sharding"))
    assert all(abs(two[test]) < abs(one[test]) / 5 for test in ("blocks", "fine-blocks", "pairs", "near"))


def test_rejection_spreads_the_short_last_file() -> None:
    early, spread = (measure(name) for name in ("columns and rows", "columns and rows, by rejection"))
    for test in ("blocks", "spearman", "footrule"):
        assert abs(spread[test]) < LIMIT < abs(early[test])


def test_the_longest_of_uneven_shards_is_left_alone() -> None:
    n, tail = 16_384, 100
    even, uneven = (
        shuffle(n, 1, 8, 8, ratio=0)[-tail:] for shuffle in (interleave_shards, interleave_uneven_shards)
    )
    assert np.unique(even * 8 // n).size == 8
    assert np.array_equal(uneven, uneven[0] + np.arange(tail))


@pytest.mark.parametrize("stride", [100, 1000])
def test_lines_of_a_chunk_stay_neighbours(stride: int) -> None:
    """A chunk leaves a line's successor in each bucket that it reaches at all, save the last line of it there."""
    buckets = min(2 * stride, 512)
    reached = buckets * (1 - (1 - 1 / buckets) ** stride)
    chunks = scatter_chunks(RECORDS, 1, stride) // stride
    assert np.mean(np.diff(chunks) == 0) == pytest.approx(1 - reached / stride, abs=0.01)


def meet_again(order: NDArray[np.int64], group_count: int) -> float:
    """Return how much more often than by chance two records of a group share one in the next epoch."""
    group = np.arange(order.size) * group_count // order.size
    table = np.bincount(order * group_count // order.size * group_count + group, minlength=group_count**2)
    sizes = np.bincount(group)
    return float((table * (table - 1)).sum() / (sizes * (sizes - 1)).sum() * group_count)


@pytest.mark.parametrize(("sets", "mix"), [(1, 1), (1, 4), (16, 1), (64, 4)])
def test_records_of_a_group_meet_again_as_often_as_the_formula_says(sets: int, mix: int) -> None:
    # Groups are of about equal size; at their bounds one is taken for the next.
    ratios = [meet_again(rotate_piles(RECORDS, seed, sets, 64, mix), 64 // mix) for seed in range(20)]
    assert np.mean(ratios) == pytest.approx(1 + (64 / mix - 1) / (sets * mix), rel=0.1)


@given(few, seeds, counts, counts, counts)
def test_every_record_is_in_the_next_epoch(n: int, seed: int, sets: int, piles: int, mix: int) -> None:
    assert sorted(rotate_piles(n, seed, sets, piles, mix)) == list(range(n))
    assert sorted(reorder_piles(n, seed, piles, mix)) == list(range(n))
