"""Hashes that differ are counted exactly, in bounded memory, in piles or not."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recshuf
from recshuf.audit.verify import mismatches
from recshuf.audit.verify.mismatches import INPUTS, Mismatch
from recshuf.piles.set_folder import Scratch

if TYPE_CHECKING:
    from pathlib import Path


def test_one_of_a_million_equal_records_is_missed(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"same\n" * 1_000_000 + b"other\n")
    (tmp_path / "out.txt").write_bytes(b"other\n" + b"same\n" * 999_999)
    report = recshuf.verify(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB", workers=2)
    assert (report.missing, report.extra) == (1, 0)
    assert (report.missing_places[0].index, report.missing_places[0].copies) == (0, 1)


def test_equal_records_take_the_memory_of_one(tmp_path: Path):
    hashes = np.repeat(np.array([[5, 6]], np.uint64), 200_000, axis=0)
    wanted = np.ones(mismatches.BUCKETS, np.bool_)
    search = mismatches.Search(wanted, len(hashes) * 20, Scratch(tmp_path), 64 << 20)
    search.add(INPUTS, hashes, 0, 0)
    tracemalloc.start()
    for round_number in range(1, 20):
        search.add(INPUTS, hashes, 0, round_number * len(hashes))
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    tracemalloc.stop()
    found = search.run()
    search.close()
    assert found.missing == 4_000_000
    assert found.first_missing == (Mismatch(file=0, row=0, copies=4_000_000),)


def test_a_search_that_spills_finds_the_same(tmp_path: Path):
    random_hashes = np.random.default_rng(0).integers(0, 2**64, (2, 60_000, 2), np.uint64)
    random_hashes[1, :59_000] = random_hashes[0, 1000:]
    found = []
    for memory_bytes in (1 << 16, 1 << 30):
        wanted = np.ones(mismatches.BUCKETS, np.bool_)
        search = mismatches.Search(wanted, 3000, Scratch(tmp_path), memory_bytes)
        for set_index, hashes in enumerate(random_hashes):
            for start in range(0, len(hashes), 7000):
                search.add(set_index, hashes[start : start + 7000], 3, start)
        found.append(search.run())
        search.close()
    assert found[0] == found[1]
    assert (found[0].missing, found[0].extra) == (1000, 1000)
    assert found[0].first_missing == tuple(Mismatch(3, row, 1) for row in range(10))
    assert found[0].first_extra == tuple(Mismatch(3, row, 1) for row in range(59_000, 59_010))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50), st.integers(1, 7))
def test_tallies_are_sums_modulo_2_to_the_64_of_each_bucket(values: list[int], rows: int):
    hashes = np.array(values, np.uint64)[:, None] + np.array([0, 1], np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mismatches, "_SUMMED_AT_ONCE", rows)
        tally = mismatches.Tally(2)
        tally.add(hashes, 1)
    assert tally.records == [0, len(values)]
    for bucket in {value >> 52 for value in values}:
        own = [value for value in values if value >> 52 == bucket]
        assert tally.counts[bucket] == len(own)
        assert tally.sums[0, bucket] == sum(own) % 2**64
        assert tally.sums[1, bucket] == sum(value + 1 for value in own) % 2**64
