"""Sizes and numbers of piles, regions and pile sets. Pure: integers in, integers out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.records.keys import MAX_PILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CACHE_PILE_BYTES = 4 << 20
"""Size of a pile in memory. It fits the processor's cache: smaller piles cost more calls, larger ones more cache misses."""
SPILLED_PILE_BYTES = 8 << 20
"""Least size of a pile on disk. The regions of a few sets are then read in pieces of 0.5 MB or more."""
MOST_SPILLED_PILE_BYTES = 32 << 20
SPILLED_PILES, MOST_SPILLED_PILES = 128, 512
"""Numbers of piles on disk. With fewer piles, a block adds longer slices, each of which costs a call. Above 32 MB per
pile, that saves less than touching new memory costs."""
_LEAST_CONVERTED_PILE_BYTES = 2 << 20
"""Size to which a pile on disk may shrink if it is converted."""
SHARED_BYTES = 4 << 20
LEAST_SHARED_REGIONS = 128
"""Smaller piles on disk share a region up to this size, unless there are few. A block then adds one slice to the region
instead of several short ones, and the piles are loaded together."""
REGION_BYTES = 512 << 10
"""Smaller regions take longer to find than to read."""
OBJECT_REGION_BYTES = 2 << 20
"""The same for sets in an object store, where each read is a request."""
MAX_SETS = 64
MAX_PLANNED_PILES = 8192
"""With more piles, slices are so short that writing them costs more than splitting piles later."""
_STREAM_BYTES = 1 << 33
"""For inputs of unknown size: up to so many bytes, piles are not split."""
LEAST_STREAM_PILES, MOST_STREAM_PILES = 512, 1024

UNEVEN = 1.25
"""Factor by which a pile may exceed its expected size before it is split."""


def choose_spilled_bytes(byte_count: int) -> int:
    """Return the size of piles on disk."""
    several = min(byte_count // SPILLED_PILES, MOST_SPILLED_PILE_BYTES)
    return max(SPILLED_PILE_BYTES, several, byte_count // MOST_SPILLED_PILES)


def limit_converted(byte_count: int, most_bytes: int) -> int:
    """Return the size limit of a converted pile, so that many can wait while a sink writes.

    `most_bytes` leaves as much memory for them as the sink takes.
    """
    return max(_LEAST_CONVERTED_PILE_BYTES, most_bytes, byte_count // MOST_SPILLED_PILES)


def count_piles(byte_count: int | None, pile_bytes: int) -> int:
    """Return the number of piles; `byte_count` is None for inputs of unknown size."""
    if byte_count is None:
        return max(LEAST_STREAM_PILES, min(MOST_STREAM_PILES, _STREAM_BYTES // pile_bytes))
    return max(1, min(MAX_PLANNED_PILES, MAX_PILES, -(-byte_count // pile_bytes)))


def share_regions(byte_count: int | None, pile_count: int, most_bytes: int) -> int:
    """Return how many piles share a region; a region is no larger than a pile that is not split."""
    if not byte_count:
        return 1
    fitting = int(min(SHARED_BYTES, most_bytes / UNEVEN) * pile_count / byte_count)
    return max(1, min(fitting, pile_count // LEAST_SHARED_REGIONS))


def choose_set_bytes(
    byte_count: int, region_count: int, most_sets: int = MAX_SETS, *, are_objects: bool = False
) -> int:
    """Return the least size of a pile set: its regions are large enough, and there are not too many sets.

    Parameters
    ----------
    are_objects
        Whether the sets lie in an object store.
    """
    region_bytes = OBJECT_REGION_BYTES if are_objects else REGION_BYTES
    return max(region_count * region_bytes, -(-byte_count // most_sets))


def assign_sets(
    byte_counts: Sequence[int] | NDArray[np.int64], set_bytes: int, most_sets: int = MAX_SETS
) -> tuple[int, ...]:
    """Return the pile set of each input: consecutive inputs share one until it has so many bytes."""
    if not len(byte_counts):
        return ()
    ends = np.cumsum(byte_counts, dtype=np.int64)
    starts, filled = [0], 0
    while len(starts) < most_sets:
        last = int(np.searchsorted(ends, filled + set_bytes))
        if last + 1 >= len(ends):
            break
        starts.append(last + 1)
        filled = int(ends[last])
    sizes = np.diff([*starts, len(ends)])
    return tuple(np.repeat(np.arange(len(starts)), sizes).tolist())
