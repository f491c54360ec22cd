"""Keys of a split: any members of a part in any order, and each value in any part, are as likely as they should be."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from recshuf.interfaces import ValueReader
from recshuf.records.keys import RowRange, sort_by_words
from recshuf.records.split import Split
from recshuf.records.value_keys import PartKeys, PlacedParts, ValueParts, divide_keys
from tests.support.order_statistics import chi_square_upper, permutation_chi_square

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("counts", "sizes", "seeds"),
    [((3, 0, 1), (2, 1, 1), 480), pytest.param((3, 0, 2), (2, 2, 1), 12_000, marks=pytest.mark.slow)],
)
def test_every_choice_and_order_is_equally_likely(
    counts: Sequence[int], sizes: Sequence[int], seeds: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("recshuf.records.split._BUCKET_BITS", 4)  # most of the time goes to empty buckets
    total = sum(sizes)
    edges = tuple(divide_keys([Fraction(size, total) for size in sizes]))
    ranges = [RowRange(index, 0, count) for index, count in enumerate(counts) if count]
    found = []
    for seed in range(seeds):
        keys = PartKeys(seed, edges, PlacedParts(Split.find(seed, counts, sizes)))
        found.append(sort_by_words(keys.draw(pa.record_batch({}), ranges).words))
    _, chance = permutation_chi_square(np.array(found))
    assert chance > 1e-3


class Texts(ValueReader):
    """Reads the only column."""

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        return (batch.column(0),)


@pytest.mark.parametrize("seeds", [300, pytest.param(9_000, marks=pytest.mark.slow)])
def test_each_value_is_in_each_part_with_the_probability_of_its_share_whatever_others_are(seeds: int):
    shares = tuple(map(Fraction, ("0.5", "0.3", "0.2")))
    batch = pa.record_batch({"a": pa.array([b"a", None, b"a", None], pa.large_binary())})
    seen = Counter[tuple[int, ...]]()
    for seed in range(seeds):
        parts = (
            ValueParts(Texts(), seed, shares).find_parts(batch, [RowRange(0, 5, 2), RowRange(1, 0, 2)]).parts
        )
        assert (parts[0], parts[1]) == (parts[2], parts[3])
        seen[tuple(parts[:2].tolist())] += 1
    cells = {
        chosen: seeds * float(np.prod([float(shares[part]) for part in chosen]))
        for chosen in product(range(3), repeat=2)
    }
    statistic = sum((seen[chosen] - expected) ** 2 / expected for chosen, expected in cells.items())
    assert 1e-3 < chi_square_upper(statistic, len(cells) - 1) < 1 - 1e-3
