"""The Hilbert curve: a path through every cell of a square on which near places are near cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def trace_curve(level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and the columns of the cells of a square of side ``2 ** level``, in the order of the curve.

    The curve starts in the top left corner and ends in the top right one. Each level is four smaller curves, of which
    the first and the last are mirrored at a diagonal, so that they begin and end beside the others::

        1 2
        0 3

    seen from below: row 0 is the top row.

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
