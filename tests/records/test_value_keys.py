"""Keys of values: those of a slow, obvious oracle. Keys of a split: members of parts, and their orders, as likely as they should be."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.interfaces import ValueReader
from recshuf.records import keys as module
from recshuf.records.keys import RowRange, Split, count_before, draw_keys, sort_by_words, stream_of
from recshuf.records.value_keys import (
    PartKeys,
    PlacedParts,
    ValueKeys,
    ValueParts,
    cut_pieces,
    divide_keys,
    without_value,
)
from tests.support.effort import examples
from tests.support.group_oracle import find_key
from tests.support.order_statistics import chi_square_upper, permutation_chi_square

SEED = 11


def array(*values: bytes | None) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def pair(keys: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(*(half.tolist() for half in keys), strict=True))


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_keys_are_those_of_the_formulas(fields: int) -> None:
    """Whatever pieces records are cut into, and with nulls in some fields or all."""
    rng = np.random.default_rng(3)
    values = [None, b"", b"\0", b"a", b"ab", b"user-17", b"x" * 40, b"x" * 700_000]
    chances = [0.3, *[0.7 / 6 - 0.0001] * 6, 0.0006]
    records = [tuple(values[i] for i in row) for row in rng.choice(8, (20_000, fields), p=chances)]
    texts = [array(*column) for column in zip(*records, strict=True)]
    assert len(list(cut_pieces(*texts))) > 2
    keys = ValueKeys(SEED)
    found = pair(keys.keys(texts, 3, 100))
    rows = [*range(0, 20_000, 37), *range(19_990, 20_000)]
    assert [found[row] for row in rows] == [find_key(records[row], SEED, (3, 100 + row)) for row in rows]
    assert pair(keys.keys([column[7000:] for column in texts], 3, 7100)) == found[7000:]
    missing = without_value(texts)
    assert missing is not None
    assert missing.tolist() == [set(record) == {None} for record in records]
    assert without_value([*texts, array(*[b""] * 20_000)]) is None


def test_records_without_a_value_may_share_one() -> None:
    column = array(None, b"", None, b"a")
    own = pair(ValueKeys(SEED).keys([column], 0, 0))
    shared = pair(ValueKeys(SEED, shares_missing=True).keys([column], 0, 0))
    assert len(set(own)) == 4
    assert shared[0] == shared[2]
    assert len(set(shared)) == 3
    assert (shared[1], shared[3]) == (own[1], own[3])
    assert pair(ValueKeys(SEED, "other").keys([column], 0, 0))[1] != own[1]


@pytest.mark.parametrize(
    ("counts", "sizes", "seeds"),
    [((3, 0, 1), (2, 1, 1), 480), pytest.param((3, 0, 2), (2, 2, 1), 12_000, marks=pytest.mark.slow)],
)
def test_every_choice_and_order_is_equally_likely(
    counts: Sequence[int], sizes: Sequence[int], seeds: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("recshuf.records.keys._BUCKET_BITS", 4)  # most of the time goes to empty buckets
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


# Splits are exact in count, uniformly random, and the same however records are cut into ranges; shares are exact in sum


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
