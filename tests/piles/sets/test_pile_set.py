"""What a pile set asks its file to fetch ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from recshuf.piles.pile_set import PileSet, WrittenRegions

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE = 100


class FakeFile:
    """Notes what is fetched."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.fetched += [offset // SIZE for offset, _ in ranges]


@pytest.fixture
def opened() -> tuple[PileSet, FakeFile]:
    """Return a set of six regions of 100 bytes, and its file."""
    file: Any = FakeFile()
    parts = np.array([(region, SIZE * region, SIZE) for region in range(6)])
    sums = np.array([[1] * 6, [SIZE] * 6])
    return PileSet(file, WrittenRegions(6, parts), "none", sums), file


def test_regions_are_fetched_as_far_as_memory_allows(opened: tuple[PileSet, FakeFile]):
    pile_set, file = opened
    pile_set.fetch(range(1), 250)
    assert file.fetched == [0, 1]


def test_regions_that_are_read_next_are_fetched_whatever_their_size(opened: tuple[PileSet, FakeFile]):
    pile_set, file = opened
    pile_set.fetch(range(1, 4), 50)
    assert file.fetched == [1, 2, 3]


def test_each_region_is_fetched_once(opened: tuple[PileSet, FakeFile]):
    pile_set, file = opened
    for region in range(6):
        pile_set.fetch(range(region, region + 1), 250)
    assert file.fetched == [0, 1, 2, 3, 4, 5]
