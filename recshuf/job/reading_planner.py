"""Chooses how many workers read inputs, and in blocks of which size. Pure, as the planner is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.job.least_memory import TooLittle, fit
from recshuf.records.reading.reading_plan import ReadingPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.job.plan import Limits

SMALLEST_BLOCK = 1 << 20
STAYING_SHARE = 0.6
"""Share of the memory limit for reading, if records may stay in memory."""


def halve_blocks(largest: int) -> list[int]:
    """Return `largest`, half of it, and so on to the smallest block.

    >>> halve_blocks(4 << 20) == [4 << 20, 2 << 20, 1 << 20]
    True
    """
    return [largest >> power for power in range((largest // SMALLEST_BLOCK).bit_length())]


def plan_reading(
    worker_bytes: Callable[[int], int],
    limits: Limits,
    blocks: Sequence[int],
    share: float = STAYING_SHARE,
    least_shared_block: int = 0,
    record_copies: int = 12,
) -> ReadingPlan:
    """Return a plan for reading inputs within a share of memory: as many workers as fit, then the largest blocks.

    Parameters
    ----------
    worker_bytes
        Memory of one worker, by block size.
    blocks
        Block sizes, descending. One worker with the last size may take all memory.
    least_shared_block
        Least block size with several workers.
    record_copies
        How often the memory beside blocks holds the longest record. Default: 12, which suits a shuffle.

    Raises
    ------
    MemoryLimitError
        When not even one worker with the smallest blocks fits.
    """
    return fit(
        lambda given: choose_reading(
            worker_bytes, given, blocks, share, least_shared_block, "reading", record_copies
        ),
        limits,
    )


def choose_reading(
    worker_bytes: Callable[[int], int],
    limits: Limits,
    blocks: Sequence[int],
    share: float,
    least_shared_block: int,
    what: str,
    record_copies: int = 12,
) -> ReadingPlan:
    """Do what `plan_reading` does; `what` names the step when it raises `TooLittle`."""
    room_bytes = limits.room_bytes
    for workers in range(limits.workers, 0, -1):
        for block in (size for size in blocks if workers == 1 or size >= least_shared_block):
            needed = workers * worker_bytes(block)
            is_least = workers == 1 and block == blocks[-1]
            if needed <= (room_bytes if is_least else share * room_bytes):
                # Several threads can hold copies of such a record beside their blocks. Measured at 300 MB and two
                # workers: records of 15 MB stay within the limit, of 30 MB exceed it by 90 MB.
                longest = max(block, (room_bytes - needed) // record_copies)
                return ReadingPlan(workers, block, min(limits.max_record_bytes, longest))
    raise TooLittle(what)
