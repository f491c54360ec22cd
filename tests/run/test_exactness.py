"""Every order is equally likely: all orders of few records over many seeds, and a battery over many records.

The seeds go through the real scatter and gather, with several piles, batches of one record or two, and splits.
"""

from __future__ import annotations

import io
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

import recshuf.run.gather
import recshuf.system.threads
from recshuf.audit.order.battery import LIMIT
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import Scratch
from recshuf.records.keys import draw_keys, sort_by_key
from recshuf.run.gather import PileRun, iterate_runs
from tests.support.effort import TRIES_ALL, examples
from tests.support.formats.fake_format import MAGIC, TRAILER, FakeSource, FakeTarget, make_fixed_shape
from tests.support.order_statistics import battery, permutation_chi_square
from tests.support.pass_tools import UNLIMITED, InlineExecutor, Knobs, fill_store, write_shards

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

RARE = 1e-6
SPILLED_EVERY = 5
THREADED_SHARE = 10
FEW = {4: examples(4_800), 5: examples(6_000)}
MANY = {4: 24_000, 5: 60_000}

# A pile of two records or more is always split: a record and its key take 9 bytes in memory, 48 on disk.
IN_MEMORY = Knobs(piles=2, pile_bytes=10)
ON_DISK = Knobs(piles=2, pile_bytes=50, resident_bytes=0)
FILES = {4: [[b"\0", b"\1", b"\2"], [b"\3"]], 5: [[b"\0", b"\1"], [b"\2", b"\3", b"\4"]]}


needs_all = pytest.mark.skipif(
    not TRIES_ALL, reason="the full seed counts take minutes; RECSHUF_TESTS=all tries them"
)


def draw_orders(n: int, seeds: Sequence[int], folder: Path) -> NDArray[np.int64]:
    """Return the order of n records under each seed, shape ``(S, n)``.

    A share of the seeds is spilled, and a share runs in real threads: starting them takes most of the time.
    """
    source = FakeSource(FILES[n], shape=make_fixed_shape(1), fragment_rows=2, batch_rows=1)
    scratch = Scratch(folder)
    threaded = len(seeds) // THREADED_SHARE
    orders = [draw_order(source, seed, scratch) for seed in seeds[:threaded]]
    with pytest.MonkeyPatch.context() as patch:
        for module in (recshuf.system.threads, recshuf.run.gather):
            patch.setattr(module, "Pool", InlineExecutor)
        orders += [draw_order(source, seed, scratch) for seed in seeds[threaded:]]
    scratch.close()
    return np.array(orders, np.int64)


def draw_order(source: FakeSource, seed: int, scratch: Scratch) -> NDArray[np.uint8]:
    knobs = IN_MEMORY if seed % SPILLED_EVERY else ON_DISK
    store, _ = fill_store(source, scratch, knobs, seed)
    stream = io.BytesIO()
    target = FakeTarget(source.shape)
    count = int(PileReader(store).counts.sum())
    write_shards(source, store, knobs, [0, count], lambda _: target.open_stream(stream, 1))
    store.close()
    content = np.frombuffer(stream.getvalue()[len(MAGIC) : -len(TRAILER)], np.uint8)
    return content.reshape(count, 9)[:, 8]


def assert_uniform(n: int, orders: NDArray[np.int64]) -> None:
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    statistic, p_value = permutation_chi_square(orders)
    assert p_value > RARE, f"chi-square {statistic:.1f}"


@pytest.mark.slow
@pytest.mark.parametrize("n", FEW)
def test_every_order_of_few_records_is_equally_likely(tmp_path: Path, n: int):
    assert_uniform(n, draw_orders(n, range(FEW[n]), tmp_path))


@needs_all
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n", MANY)
def test_every_order_is_equally_likely_over_all_seeds(tmp_path: Path, n: int):
    assert_uniform(n, draw_orders(n, range(10**9, 10**9 + MANY[n]), tmp_path))


@pytest.mark.parametrize("knobs", [IN_MEMORY, ON_DISK], ids=["in-memory", "on-disk"])
def test_those_runs_do_split_piles(tmp_path: Path, knobs: Knobs):
    """Two records in a pile are parted wherever they lie, so the runs above are what they claim to be."""
    source = FakeSource(FILES[4], shape=make_fixed_shape(1), fragment_rows=2, batch_rows=1)
    splits = 0
    for seed in range(20):
        store, _ = fill_store(source, Scratch(tmp_path), knobs, seed)
        parts = list(iterate_runs(PileReader(store), 0, 4, knobs.pile_bytes, knobs.joined_bytes))
        units = [part for part in parts if isinstance(part, PileRun)]
        assert [unit.count for unit in units] == [1, 1, 1, 1]
        assert bool(store.spilled_bytes) == (knobs is ON_DISK)
        splits += len(parts) - len(units)
    assert splits > 20


