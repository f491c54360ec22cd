"""What other shufflers do: each method equals the slow loop it stands for, and has the flaws known of it."""

from itertools import product

import numpy as np
import pytest

from recshuf.audit.order import shufflers
from recshuf.audit.order.shufflers import METHODS
from tests.support.effort import mostly_slow
from tests.support.order_statistics import battery, permutation_chi_square

Rng = np.random.Generator

RECORDS = 100_000
FILES = 100
LIMIT = 6
"""What docs/check.md promises."""
RARE = 1e-6


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
    assert permutation_chi_square(drawn)[1] > RARE


# What the statistics make of them


def measure(name: str, **given: float) -> dict[str, float]:
    return battery(METHODS[name].shuffle(RECORDS, 1, **given), [RECORDS // FILES] * FILES)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.is_exact])
def test_exact_methods_are_not_flagged(name: str) -> None:
    assert {test: z for test, z in measure(name).items() if abs(z) > LIMIT} == {}


FLAWS: list[tuple[str, dict[str, float], str, str]] = [
    ("one buffer", {"ratio": 0.01}, "blocks fine-blocks pairs file-windows same-file near near-percent serial spearman cycles maxima", "residues steps inversions footrule"),
    ("one buffer", {"ratio": 0.5}, "blocks fine-blocks pairs file-windows near-percent serial spearman", "steps footrule"),
    ("piles over two epochs", {}, "blocks fine-blocks pairs file-windows same-file near near-percent serial", "steps"),
    ("rotate over two epochs", {}, "blocks fine-blocks pairs file-windows same-file near-percent", ""),
    ("chained buffers", {}, "blocks fine-blocks pairs file-windows near cycles", "residues steps"),
    ("shards in random order", {"shard_count": 100}, "blocks fine-blocks pairs file-windows same-file near", "residues steps"),
    ("parallel interleave", {}, "blocks fine-blocks pairs file-windows same-file near maxima", "residues inversions footrule"),
    ("parallel interleave, uneven shards", {}, "blocks fine-blocks pairs file-windows same-file near", "residues inversions"),
    ("two-stage sharding", {}, "fine-blocks file-windows near", ""),
    ("columns and rows", {"file_count": 9.5}, "blocks pairs steps footrule", "file-windows same-file near-percent serial"),
    ("columns and rows", {"file_count": 100}, "", "blocks fine-blocks file-windows same-file near-percent"),
    ("columns and rows, by rejection", {}, "pairs steps", "file-windows same-file near-percent serial"),
    ("strided chunks into buckets", {"stride": 10}, "fine-blocks pairs file-windows same-file near serial", "steps descents"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "higher", "lower"), mostly_slow(FLAWS, *FLAWS[::2]))
def test_flaws_are_flagged(name: str, given: dict[str, float], higher: str, lower: str) -> None:
    scores = measure(name, **given)
    missed = [test for test in higher.split() if scores[test] <= LIMIT]
    missed += [test for test in lower.split() if scores[test] >= -LIMIT]
    assert missed == [], scores
