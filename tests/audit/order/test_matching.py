"""The sample of a check depends on the records, and not on the threads that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.order.matching import BottomKSample, SampledRecords

if TYPE_CHECKING:
    import pytest


def add(sample: BottomKSample, file: int) -> None:
    rows = np.arange(1_000)
    priorities = np.random.default_rng(file).integers(0, 2**64, len(rows), np.uint64)
    sample.add(pa.array(rows), priorities, file, 0)


def test_records_that_are_added_while_others_raise_the_level_do_not_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread is one that adds its records between two steps of the first."""
    expected, sample = BottomKSample(600), BottomKSample(600)
    for file in range(4):
        add(expected, file)
    whole, others = SampledRecords.at_level, [1, 2, 3]

    def interrupt(part: SampledRecords, level: int) -> SampledRecords:
        chosen = whole(part, level)
        if not sample._lock.locked():
            while others:
                add(sample, others.pop(0))
        return chosen

    monkeypatch.setattr(SampledRecords, "at_level", interrupt)
    add(sample, 0)
    monkeypatch.undo()
    assert (sample.level, sample.kept) == (expected.level, expected.kept)
    assert sample.take().provenance.tolist() == expected.take().provenance.tolist()
