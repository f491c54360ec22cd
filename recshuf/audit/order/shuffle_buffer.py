"""Buffers and swaps: the order in which records leave a buffer that gives out a random one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pass_buffer(rng: np.random.Generator, n: int, size: int) -> NDArray[np.int64]:
    """Return the order in which n records leave a buffer that holds `size` of them.

    A buffer that gives out a random record and takes in the next one is the loop of Fisher and Yates with swaps that
    reach no further than the records it holds::

        given out | in the buffer           | not yet read
        ..... i-1 | i   i+1  ...  i+size-1  | i+size ...
                    ^---- j: one of these is given out, record i takes its place
    """
    places = np.arange(n)
    return apply_swaps(rng.integers(places, np.minimum(places + size, n)))


def apply_swaps(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``0 .. n - 1`` after each place in turn was swapped with its target.

    No target lies before its place, so that a place is settled once its turn is over. What it then holds was put into
    the target by the last earlier swap with it, if there was one: records are followed back through these.

    >>> apply_swaps(np.array([2, 2, 2])).tolist()
    [2, 0, 1]
    """
    places = np.arange(targets.size)
    held = places.copy()
    held[targets] = places  # of several that were put there, the last
    while not np.array_equal(held, further := held[held]):
        held = further
    previous = find_previous(targets)
    return np.where(previous >= 0, held[previous], targets)


def find_previous(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each place the nearest earlier one that has the same value, or -1.

    >>> find_previous(np.array([5, 7, 5, 5])).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(values, kind="stable")
    is_repeated = np.diff(values[order]) == 0
    previous = np.full(values.size, -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    return previous
