"""Statistics of a permutation whose mean and deviation are known when every order is equally likely.

A permutation `p` is an integer array of shape ``(n,)``: ``p[k]`` is the origin index of output ``k``. `files` has the same
shape and holds the input file of each output.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Order = NDArray[np.int64]

MAX_BUFFER_SHARE = 0.2
"""Of longer buffers the steps look more and more like those of a uniformly random order."""

MIN_BUFFER = 20
"""Records; of shorter buffers the quartiles of the steps are too coarse to tell the law."""

LAW_TOLERANCE = 0.06
"""How far quartiles may be off: those of a buffer of a fifth of the data are by 0.04, of two in a row by 0.08."""


class Measure(NamedTuple):
    """A statistic beside what is expected of it."""

    statistic: float
    expectation: float
    deviation: float
    """The standard deviation that goes with the expectation."""


# Tables of counts


def measure_table(rows: Order, columns: Order) -> Measure:
    """Return the chi-square of a table of counts; `rows` and `columns` give each record's place in it.

    Mean and deviation are exact for records that are dealt to the columns in random order, however uneven the margins.
    """
    counts = count_table(rows, columns)
    row_share, row_spread = share_margin(counts.sum(axis=1))
    column_share, column_spread = share_margin(counts.sum(axis=0))
    n = rows.size
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    variance = 2 * n / (n - 3) * (row_share - row_spread) * (column_share - column_spread)
    variance += n * n / (n - 1) * row_spread * column_spread
    return Measure(sum_squares(counts), freedom * n / (n - 1), math.sqrt(variance))


def count_table(rows: Order, columns: Order) -> Order:
    """Return how many records fall into each cell."""
    shape = int(rows.max()) + 1, int(columns.max()) + 1
    return np.bincount(rows * shape[1] + columns, minlength=math.prod(shape)).reshape(shape)


def sum_squares(counts: Order) -> float:
    """Return the chi-square of a table, none of whose margins is 0."""
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def share_margin(sums: Order) -> tuple[float, float]:
    """Return what a margin adds to the variance of chi-square: for its number of cells, and for their unevenness."""
    n, cells = int(sums.sum()), sums.size
    share = (n - cells) * (cells - 1) / (n - 1)
    return share, float((n * (1 / sums).sum() - cells * cells) / (n - 2))


def find_blocks(places: Order, n: int, block_count: int) -> Order:
    """Return the block of each place when ``0 .. n - 1`` is cut into blocks of nearly one size."""
    return places * block_count // n


def measure_blocks(p: Order, block_count: int) -> Measure:
    """Origin block against output block."""
    origins, places = (find_blocks(each, p.size, block_count) for each in (p, np.arange(p.size)))
    return measure_table(origins, places)


def measure_residues(p: Order, modulus: int, block_count: int) -> Measure:
    """Origin index modulo `modulus` against output block."""
    return measure_table(p % modulus, find_blocks(np.arange(p.size), p.size, block_count))


def measure_windows(files: Order, window: int) -> Measure:
    """Source file against windows of that many records."""
    used = files.size // window * window
    _, present = np.unique(files[:used], return_inverse=True)
    return measure_table(present, np.arange(used) // window)


def measure_pairs(p: Order, block_count: int) -> Measure:
    """Origin block against that of the next record."""
    blocks = find_blocks(p, p.size, block_count)
    freedom = (block_count - 1) ** 2
    statistic = sum_squares(count_table(blocks[:-1], blocks[1:]))
    return Measure(statistic, freedom * p.size / (p.size - 1), math.sqrt(2 * freedom))


# Neighbours


def measure_near(p: Order, distance: int) -> Measure:
    """How many neighbours in the output were at most `distance` apart before."""
    expected = (2 * distance * p.size - distance * (distance + 1)) / p.size
    return Measure(int(np.count_nonzero(np.abs(np.diff(p)) <= distance)), expected, math.sqrt(expected))


def measure_same_file(files: Order) -> Measure:
    """How many neighbours in the output come from one file."""
    n = files.size
    sizes = np.bincount(files).astype(float)
    squares, cubes = float((sizes**2).sum()), float((sizes**3).sum())
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n * n * (n - 1))
    return Measure(int(np.count_nonzero(np.diff(files) == 0)), squares / n - 1, math.sqrt(variance))


def measure_steps(p: Order) -> Measure:
    """Mean distance between the origins of neighbours."""
    return Measure(float(np.abs(np.diff(p)).mean()), (p.size + 1) / 3, math.sqrt(2 * p.size / 45))


def estimate_buffer(p: Order) -> float | None:
    """Return the share of all records that a shuffle buffer held, if steps follow the law of one, else None.

    A record waits in a buffer of b records, which gives out a random one each time, for about b times a standard
    exponential time. So the origins of two records given out in a row differ by the difference of two such times, whose
    size is exponential with mean b: its quartiles are b times log(4/3), log 2 and log 4, and it is as often positive as
    negative. Sampling every record with the same chance changes nothing in that. Neither a uniformly random order nor pieces
    shuffled each by itself have such quartiles, nor several buffers in a row. For a tenth of the data the start, where the
    buffer holds the first records only, makes the estimate 7 % too small, for a fifth 13 %.

    >>> estimate_buffer(np.arange(1000)) is None
    True
    """
    steps = np.diff(p)
    first, median, third = np.quantile(np.abs(steps), [0.25, 0.5, 0.75]).tolist()
    buffer = median / math.log(2)
    if not MIN_BUFFER <= buffer <= MAX_BUFFER_SHARE * p.size:
        return None
    found = first / median, third / median, np.count_nonzero(steps < 0) / steps.size
    law = math.log(4 / 3) / math.log(2), 2, 0.5
    follows = all(
        math.isclose(one, other, rel_tol=LAW_TOLERANCE) for one, other in zip(found, law, strict=True)
    )
    return buffer / p.size if follows else None


def measure_serial(p: Order) -> Measure:
    """Correlation of each origin with the next one."""
    n = p.size
    return Measure(correlate(p[:-1], p[1:], n), -1 / n, 1 / math.sqrt(n))


def correlate(one: Order, other: Order, n: int) -> float:
    """Return the correlation of values that are all, or nearly all, of ``0 .. n - 1``."""
    mean, variance = (n - 1) / 2, (n * n - 1) / 12
    return float(((one - mean) * (other - mean)).sum() / (n * variance))


def measure_descents(p: Order) -> Measure:
    """How often an origin is smaller than the one before."""
    return Measure(int(np.count_nonzero(np.diff(p) < 0)), (p.size - 1) / 2, math.sqrt((p.size + 1) / 12))


# Ranks


def measure_spearman(p: Order) -> Measure:
    """Correlation of origin and place."""
    return Measure(correlate(p, np.arange(p.size), p.size), 0, 1 / math.sqrt(p.size - 1))


def measure_inversions(p: Order) -> Measure:
    """How many pairs changed their order."""
    n = p.size
    return Measure(count_inversions(p), n * (n - 1) / 4, math.sqrt(n * (n - 1) * (2 * n + 5) / 72))


def count_inversions(p: Order) -> int:
    """Return the number of pairs in descending order, found bit by bit from the highest.

    Among values that agree in all higher bits, a pair is in descending order because of this bit where a one
    stands before a zero.

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
    """How far records moved in total."""
    n = p.size
    moved = int(np.abs(p - np.arange(n)).sum())
    return Measure(moved, (n * n - 1) / 3, math.sqrt((n + 1) * (2 * n * n + 7) / 45))


# Cycles and records, which follow one law


def count_cycles(p: Order) -> int:
    """Return the number of cycles: each index learns the least index of its cycle by doubling its steps.

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
    """Return the number of cycles, beside its law."""
    return measure_harmonic(count_cycles(p), p.size)


def measure_maxima(p: Order) -> Measure:
    """How many origins are later than all before them."""
    highest = np.maximum.accumulate(p)
    return measure_harmonic(1 + int(np.count_nonzero(np.diff(highest))), p.size)


def measure_harmonic(count: int, n: int) -> Measure:
    """Return a number of cycles, or of left-to-right maxima, beside the mean and deviation that both have."""
    inverse = 1 / np.arange(1, n + 1)
    return Measure(count, float(inverse.sum()), math.sqrt(inverse.sum() - (inverse**2).sum()))
