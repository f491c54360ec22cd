"""The Hilbert curve visits every cell once, step by step, as the curve that is drawn recursively does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from recshuf.audit.reports.picture import trace_curve

if TYPE_CHECKING:
    from collections.abc import Iterator

Vector = tuple[int, int]


def walk(corner: Vector, across: Vector, down: Vector, level: int) -> Iterator[Vector]:
    """Yield the cells of a curve that leaves a corner downwards and ends across, drawn in half steps."""
    (row, column), (across_row, across_column), (down_row, down_column) = corner, across, down
    if level == 0:
        yield (row + (across_row + down_row) // 2, column + (across_column + down_column) // 2)
        return
    half_across = (across_row // 2, across_column // 2)
    half_down = (down_row // 2, down_column // 2)
    below = (row + half_down[0], column + half_down[1])
    middle = (below[0] + half_across[0], below[1] + half_across[1])
    end = (middle[0] + half_across[0], middle[1] + half_across[1])
    yield from walk(corner, half_down, half_across, level - 1)
    yield from walk(below, half_across, half_down, level - 1)
    yield from walk(middle, half_across, half_down, level - 1)
    yield from walk(end, (-half_down[0], -half_down[1]), (-half_across[0], -half_across[1]), level - 1)


@pytest.mark.parametrize("level", [0, 1, 2, 5, 6])
def test_the_curve_is_the_one_drawn_recursively(level: int) -> None:
    # Cells are two units wide, so that their middles are whole numbers.
    middles = np.array(list(walk((0, 0), (0, 2 << level), (2 << level, 0), level)))
    rows, columns = trace_curve(level)
    assert np.array_equal(np.column_stack((rows, columns)), middles // 2)
    assert np.array_equal(np.sort(rows << level | columns), np.arange(4**level))
    assert np.all(np.abs(np.diff(rows)) + np.abs(np.diff(columns)) == 1)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, 0, 2**level - 1)
