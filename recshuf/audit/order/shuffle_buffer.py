"""The order in which records leave a shuffle buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pass_buffer(rng: np.random.Generator, n: int, size: int) -> NDArray[np.int64]:
    """Return the order in which n records leave a buffer of `size` records.

    A buffer that yields a random record and then reads the next one is a Fisher-Yates shuffle whose swaps reach only
    as far as the buffer::

        yielded   | in the buffer           | not yet read
        ..... i-1 | i   i+1  ...  i+size-1  | i+size ...
                    ^---- j: one of these is yielded, record i moves to its index
    """
    indices = np.arange(n)
    return _apply_swaps(rng.integers(indices, np.minimum(indices + size, n)))


def _apply_swaps(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``0 .. n - 1`` after index i was swapped with index ``targets[i]`` for each i in turn.

    Since ``targets[i] >= i``, index i is final after its swap. It then holds what the last earlier swap with its target
    put there, or the target itself if there was none. Records are followed back through these swaps.

    >>> _apply_swaps(np.array([2, 2, 2])).tolist()
    [2, 0, 1]
    """
    indices = np.arange(targets.size)
    held = indices.copy()
    held[targets] = indices  # of several swaps with a target, the last
    while not np.array_equal(held, further := held[held]):
        held = further
    previous = _find_previous(targets)
    return np.where(previous >= 0, held[previous], targets)


def _find_previous(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each index the nearest earlier one with the same value, or -1.

    >>> _find_previous(np.array([5, 7, 5, 5])).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(values, kind="stable")
    is_repeated = np.diff(values[order]) == 0
    previous = np.full(values.size, -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    return previous
