"""How verify reads inputs inside the memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import MemoryLimitError
from recshuf.memory import format_size
from recshuf.reading import ReadingPlan

if TYPE_CHECKING:
    from recshuf.interfaces import Source

LARGEST_BLOCK = 8 << 20
SMALLEST_BLOCK = 1 << 20
_HASHING_BYTES = 12 << 20
"""What hashing takes in each thread beside the batch."""


def plan_reading(
    source: Source, workers: int, memory_bytes: int, max_record_bytes: int, decoding_factor: float
) -> ReadingPlan:
    """Return the plan of reading a source: large blocks first, then many workers.

    Parameters
    ----------
    decoding_factor
        Memory of decoding a batch, as a multiple of the batch.

    Raises
    ------
    MemoryLimitError
        When not even one worker with the smallest blocks fits.
    """
    share, needed = 0.6 * memory_bytes, 0
    for count in range(workers, 0, -1):
        block = LARGEST_BLOCK
        while block >= SMALLEST_BLOCK:
            one = source.reading_bytes(block) + int(block * (1 + decoding_factor)) + _HASHING_BYTES
            needed = count * one
            if needed <= share or (count == 1 and block == SMALLEST_BLOCK and needed <= memory_bytes):
                longest = max(block, (memory_bytes - needed) // 12)
                return ReadingPlan(count, block, min(max_record_bytes, longest))
            block //= 2
    raise MemoryLimitError(
        f"reading needs at least {format_size(needed)} of memory, and the limit is "
        f"{format_size(memory_bytes)}; raise --memory"
    )
