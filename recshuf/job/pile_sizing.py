"""How large piles, their regions and pile sets are, and how many. Pure: integers in, integers out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.records.keys import MAX_PILES

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE_PILE_BYTES = 4 << 20
"""A pile that the processor's cache holds: in memory, smaller piles cost more calls, larger ones more misses."""
SPILLED_PILE_BYTES = 8 << 20
"""A pile on disk: large enough that the regions of a few sets are read in pieces of 0.5 MB and more."""
MOST_SPILLED_PILE_BYTES = 32 << 20
SPILLED_PILES, MOST_SPILLED_PILES = 128, 512
"""Piles on disk, where memory allows larger ones: the fewer, the longer is what a block adds to each, which costs a call
each time. Beyond 32 MB that is worth less than memory that is touched first."""
LEAST_CONVERTED_PILE_BYTES = 2 << 20
"""A pile on disk that is converted need not be larger, even if a few more calls come with it."""
SHARED_BYTES = 4 << 20
LEAST_SHARED_REGIONS = 128
"""Piles on disk that are smaller share a region up to this size, unless there are few of them: what a block adds to it is
one slice then, not several short ones, and they are loaded together."""
REGION_BYTES = 512 << 10
"""A region smaller than this costs more to find than to read."""
MAX_SETS = 64
MAX_PLANNED_PILES = 8192
"""With more, a block's slices get so short that writing them costs more than splitting piles later."""
STREAM_BYTES = 1 << 33
"""Inputs of unknown size: so much of them is not split, or more."""
LEAST_STREAM_PILES, MOST_STREAM_PILES = 512, 1024

UNEVEN = 1.25
"""How much larger than expected a pile may come out, and is not split."""


def choose_spilled_bytes(byte_count: int) -> int:
    """Return how large piles on disk should be."""
    several = min(byte_count // SPILLED_PILES, MOST_SPILLED_PILE_BYTES)
    return max(SPILLED_PILE_BYTES, several, byte_count // MOST_SPILLED_PILES)


def limit_converted(byte_count: int, most_bytes: int) -> int:
    """Return how large a pile that is converted may be, so that many can wait while a sink writes.

    `most_bytes` is what leaves memory for as much as the sink takes.
    """
    return max(LEAST_CONVERTED_PILE_BYTES, most_bytes, byte_count // MOST_SPILLED_PILES)


def count_piles(byte_count: int | None, pile_bytes: int) -> int:
    """Return how many piles of a size there are; None stands for inputs of unknown size."""
    if byte_count is None:
        return max(LEAST_STREAM_PILES, min(MOST_STREAM_PILES, STREAM_BYTES // pile_bytes))
    return max(1, min(MAX_PLANNED_PILES, MAX_PILES, -(-byte_count // pile_bytes)))


def share_regions(byte_count: int | None, pile_count: int, most_bytes: int) -> int:
    """Return how many piles share a region, which is no larger than a pile may be that is not split."""
    if not byte_count:
        return 1
    fitting = int(min(SHARED_BYTES, most_bytes / UNEVEN) * pile_count / byte_count)
    return max(1, min(fitting, pile_count // LEAST_SHARED_REGIONS))


def assign_sets(byte_counts: Sequence[int], region_count: int) -> tuple[int, ...]:
    """Return the pile set of each input: consecutive inputs share one until its regions are large enough."""
    total = sum(byte_counts)
    set_bytes = max(region_count * REGION_BYTES, -(-total // MAX_SETS))
    sets, filled, current = [], 0, 0
    for byte_count in byte_counts:
        if filled >= set_bytes and current < MAX_SETS - 1:
            current, filled = current + 1, 0
        sets.append(current)
        filled += byte_count
    return tuple(sets)
