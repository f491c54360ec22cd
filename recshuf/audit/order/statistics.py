"""Statistics of a permutation whose expectation and deviation are known if every order is equally likely.

A permutation `p` is an integer array of shape ``(n,)``: ``p[k]`` is the input index of output ``k``. `files` has the same
shape and holds the input file of each output.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Order = NDArray[np.int64]

_MAX_BUFFER_SHARE = 0.2
"""Steps of longer buffers look more and more like those of a uniformly random order."""
_MIN_BUFFER = 20
"""In records. The quartiles of the steps of shorter buffers are too coarse to identify their distribution."""
_LAW_TOLERANCE = 0.06
"""Tolerance of quartiles: those of a buffer of a fifth of the data are off by 0.04, of two buffers in a row by 0.08."""


class Measure(NamedTuple):
    """A statistic with its expectation and standard deviation in uniformly random orders."""

    statistic: float
    expectation: float
    deviation: float


# Tables of counts


def measure_table(rows: Order, columns: Order) -> Measure:
    """Return the chi-square of a contingency table; `rows` and `columns` are each record's row and column.

    Expectation and deviation are exact for records dealt to the columns at random, whatever the margins.
    """
    counts = _count_table(rows, columns)
    row_share, row_spread = _share_margin(counts.sum(axis=1))
    column_share, column_spread = _share_margin(counts.sum(axis=0))
    n = rows.size
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    variance = 2 * n / (n - 3) * (row_share - row_spread) * (column_share - column_spread)
    variance += n * n / (n - 1) * row_spread * column_spread
    return Measure(_sum_squares(counts), freedom * n / (n - 1), math.sqrt(variance))


def _count_table(rows: Order, columns: Order) -> Order:
    shape = int(rows.max()) + 1, int(columns.max()) + 1
    return np.bincount(rows * shape[1] + columns, minlength=math.prod(shape)).reshape(shape)


def _sum_squares(counts: Order) -> float:
    """Return the chi-square of a table without zero margins."""
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def _share_margin(sums: Order) -> tuple[float, float]:
    """Return the terms of a margin in the variance of chi-square: of its number of cells, and of their unevenness."""
    n, cells = int(sums.sum()), sums.size
    share = (n - cells) * (cells - 1) / (n - 1)
    return share, float((n * (1 / sums).sum() - cells * cells) / (n - 2))


def _find_blocks(indices: Order, n: int, block_count: int) -> Order:
    """Return the block of each index when ``0 .. n - 1`` is cut into blocks of nearly equal size."""
    return indices * block_count // n


def measure_blocks(p: Order, block_count: int) -> Measure:
    """Return chi-square of input block against output block."""
    n = p.size
    return measure_table(_find_blocks(p, n, block_count), _find_blocks(np.arange(n), n, block_count))


def measure_residues(p: Order, modulus: int, block_count: int) -> Measure:
    """Return chi-square of input index modulo `modulus` against output block."""
    return measure_table(p % modulus, _find_blocks(np.arange(p.size), p.size, block_count))


def measure_windows(files: Order, window: int) -> Measure:
    """Return chi-square of input file against output windows of `window` records."""
    used = files.size // window * window
    _, present = np.unique(files[:used], return_inverse=True)
    return measure_table(present, np.arange(used) // window)


def measure_pairs(p: Order, block_count: int) -> Measure:
    """Return chi-square of each record's input block against that of the next record."""
    blocks = _find_blocks(p, p.size, block_count)
    freedom = (block_count - 1) ** 2
    statistic = _sum_squares(_count_table(blocks[:-1], blocks[1:]))
    return Measure(statistic, freedom * p.size / (p.size - 1), math.sqrt(2 * freedom))


# Neighbours


def measure_near(p: Order, distance: int) -> Measure:
    """Return how many neighbours in the output are at most `distance` apart in the input."""
    expected = (2 * distance * p.size - distance * (distance + 1)) / p.size
    return Measure(int(np.count_nonzero(np.abs(np.diff(p)) <= distance)), expected, math.sqrt(expected))


def measure_same_file(files: Order) -> Measure:
    """Return how many neighbours in the output are from one file."""
    n = files.size
    sizes = np.bincount(files).astype(float)
    squares, cubes = float((sizes**2).sum()), float((sizes**3).sum())
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n * n * (n - 1))
    return Measure(int(np.count_nonzero(np.diff(files) == 0)), squares / n - 1, math.sqrt(variance))


def measure_steps(p: Order) -> Measure:
    """Return the mean distance in the input between neighbours in the output."""
    return Measure(float(np.abs(np.diff(p)).mean()), (p.size + 1) / 3, math.sqrt(2 * p.size / 45))


