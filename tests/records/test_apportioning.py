"""Shares: exact in sum, at the end, and never falling."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.records.split import apportion, count_before
from tests.support.effort import examples


@given(st.integers(0, 10**12), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6))
def test_shares_are_exact(total: int, weights: list[float]) -> None:
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) <= 1 + 1e-9 * total


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_the_counts_of_a_mix_never_fall_and_end_exactly(counts: list[int]) -> None:
    before = [count_before(done, counts) for done in range(sum(counts) + 1)]
    assert [sum(one) for one in before] == list(range(sum(counts) + 1))
    assert before[-1] == counts
    assert all(a <= b for one, two in pairwise(before) for a, b in zip(one, two, strict=True))


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 200), min_size=1, max_size=7), st.integers(1, 60))
def test_no_part_of_a_batch_is_off_its_share_by_more_than_the_number_of_the_others(
    counts: list[int], batch: int
) -> None:
    """Nor is the sum over the batches so far."""
    total = max(1, sum(counts))
    ends = [min(end, sum(counts)) for end in range(0, sum(counts) + batch, batch)]
    before = [count_before(end, counts) for end in ends]
    for first, last in [*pairwise(range(len(ends))), *((0, number) for number in range(len(ends)))]:
        for count, one, two in zip(counts, before[first], before[last], strict=True):
            off = abs(two - one - Fraction((ends[last] - ends[first]) * count, total))
            assert off < len(counts) - 1 or off == 0
