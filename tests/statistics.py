"""The battery: z-scores that tell a uniform permutation from a flawed one. NumPy only.

A permutation `p` is an integer array of shape ``(n,)``: ``p[k]`` is the origin index of output ``k``. Every
statistic has a known mean and variance under uniform `p`, and comes back as z-score, about normal. Chi-square
statistics are two-sided: "too even" is as wrong as "too uneven".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Permutation = "NDArray[np.int64]"
FEW_BLOCKS = 32
RESIDUES = 100
RESIDUE_BLOCKS = 50


def battery(p: NDArray[np.int64], file_sizes: Sequence[int]) -> dict[str, float]:
    """Return the z-score of every statistic by name.

    Parameters
    ----------
    p
        Permutation of ``0 .. n - 1``, n at least 10,000 for the normal approximations to hold.
    file_sizes
        Records of each input file, in the order of origin indices; they add up to n.
    """
    files = np.repeat(np.arange(len(file_sizes)), file_sizes)[p]
    return {
        "blk32": score_blocks(p, FEW_BLOCKS),
        "blk_root": score_blocks(p, math.isqrt(p.size)),
        "resid": score_residues(p, RESIDUES),
        "win": score_windows(files, file_sizes),
        "pair32": score_pairs(p, FEW_BLOCKS),
        "near10": score_near(p, 10),
        "near1000": score_near(p, 1000),
        "samefile": score_same_file(files, file_sizes),
        "lag1mean": score_steps(p),
        "serial": score_serial(p),
        "spearman": score_spearman(p),
        "inversions": score_inversions(p),
        "footrule": score_footrule(p),
        "descents": score_descents(p),
        "cycles": score_cycles(p),
        "records": score_records(p),
    }


# Tables of counts


def score_table(counts: NDArray[np.int64], expected: NDArray[np.float64], mean: float, variance: float) -> float:
    """Return the z-score of a chi-square statistic over a table of counts."""
    return float((((counts - expected) ** 2 / expected).sum() - mean) / math.sqrt(variance))


def count_pairs(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return how often each (row, column) occurs, shape `shape`."""
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)


