"""Splits are exact in count, uniformly random, and the same however records are cut into ranges; shares are exact in sum."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.records import keys as module
from recshuf.records.keys import RowRange, Split, count_before, draw_keys, stream_of
from tests.support.effort import examples


def list_parts(seed: int, counts: list[int], sizes: list[int]) -> list[list[int]]:
    """Return the part of each record of each input: sort all by second key, input and row, and cut."""
    keys = [draw_keys(seed, [(i, 0, count)], stream_of("split")).tolist() for i, count in enumerate(counts)]
    order = sorted((key, i, row) for i, own in enumerate(keys) for row, key in enumerate(own))
    parts = [[-1] * count for count in counts]
    for place, (_, i, row) in enumerate(order):
        parts[i][row] = sum(place >= end for end in list(accumulate(sizes))[:-1])
    return parts


@settings(max_examples=examples(100))
@given(
    seed=st.integers(0, 2**128 - 1),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    data=st.data(),
    chunk=st.sampled_from([3, 1 << 20]),
)
def test_parts_are_those_of_sorted_keys(
    seed: int, counts: list[int], data: st.DataObject, chunk: int
) -> None:
    total = sum(counts)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), min_size=1, max_size=3)))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_ROWS", chunk)
        split = Split.find(seed, counts, sizes)
    expected = list_parts(seed, counts, sizes)
    found = [split.find_parts([RowRange(i, 0, count)]).tolist() for i, count in enumerate(counts)]
    assert found == expected
    start = data.draw(st.integers(0, counts[0]))
    ranges = [RowRange(0, start, counts[0] - start), RowRange(0, 0, start)]
    assert split.find_parts(ranges).tolist() == expected[0][start:] + expected[0][:start]


def test_equal_keys_are_ordered_by_input_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(_: int, ranges: list[RowRange], __: object) -> np.ndarray:
        return np.full(sum(one.rows for one in ranges), 7, np.uint64)

    monkeypatch.setattr(module, "draw_keys", draw)
    split = Split.find(0, [3, 0, 4], [4, 2, 1])
    assert split.find_parts([RowRange(0, 0, 3), RowRange(2, 0, 4)]).tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert split.find_parts([RowRange(2, 1, 3), RowRange(0, 1, 2)]).tolist() == [1, 1, 2, 0, 0]


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 12) | st.integers(0, 200), min_size=1, max_size=7), st.integers(1, 60))
def test_counts_of_a_mix_never_fall_end_exactly_and_are_off_by_less_than_the_number_of_the_others(
    counts: list[int], batch: int
) -> None:
    """Off the share, in each batch and in the sum over the batches so far."""
    total = sum(counts)
    ends = [min(end, total) for end in range(0, total + batch, batch)]
    before = [count_before(end, counts) for end in ends]
    assert [sum(one) for one in before] == ends
    assert before[-1] == counts
    assert all(a <= b for one, two in pairwise(before) for a, b in zip(one, two, strict=True))
    for first, last in [*pairwise(range(len(ends))), *((0, number) for number in range(len(ends)))]:
        for count, one, two in zip(counts, before[first], before[last], strict=True):
            off = abs(two - one - Fraction((ends[last] - ends[first]) * count, max(1, total)))
            assert off < len(counts) - 1 or off == 0
