"""How records are divided into piles, regions and pile sets. Must not import pyarrow: allocators are chosen later."""

from __future__ import annotations

import math

from recshuf.dataclass import dataclass

SPILL_COMPRESSIONS = ("none", "lz4", "zstd")
"""Compressions of spilled records; pile sets store the index, so the order is fixed."""


@dataclass(frozen=True, slots=True)
class PileLayout:
    """How an earlier run divided its records; a run that continues it keeps this."""

    pile_count: int
    region_piles: int
    set_of_input: tuple[int, ...]
    record_counts: tuple[int, ...] | None = None
    """Number of records of each input; None unless the run needs it before it reads them."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The settings of a pile store."""

    pile_count: int
    set_sizes: tuple[float | None, ...]
    """Records expected in each pile set; None if unknown."""
    resident_bytes: int
    """Most bytes of piles in memory."""
    output_count: int | None = None
    """Number of records wanted, those of the smallest keys; None for all."""
    region_piles: int = 1
    """Piles per region of a pile set."""
    compression: str = "none"
    """Compression of spilled slices, one of `SPILL_COMPRESSIONS`."""
    adapts: bool = False
    """Whether it becomes lz4 once threads wait for the disk."""
    set_prefix: str | None = None
    """Beginning of the names of the files in which complete sets are sealed for a later run; None if none are."""
    syncs_sets: bool = False
    """Whether sealed sets are synced to disk, and kept for others."""


def region_bytes(record_count: float, mean_bytes: float, mean_square_bytes: float) -> int:
    """Return the bytes to reserve for the records of one region, 6 sigma above the mean.

    `record_count` is the mean number s of records in the region, itself nearly Poisson, so that the bytes
    are a compound Poisson sum of mean ``s E[b]`` and variance ``s E[b^2]``. For records of one byte this is
    ``s + 6 sqrt(s)``.

    >>> region_bytes(100, 1, 1)
    160
    """
    return math.ceil(record_count * mean_bytes + 6 * math.sqrt(record_count * mean_square_bytes))
