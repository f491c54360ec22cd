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


def score_table(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> float:
    """Return the z-score of the chi-square of a contingency table, both of whose margins are fixed.

    `rows` and `columns` give each event's place in the table of that shape.
    """
    n = rows.size
    counts = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    freedom = (shape[0] - 1) * (shape[1] - 1)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float((statistic - freedom * n / (n - 1)) / math.sqrt(2 * freedom))


def find_blocks(places: NDArray[np.int64], n: int, block_count: int) -> NDArray[np.int64]:
    """Return the block of each place when ``0 .. n - 1`` is cut into blocks of nearly one size."""
    return places * block_count // n


def score_blocks(p: NDArray[np.int64], block_count: int) -> float:
    """Origin block against output block."""
    n = p.size
    origins, places = (find_blocks(each, n, block_count) for each in (p, np.arange(n)))
    return score_table(origins, places, (block_count, block_count))


def score_residues(p: NDArray[np.int64], modulus: int) -> float:
    """Origin index modulo `modulus` against output block: finds piles dealt round robin."""
    n = p.size
    return score_table(p % modulus, find_blocks(np.arange(n), n, RESIDUE_BLOCKS), (modulus, RESIDUE_BLOCKS))


def score_windows(files: NDArray[np.int64], file_sizes: Sequence[int]) -> float:
    """Source file against windows of as many records as there are files."""
    file_count = len(file_sizes)
    windows = files.size // file_count
    used = windows * file_count
    return score_table(files[:used], np.arange(used) // file_count, (file_count, windows))


def score_pairs(p: NDArray[np.int64], block_count: int) -> float:
    """Origin block against that of the next record: finds piles that were all ordered alike."""
    blocks = find_blocks(p, p.size, block_count)
    return score_table(blocks[:-1], blocks[1:], (block_count, block_count))


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
    """Return the probability that chi-square with that freedom exceeds the statistic.

    It is the incomplete gamma function of half integers, by the recurrence
    ``Q(a + 1, x) = Q(a, x) + x**a * exp(-x) / gamma(a + 1)``.

    >>> round(chi_square_upper(35.172, 23), 4), round(chi_square_upper(5.991, 2), 4)
    (0.05, 0.05)
    """
    if statistic <= 0:
        return 1.0
    x = statistic / 2
    first = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    start = 0.5 if freedom % 2 else 1.0
    steps = np.arange(start, freedom / 2)
    return math.fsum([first, *(math.exp(a * math.log(x) - x - math.lgamma(a + 1)) for a in steps)])


def score_agreement(permutations: NDArray[np.int64]) -> float:
    """Return the z-score of how often two seeds put the same record at the same place.

    Parameters
    ----------
    permutations
        Shape ``(S, n)``, one seed a row. Two unrelated seeds agree at one place on average (Poisson).
    """
    seed_count, n = permutations.shape
    pair_count = math.comb(seed_count, 2)
    _, times = np.unique(permutations * n + np.arange(n), return_counts=True)
    agreements = int((times * (times - 1) // 2).sum())
    return (agreements - pair_count) / math.sqrt(pair_count)
