"""What tests say of permutations: scores of the battery by name, and chi-square over all orders of few records.

A permutation `p` is an integer array of shape ``(n,)``: ``p[k]`` is the origin index of output ``k``.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recshuf.audit.order.battery import run_battery


def battery(p: NDArray[np.int64], file_sizes: Sequence[int]) -> dict[str, float]:
    """Return the z-score of every statistic by name."""
    return {score.name: score.z for score in run_battery(p, file_sizes)}


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