def estimate_buffer(p: Order) -> float | None:
    """Return the size of the shuffle buffer that made an order, as a share of all records; None if none did.

    A record stays in a buffer of b records, which yields a random one at each step, for about b times a standard
    exponential time. The input indices of two consecutive outputs thus differ by the difference of two such times. Its
    absolute value is exponential with mean b, with quartiles b log(4/3), b log 2 and b log 4, and its signs are balanced.
    Sampling records with equal probability keeps this. Uniformly random orders, pieces that are shuffled one by one and
    several buffers in a row have other quartiles. Since the buffer holds only the first records at the start, the
    estimate is 7 % too small for a tenth of the data, and 13 % for a fifth.

    >>> estimate_buffer(np.arange(1000)) is None
    True
    """
    steps = np.diff(p)
    first, median, third = np.quantile(np.abs(steps), [0.25, 0.5, 0.75]).tolist()
    buffer = median / math.log(2)
    if not _MIN_BUFFER <= buffer <= _MAX_BUFFER_SHARE * p.size:
        return None
    measured = first / median, third / median, np.count_nonzero(steps < 0) / steps.size
    law = math.log(4 / 3) / math.log(2), 2, 0.5
    follows = all(map(partial(math.isclose, rel_tol=_LAW_TOLERANCE), measured, law))
    return buffer / p.size if follows else None


def measure_serial(p: Order) -> Measure:
    """Return the correlation of each input index with the next one."""
    n = p.size
    return Measure(_correlate(p[:-1], p[1:], n), -1 / n, 1 / math.sqrt(n))


def _correlate(left: Order, right: Order, n: int) -> float:
    mean, variance = (n - 1) / 2, (n * n - 1) / 12
    return float(((left - mean) * (right - mean)).sum() / (n * variance))


def measure_descents(p: Order) -> Measure:
    """Return how often an input index is smaller than the one before."""
    return Measure(int(np.count_nonzero(np.diff(p) < 0)), (p.size - 1) / 2, math.sqrt((p.size + 1) / 12))


# Ranks


def measure_spearman(p: Order) -> Measure:
    """Return the correlation of input and output index."""
    return Measure(_correlate(p, np.arange(p.size), p.size), 0, 1 / math.sqrt(p.size - 1))


def measure_inversions(p: Order) -> Measure:
    """Return how many pairs of records changed their order."""
    n = p.size
    return Measure(count_inversions(p), n * (n - 1) / 4, math.sqrt(n * (n - 1) * (2 * n + 5) / 72))


def count_inversions(p: Order) -> int:
    """Return the number of pairs in descending order, counted bit by bit from the highest.

    Of values that agree in all higher bits, a pair is in descending order by this bit if a one precedes a zero.

    >>> count_inversions(np.array([3, 1, 0, 2]))
    4
    """
    total = 0
    for bit in reversed(range(int(p.max()).bit_length())):
        is_one = (p >> bit) & 1
        group = p >> (bit + 1)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        ones_before = np.cumsum(is_one) - is_one
        ones_in_earlier_groups = np.repeat(ones_before[starts], np.diff(starts, append=p.size))
        total += int(((ones_before - ones_in_earlier_groups) * (1 - is_one)).sum())
        p = p[np.argsort(p >> bit, kind="stable")]
    return total


def measure_footrule(p: Order) -> Measure:
    """Return how far records moved in total."""
    n = p.size
    moved = int(np.abs(p - np.arange(n)).sum())
    return Measure(moved, (n * n - 1) / 3, math.sqrt((n + 1) * (2 * n * n + 7) / 45))


# Cycles and left-to-right maxima, which have one distribution


def count_cycles(p: Order) -> int:
    """Return the number of cycles; each index finds the least index of its cycle in steps of doubled length.

    >>> count_cycles(np.array([1, 0, 2]))
    2
    """
    least = np.arange(p.size)
    step = p.copy()
    for _ in range(int(p.size).bit_length()):
        least = np.minimum(least, least[step])
        step = step[step]
    return int(np.count_nonzero(least == np.arange(p.size)))


def measure_cycles(p: Order) -> Measure:
    return _measure_harmonic(count_cycles(p), p.size)


def measure_maxima(p: Order) -> Measure:
    """Return how many input indices are higher than all before them."""
    highest = np.maximum.accumulate(p)
    return _measure_harmonic(1 + int(np.count_nonzero(np.diff(highest))), p.size)


def _measure_harmonic(count: int, n: int) -> Measure:
    """Return a number of cycles or left-to-right maxima with the expectation and deviation that both have."""
    inverse = 1 / np.arange(1, n + 1)
    return Measure(count, float(inverse.sum()), math.sqrt(inverse.sum() - (inverse**2).sum()))
