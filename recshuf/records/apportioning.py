"""How many records each part of a whole gives: exact counts, all together and from step to step."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def apportion(total: int, weights: Sequence[float | Fraction]) -> list[int]:
    """Return whole numbers in proportion to weights, whose sum is the total: those of the largest remainders.

    >>> apportion(10, [2, 1, 1])
    [5, 3, 2]
    """
    parts = [Fraction(weight) for weight in weights]
    exact = [total * part / sum(parts) for part in parts]
    counts = [int(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def count_before(done: int, counts: Sequence[int]) -> list[int]:
    """Return how many of the first `done` records are of each part, if these have `counts` records in all.

    The first part gets its share rounded down, the second its share of what is left, and so on. No number falls when
    `done` rises, the sum is `done`, and at the end the numbers are `counts`. With n > 1 parts, a number, and what is
    added to it from one `done` to another, is off the exact share by less than n - 1; remainders add up from part to part.

    >>> [count_before(done, [2, 1, 1]) for done in range(5)]
    [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [2, 1, 1]]
    """
    found, left = [], sum(counts)
    for count in counts:
        share = done * count // left if left else 0
        found.append(share)
        done, left = done - share, left - count
    return found
