"""Where the records of an output come from: the inputs' records with equal hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.order.sample import Sample


@dataclass(frozen=True, slots=True)
class Origins:
    """Which records of the inputs those of an output are."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the origin of each record of the output, among those that have one."""
    file_sizes: list[int]
    """How many of them are from each input."""
    share: float
    """Which part of the records was looked at."""
    missing: int
    """Records of the inputs, of those looked at, that are not in the output."""
    extra: int
    """The other way round."""
    twins: int
    """Records of the output, of those looked at, that have equals there: which is which was drawn by lot."""


def find_origins(given: Sample, made: Sample, file_count: int, lots: np.random.Generator) -> Origins:
    """Return where the records of an output come from.

    Parameters
    ----------
    given, made
        Hashes of the records of the inputs and of the output. Their lots follow from the records, so that of equal
        ones all are sampled or none.
    file_count
        Number of input files.
    lots
        Decides which of equal records is which. Any consistent way would do; one in their old order would keep
        neighbours together that nobody can tell apart.
    """
    level = max(given.level, made.level)
    inputs, output = given.take(level), made.take(level)
    found, wanted = output.values.to_numpy(), inputs.values.to_numpy()
    ours, theirs = sort_with_lots(found, lots), sort_with_lots(wanted, lots)
    found, wanted = found[ours], wanted[theirs]
    starts = np.searchsorted(wanted, found, "left")
    # The k-th of equal records is the k-th of its equals on the other side.
    place = starts + np.arange(len(found)) - np.searchsorted(found, found, "left")
    is_matched = place < np.searchsorted(wanted, found, "right")
    origin_of = np.full(len(ours), -1, np.int64)
    origin_of[ours[is_matched]] = theirs[place[is_matched]]
    origins = origin_of[origin_of >= 0]
    return Origins(
        order=rank(origins),
        file_sizes=np.bincount(inputs.files[origins], minlength=file_count).tolist(),
        share=0.5**level,
        missing=len(theirs) - len(origins),
        extra=len(ours) - len(origins),
        twins=count_twins(found),
    )


def sort_with_lots(values: NDArray[np.int64 | np.uint64], lots: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices that sort values, equal ones in random order."""
    return np.lexsort((lots.random(len(values)), values))


def rank(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of the values, all different, are smaller than each.

    >>> rank(np.array([7, 0, 5]))
    array([2, 0, 1])
    """
    return invert(np.argsort(values))


def invert(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the permutation that undoes one.

    >>> invert(np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    inverse = np.empty(len(permutation), np.int64)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def count_twins(values: NDArray[np.uint64]) -> int:
    """Return how many of the values, sorted, have an equal.

    >>> count_twins(np.array([1, 2, 2, 3, 3, 3]))
    5
    """
    same = values[1:] == values[:-1]
    return int(np.count_nonzero(np.append(same, False) | np.insert(same, 0, False)))
