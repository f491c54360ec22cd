"""The Hilbert curve: a path through all cells of a square whose near steps are near cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def trace_curve(level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the cells of a square of side ``2 ** level``, in the order of the curve.

    The curve starts in the top left corner (row 0) and ends in the top right one. Each level consists of four smaller
    curves, the first and last mirrored at a diagonal so that their ends meet::

        0 3
        1 2

    >>> rows, columns = trace_curve(1)
    >>> list(zip(rows.tolist(), columns.tolist()))
    [(0, 0), (1, 0), (1, 1), (0, 1)]
    """
    rows = columns = np.zeros(1, np.int64)
    for side in 2 ** np.arange(level):
        rows, columns = (
            np.concatenate((columns, rows + side, rows + side, side - 1 - columns)),
            np.concatenate((rows, columns, columns + side, 2 * side - 1 - rows)),
        )
    return rows, columns