SIZES = [50_000, 1, 999, 20_000, 9_000, 0, 20_000]
BATTERIES = {
    "resident": Knobs(piles=64),
    "joined": Knobs(piles=512, joined_bytes=20_000, resident_bytes=700_000),
    "resident-split": Knobs(piles=3, pile_bytes=50_000, workers=3),
    "spilled": Knobs(piles=64, resident_bytes=0, sets=2, workers=2),
    "spilled-split": Knobs(piles=16, pile_bytes=30_000, resident_bytes=700_000, sets=3),
}


@pytest.mark.parametrize("way", BATTERIES)
@pytest.mark.parametrize("seed", [0, 2**128 - 1])
def test_a_large_shuffle_passes_the_battery(tmp_path: Path, way: str, seed: int):
    order = order_numbers(BATTERIES[way], seed, tmp_path)
    assert (np.sort(order) == np.arange(sum(SIZES))).all()
    scores = battery(order, [size for size in SIZES if size])
    assert {name: score for name, score in scores.items() if abs(score) >= 6} == {}


def order_numbers(knobs: Knobs, seed: int, folder: Path) -> NDArray[np.int64]:
    """Return the numbers of all records in shuffled order."""
    numbers = np.arange(sum(SIZES), dtype="<u4")
    parts = np.split(numbers, np.cumsum(SIZES)[:-1])
    rows = [[number.tobytes() for number in part] for part in parts]
    source = FakeSource(rows, shape=make_fixed_shape(4), fragment_rows=5_000, batch_rows=700)
    store, _ = fill_store(source, Scratch(folder), knobs, seed)
    assert (store.spilled_bytes > 0) == (knobs.resident_bytes < UNLIMITED)
    stream = io.BytesIO()
    target = FakeTarget(source.shape)
    write_shards(source, store, knobs, [0, numbers.size], lambda _: target.open_stream(stream, 1))
    store.close()
    content = np.frombuffer(stream.getvalue()[len(MAGIC) : -len(TRAILER)], np.uint8).reshape(-1, 12)
    return content[:, 8:].copy().view("<u4")[:, 0].astype(np.int64)


PASSED_EVERY = 10
CHUNK = 50


def score_seeds(seeds: range, folder: Path) -> list[dict[str, float]]:
    """Return the scores of the order under each seed: some by the passes, the others by sorting all keys."""
    sizes = [size for size in SIZES if size]
    return [battery(order_by_seed(seed, folder), sizes) for seed in seeds]


def order_by_seed(seed: int, folder: Path) -> NDArray[np.int64]:
    turn, other = divmod(seed, PASSED_EVERY)
    if not other:
        return order_numbers(list(BATTERIES.values())[turn % len(BATTERIES)], seed, folder)
    return sort_by_key(draw_keys(seed, [(index, 0, size) for index, size in enumerate(SIZES)]))


def assert_normal(scores: list[dict[str, float]]) -> None:
    """Make sure that no score is beyond the limit, and that those of each statistic have mean 0 and deviation 1."""
    assert len(scores[0]) == 16
    for name in scores[0]:
        values = np.array([each[name] for each in scores])
        print(f"{name:14} {values.mean():+.3f} {values.std():.3f} {values.min():+.2f} {values.max():+.2f}")  # noqa: T201 - for -rP
        assert np.abs(values).max() < LIMIT, name
        assert abs(values.mean()) < 5 / np.sqrt(len(scores)), name
        assert abs(values.std() - 1) < 4 / np.sqrt(len(scores)), name  # counts are skewed


@pytest.mark.slow
def test_no_seed_is_flagged(tmp_path: Path):
    assert_normal(score_seeds(range(20), tmp_path))


@needs_all
@pytest.mark.timeout(1200)
def test_none_of_a_thousand_seeds_is_flagged(tmp_path: Path):
    """On all cores, where it takes less than two minutes; ``-rP`` shows the mean, deviation and extremes of each statistic."""
    chunks = [range(first, first + CHUNK) for first in range(0, 1000, CHUNK)]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        scores = [each for part in pool.map(score_seeds, chunks, [tmp_path] * len(chunks)) for each in part]
    assert len(scores) == 1000
    assert_normal(scores)
