"""How records are divided into piles, regions and pile sets. Imports nothing heavy: a job is made before the allocators are chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

SPILL_COMPRESSIONS = ("none", "lz4", "zstd")
"""How spilled records may be compressed; pile sets hold the index of theirs."""


@dataclass(frozen=True, slots=True)
class PileLayout:
    """How an earlier run divided its records, which a run that goes on from it must keep."""

    pile_count: int
    region_piles: int
    set_of_input: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The numbers by which a pile store keeps its records."""

    pile_count: int
    set_sizes: tuple[float | None, ...]
    """Records expected in each pile set; None where nothing is known."""
    resident_bytes: int
    """Most that the piles in memory may hold."""
    output_count: int | None = None
    """Records that are wanted at all, those of the smallest keys; None for all."""
    region_piles: int = 1
    """How many piles share a region of a pile set."""
    compression: str = "none"
    """How spilled slices are compressed, one of `SPILL_COMPRESSIONS`."""
    keeps_sets: bool = False
    """Whether complete sets are sealed under a name, for a later run to adopt."""


def region_bytes(record_count: float, mean_bytes: float, mean_square_bytes: float) -> int:
    """Return the bytes to set aside for the records that fall into one region, 6 sigma above the mean.

    `record_count` is the mean number s of records in the region, itself nearly Poisson, so that the bytes
    are a compound Poisson sum of mean ``s E[b]`` and variance ``s E[b^2]``. For records of one byte this is
    ``s + 6 sqrt(s)``.

    >>> region_bytes(100, 1, 1)
    160
    """
    return math.ceil(record_count * mean_bytes + 6 * math.sqrt(record_count * mean_square_bytes))
