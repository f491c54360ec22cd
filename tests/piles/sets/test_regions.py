"""Which piles share a region, against lists of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recshuf.piles.pile_set import RegionLayout

counts = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@given(numbers=counts, region_piles=st.integers(1, 50), data=st.data())
def test_a_layout_is_that_of_a_list_cut_into_parts(
    numbers: list[int], region_piles: int, data: st.DataObject
):
    layout = RegionLayout(len(numbers), region_piles)
    piles = list(range(len(numbers)))
    parts = [piles[start : start + region_piles] for start in range(0, len(piles), region_piles)]
    assert layout.count == len(parts)
    assert [list(layout.piles(region)) for region in range(layout.count)] == parts
    assert layout.sum(np.array(numbers)).tolist() == [sum(numbers[pile] for pile in part) for part in parts]
    start = data.draw(st.integers(0, len(numbers)))
    stop = data.draw(st.integers(start, len(numbers)))
    touched = [number for number, part in enumerate(parts) if {*part} & {*range(start, stop)}]
    assert list(layout.find(range(start, stop))) == touched
    whole = [part for part in parts if part[-1] < stop]
    if stop < len(numbers):
        assert layout.round_down(stop) == sum(map(len, whole))
    assert layout.round_up(stop) == sum(map(len, parts[: layout.find(range(stop)).stop]))


@given(numbers=counts, region_piles=st.integers(1, 50), data=st.data())
def test_grouped_records_are_cut_at_the_ends_of_regions(
    numbers: list[int], region_piles: int, data: st.DataObject
):
    layout = RegionLayout(len(numbers), region_piles)
    first = data.draw(st.integers(0, layout.count - 1))
    last = data.draw(st.integers(first, layout.count - 1))
    piles = range(layout.piles(first).start, layout.piles(last).stop)
    bounds = np.cumsum([0, *numbers])
    cut = layout.cut(bounds, piles).tolist()
    wanted = [sum(numbers[pile] for pile in layout.piles(region)) for region in range(first, last + 1)]
    assert cut[0] == sum(numbers[: piles.start])
    assert np.diff(cut).tolist() == wanted