def cross_table(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> float:
    """Return the z-score of the chi-square of a contingency table whose margins are both fixed."""
    n = rows.size
    row_sums = np.bincount(rows, minlength=shape[0]).astype(float)
    column_sums = np.bincount(columns, minlength=shape[1]).astype(float)
    freedom = (shape[0] - 1) * (shape[1] - 1)
    expected = np.outer(row_sums, column_sums) / n
    return score_table(count_pairs(rows, columns, shape), expected, freedom * n / (n - 1), 2 * freedom)


def find_blocks(places: NDArray[np.int64], n: int, block_count: int) -> NDArray[np.int64]:
    """Return the block of each place when ``0 .. n - 1`` is cut into blocks of nearly one size."""
    return places * block_count // n


def score_blocks(p: NDArray[np.int64], block_count: int) -> float:
    """Origin block against output block."""
    n = p.size
    return cross_table(
        find_blocks(p, n, block_count), find_blocks(np.arange(n), n, block_count), (block_count, block_count)
    )


def score_residues(p: NDArray[np.int64], modulus: int) -> float:
    """Origin index modulo `modulus` against output block: finds piles dealt round robin."""
    n = p.size
    return cross_table(p % modulus, find_blocks(np.arange(n), n, RESIDUE_BLOCKS), (modulus, RESIDUE_BLOCKS))


def score_windows(files: NDArray[np.int64], file_sizes: Sequence[int]) -> float:
    """Source file against windows of as many records as there are files."""
    file_count = len(file_sizes)
    windows = files.size // file_count
    used = windows * file_count
    return cross_table(files[:used], np.arange(used) // file_count, (file_count, windows))


def score_pairs(p: NDArray[np.int64], block_count: int) -> float:
    """Origin block against that of the next record: finds piles that were all ordered alike."""
    blocks = find_blocks(p, p.size, block_count)
    counts = count_pairs(blocks[:-1], blocks[1:], (block_count, block_count))
    freedom = block_count**2 - 1
    expected = np.full(counts.shape, (p.size - 1) / block_count**2)
    return score_table(counts, expected, freedom, 2 * freedom)


# Neighbours


def score_near(p: NDArray[np.int64], distance: int) -> float:
    """How many neighbours in the output were at most `distance` apart before."""
    n = p.size
    expected = (2 * distance * n - distance * (distance + 1)) / n
    return float((np.count_nonzero(np.abs(np.diff(p)) <= distance) - expected) / math.sqrt(expected))


def score_same_file(files: NDArray[np.int64], file_sizes: Sequence[int]) -> float:
    """How many neighbours in the output come from one file."""
    sizes = np.asarray(file_sizes, float)
    expected = float((sizes * (sizes - 1)).sum() / files.size)
    variance = expected * (1 - 1 / sizes.size)
    return float((np.count_nonzero(np.diff(files) == 0) - expected) / math.sqrt(variance))


def score_steps(p: NDArray[np.int64]) -> float:
    """Return the z-score of the mean distance between the origins of neighbours."""
    n = p.size
    return float((np.abs(np.diff(p)).mean() - (n + 1) / 3) / math.sqrt(2 * n / 45))


def score_serial(p: NDArray[np.int64]) -> float:
    """Correlation of each origin with the next one."""
    n = p.size
    centred = p - (n - 1) / 2
    return float(((centred[:-1] @ centred[1:]) / (centred @ centred) + 1 / n) * math.sqrt(n))


def score_descents(p: NDArray[np.int64]) -> float:
    """How often an origin is smaller than the one before."""
    n = p.size
    return float((np.count_nonzero(np.diff(p) < 0) - (n - 1) / 2) / math.sqrt((n + 1) / 12))


# Ranks


def score_spearman(p: NDArray[np.int64]) -> float:
    """Correlation of origin and place."""
    n = p.size
    centre = (n - 1) / 2
    centred = p - centre
    return float(((np.arange(n) - centre) @ centred) / (centred @ centred) * math.sqrt(n - 1))


def count_inversions(p: NDArray[np.int64]) -> int:
    """Return the number of pairs in descending order: a merge sort from below, one NumPy sort per level.

    >>> count_inversions(np.array([3, 1, 0, 2]))
    4
    """
    n = p.size
    if n < 2:
        return 0
    # Sorting by one more bit of the value at a time: inside a group of equal high bits, an inversion at this
    # bit is a one that stands before a zero.
    total = 0
    order = p.copy()
    for bit in reversed(range(int(n - 1).bit_length())):
        is_one = (order >> bit) & 1
        group = order >> (bit + 1)
        ones_before = np.cumsum(is_one) - is_one
        starts = np.flatnonzero(np.concatenate(([True], np.diff(group) != 0)))
        before_group = np.repeat(ones_before[starts], np.diff(np.append(starts, n)))
        total += int(((ones_before - before_group) * (1 - is_one)).sum())
        order = order[np.argsort(order >> bit, kind="stable")]
    return total


def score_inversions(p: NDArray[np.int64]) -> float:
    """How many pairs changed their order."""
    n = p.size
    mean = n * (n - 1) / 4
    return (count_inversions(p) - mean) / math.sqrt(n * (n - 1) * (2 * n + 5) / 72)


def score_footrule(p: NDArray[np.int64]) -> float:
    """How far records moved in total."""
    n = p.size
    moved = int(np.abs(p - np.arange(n)).sum())
    return (moved - (n * n - 1) / 3) / math.sqrt((n + 1) * (2 * n * n + 7) / 45)


# Cycles and records, which follow one law


def harmonic_score(count: int, n: int) -> float:
    """Return the z-score of a number of cycles, or of left-to-right maxima, of a permutation of n."""
    inverse = 1 / np.arange(1, n + 1)
    return float((count - inverse.sum()) / math.sqrt(inverse.sum() - (inverse**2).sum()))


def count_cycles(p: NDArray[np.int64]) -> int:
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


def score_cycles(p: NDArray[np.int64]) -> float:
    """Return the z-score of the number of cycles."""
    return harmonic_score(count_cycles(p), p.size)


def score_records(p: NDArray[np.int64]) -> float:
    """Return the z-score of the number of left-to-right maxima."""
    highest = np.maximum.accumulate(p)
    return harmonic_score(1 + int(np.count_nonzero(np.diff(highest))), p.size)


# All orders of few records


def permutation_chi_square(permutations: NDArray[np.int64]) -> tuple[float, float]:
    """Return chi-square over all n! orders, and its two-sided p-value.

    Parameters
    ----------
    permutations
        Shape ``(S, n)``, one permutation of ``0 .. n - 1`` a row; S at least five for each of the n! orders.

    Notes
    -----
    The p-value is small for counts that are too uneven *and* for counts that are too even.
    """
    sample_count, n = permutations.shape
    ranks = rank_permutations(permutations)
    cells = math.factorial(n)
    expected = sample_count / cells
    counts = np.bincount(ranks, minlength=cells)
    statistic = float(((counts - expected) ** 2).sum() / expected)
    upper = chi_square_upper(statistic, cells - 1)
    return statistic, min(1.0, 2 * min(upper, 1 - upper))


def rank_permutations(permutations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lexicographic rank of each row among all n! permutations, shape ``(S,)``.

    >>> rank_permutations(np.array([[0, 1, 2], [2, 1, 0]])).tolist()
    [0, 5]
    """
    n = permutations.shape[1]
    ranks = np.zeros(len(permutations), np.int64)
    for place in range(n):
        smaller_later = (permutations[:, place + 1 :] < permutations[:, place : place + 1]).sum(axis=1)
        ranks += smaller_later * math.factorial(n - 1 - place)
    return ranks


def chi_square_upper(statistic: float, freedom: int) -> float:
    """Return the probability that chi-square with that freedom exceeds the statistic (Wilson and Hilferty).

    >>> round(chi_square_upper(23.0, 23), 2), round(chi_square_upper(35.17, 23), 2)
    (0.46, 0.05)
    """
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
