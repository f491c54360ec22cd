"""Shares: exact in sum, at the end, and never falling."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recshuf.records.apportioning import apportion, count_before


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
