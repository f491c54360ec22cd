"""Which record of the inputs each record of an output is: records with equal hashes match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.order.sample import BottomKSample


@dataclass(frozen=True, slots=True)
class Matching:
    """The order of an output's records in terms of its inputs."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the rank, in the order of the inputs, of each sampled record that has a match."""
    file_sizes: list[int]
    """How many of these records each input file holds."""
    records: int
    """Number of records in the output, sampled or not."""
    share: float
    """Share of the records that was sampled, 0 to 1."""
    missing: int = 0
    """Sampled records of the inputs without a match in the output."""
    extra: int = 0
    """Sampled records of the output without a match in the inputs."""
    duplicates: int = 0
    """Sampled records of the output that equal another one; they were matched at random."""


def match_records(
    given: BottomKSample, made: BottomKSample, file_count: int, rng: np.random.Generator
) -> Matching:
    """Match the records of an output with those of its inputs.

    Parameters
    ----------
    given, made
        Hashes of the records of inputs and output. Priorities must be functions of the records, so that of equal
        records all are sampled or none.
    file_count
        Number of input files.
    rng
        Matches equal records at random. Matched in their old order, they would look like neighbours that stayed
        together.
    """
    level = max(given.level, made.level)
    inputs, output = given.take(level), made.take(level)
    found, wanted = output.values.to_numpy(), inputs.values.to_numpy()
    found_order, wanted_order = sort_randomly(found, rng), sort_randomly(wanted, rng)
    found, wanted = found[found_order], wanted[wanted_order]
    # The k-th of equal records in the output matches the k-th of them in the inputs.
    rank_among_equals = np.arange(len(found)) - np.searchsorted(found, found, "left")
    match = np.searchsorted(wanted, found, "left") + rank_among_equals
    is_matched = match < np.searchsorted(wanted, found, "right")
    input_of = np.full(len(found), -1, np.int64)
    input_of[found_order[is_matched]] = wanted_order[match[is_matched]]
    matched = input_of[input_of >= 0]
    return Matching(
        order=rank(matched),
        file_sizes=np.bincount(inputs.files[matched], minlength=file_count).tolist(),
        records=made.records,
        share=0.5**level,
        missing=len(wanted) - len(matched),
        extra=len(found) - len(matched),
        duplicates=_count_duplicates(found),
    )


def sort_randomly(values: NDArray[np.int64 | np.uint64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices that sort values, equal ones in random order."""
    return np.lexsort((rng.random(len(values)), values))


def rank(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each value among values that all differ.

    >>> rank(np.array([7, 0, 5]))
    array([2, 0, 1])
    """
    return invert(np.argsort(values))


def invert(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the inverse of a permutation.

    >>> invert(np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    inverse = np.empty(len(permutation), np.int64)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def _count_duplicates(values: NDArray[np.uint64]) -> int:
    """Return how many of the values, sorted, equal another one.

    >>> _count_duplicates(np.array([1, 2, 2, 3, 3, 3]))
    5
    """
    same = values[1:] == values[:-1]
    return int(np.count_nonzero(np.append(same, False) | np.insert(same, 0, False)))
