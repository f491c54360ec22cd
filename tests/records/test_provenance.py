"""Where records come from: packed into one number each, and found again."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.records.batch import Records, split_ranges
from recshuf.records.keys import RowRange
from recshuf.records.provenance import (
    MAX_INPUTS,
    MAX_ROWS,
    add_provenance,
    check_names,
    find_origins,
    find_ranges,
    shift_sources,
    unpack_provenance,
)
from tests.support.effort import examples

RANGES = st.lists(
    st.builds(
        RowRange,
        st.integers(0, 3) | st.integers(0, MAX_INPUTS - 9),
        st.integers(0, 9) | st.integers(0, MAX_ROWS - 6),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=6,
)


def list_rows(ranges: list[RowRange]) -> list[tuple[int, int]]:
    return [(index, row) for index, first, count in ranges for row in range(first, first + count)]


@settings(max_examples=examples(200))
@given(RANGES, st.integers(0, 8))
@example([RowRange(0, 0, 2), RowRange(1, 2, 2), RowRange(1, 4, 1), RowRange(1, 9, 1)], 0)
def test_inputs_and_rows_are_found_again(ranges: list[RowRange], added: int) -> None:
    rows = list_rows(ranges)
    batch = add_provenance(pa.record_batch({"a": pa.array(range(len(rows)))}), ranges)
    inputs, numbers = unpack_provenance(find_origins(batch))
    assert list(zip(inputs.tolist(), numbers.tolist(), strict=True)) == rows
    parts = list(split_ranges(batch, ranges))
    assert [(index, first, part.num_rows) for part, index, first in parts] == [tuple(one) for one in ranges]
    assert pa.concat_batches([part for part, *_ in parts]).equals(batch)
    found = find_ranges(batch)
    assert list_rows(found) == rows
    assert len(found) == 1 + sum(two != (one[0], one[1] + 1) for one, two in pairwise(rows))
    by = np.arange(len(rows)) % (added + 1)
    shifted = shift_sources(Records(np.zeros(len(rows), np.uint64), batch), by)
    assert list_rows(find_ranges(shifted.batch)) == [
        (index + more, row) for (index, row), more in zip(rows, by.tolist(), strict=True)
    ]
    assert shifted.batch.column(0).equals(batch.column(0))


@pytest.mark.parametrize(
    ("check", "arguments", "problem"),
    [
        (check_names, [["a", "b", "a", "a"]], "a is an input 3 times; name it once"),
        (check_names, [range(MAX_INPUTS + 1)], "4,194,305 inputs are more than 4,194,304"),
        (check_names, [["a", "b", "a"], [1, None, 2]], "holds records of 2 inputs named a"),
    ],
)
def test_names_that_tell_nothing_apart_are_refused(check: Any, arguments: list[Any], problem: str) -> None:
    with pytest.raises(UsageError, match=f"^--provenance: .*{problem}"):
        check(*arguments)
    check_names(["a", "b", "a"], [None, 1, 2])
    check_names(["a", "b"])
