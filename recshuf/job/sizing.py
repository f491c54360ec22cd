"""Sizes of piles, regions, pile sets and blocks, and the least memory for which there is a plan. Pure, as the planner is.

Must not import pyarrow, which other modules of reading do: allocators are chosen after a job is made.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from recshuf.errors import InputError, MemoryLimitError
from recshuf.records.keys import MAX_PILES
from recshuf.system.memory import BASE_BYTES
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.job.plan import Limits


T = TypeVar("T")


def count_whole(memory_bytes: int, processes: int) -> int:
    """Return the memory limit of a run of which each process has this one, beside what it takes itself; 0 is this process alone."""
    return round_up(processes * (memory_bytes + BASE_BYTES)) if processes else memory_bytes


class Reading(NamedTuple):
    """How inputs are read."""

    workers: int
    block_bytes: int
    max_record_bytes: int


class TooLittle(Exception):  # noqa: N818 - becomes an error of a user
    """A step, named by the argument, does not fit the memory limit."""


def fit(plan: Callable[[Limits], T], limits: Limits) -> T:
    """Return a plan; if it raises `TooLittle`, raise an error with the least memory for which it does not."""
    try:
        return plan(limits)
    except TooLittle as error:
        what = str(error)

    def fits(memory_bytes: int) -> bool:
        nonlocal what
        try:
            plan(replace(limits, memory_bytes=memory_bytes))
        except TooLittle as error:
            what = str(error)
            return False
        return True

    least = find_least(fits, limits.memory_bytes)
    needed, given = (
        format_size(count_whole(size, limits.processes)) for size in (least, limits.memory_bytes)
    )
    remedy = " or lower --workers" if limits.processes > 1 else ""
    found = MemoryLimitError(
        f"{what} needs at least {needed} of memory, and the limit is {given}; raise --memory{remedy}"
    )
    found.least_bytes = least
    raise found


def find_least(fits: Callable[[int], bool], too_little: int) -> int:
    """Return the least size that fits, of those that `format_size` shows as they are.

    Not by bisection: at some sizes more is reserved, and what fitted just below does not.

    >>> find_least(lambda size: size >= 123_456_789, 1_000_000)
    124000000
    """
    enough = too_little
    while not fits(enough):
        too_little, enough = enough, round_up(enough + enough // 64)
    least = round_up(too_little + 1)
    while not fits(least):
        least = round_up(least + 1)
    return least


@contextmanager
def naming_memory(
    memory_bytes: int, max_record_bytes: int, find_longest: Callable[[int], int]
) -> Iterator[None]:
    """Name the memory with which a record can be read that is too long for a memory limit.

    `max_record_bytes` are allowed, whatever the memory; `find_longest` returns the bytes of the longest record under a limit.
    """
    try:
        yield
    except InputError as error:
        remedy, size = error.remedy or "", min(error.record_bytes, max_record_bytes)
        if not size or "raise --memory" not in remedy:
            raise
        least = find_least(lambda tried: find_longest(tried) >= size, memory_bytes)
        remedy = remedy.replace("raise --memory", f"raise --memory to {format_size(least)} or more")
        if size < error.record_bytes:
            remedy += ", and --max-record-bytes"
        raise InputError(error.name, error.problem, place=error.place, remedy=remedy) from error


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
REGION_BYTES = 512 << 10
"""Smaller regions take longer to find than to read."""
OBJECT_REGION_BYTES = 2 << 20
"""The same for sets in an object store, where each read is a request."""
RANGE_BYTES = 4 << 20
"""Least size of a region in a kept store in a bucket. A request takes 50 ms, and each MB about 10 ms."""
_OBJECT_SETS, _MOST_OBJECT_SETS = 5, 16
"""A group of a loader is a region of each set, all of which must be there before its first batch. Only where there are as many
piles as there may be do more sets not make it larger."""
MAX_SETS = 64
MAX_PLANNED_PILES = 8192
"""With more piles, slices are so short that writing them costs more than splitting piles later."""
_STREAM_BYTES = 1 << 33
"""For inputs of unknown size: up to so many bytes, piles are not split."""
LEAST_STREAM_PILES, MOST_STREAM_PILES = 512, 1024
UNEVEN = 1.25
"""Factor by which a pile may exceed its expected size before it is split."""


def choose_spilled_bytes(byte_count: int) -> int:
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


def choose_set_bytes(
    byte_count: int, region_count: int, most_sets: int = MAX_SETS, *, are_objects: bool = False
) -> int:
    """Return the least size of a pile set: its regions are large enough, and there are not too many sets."""
    region_bytes = OBJECT_REGION_BYTES if are_objects else REGION_BYTES
    return max(region_count * region_bytes, -(-byte_count // most_sets))


def divide_kept(byte_count: int | None, *, are_objects: bool) -> int:
    """Return the size of the piles of a new kept store; in a bucket, a region of one set is worth a request.

    >>> [divide_kept(size, are_objects=True) // RANGE_BYTES for size in (10**7, 10**9, 10**12)]
    [1, 5, 16]
    """
    if byte_count is None or not are_objects:
        return SPILLED_PILE_BYTES
    sets = max(_OBJECT_SETS, min(_MOST_OBJECT_SETS, byte_count // (MAX_PLANNED_PILES * RANGE_BYTES)))
    return RANGE_BYTES * max(1, min(sets, math.isqrt(byte_count // RANGE_BYTES)))


def choose_kept_set_bytes(byte_count: int, pile_count: int, *, are_objects: bool) -> int:
    """Return the least size of a set of a kept store."""
    if are_objects:
        return max(pile_count * RANGE_BYTES, -(-byte_count // _MOST_OBJECT_SETS))
    return choose_set_bytes(byte_count, pile_count)


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


PREFIX_BYTES = 16 << 20
"""Of records from which a decoder may infer the schema, at least."""
SMALLEST_BLOCK = 1 << 20
STAYING_SHARE = 0.6
"""Share of the memory limit for reading, if records may stay in memory."""


def halve_blocks(largest: int) -> list[int]:
    """Return `largest`, half of it, and so on to the smallest block.

    >>> halve_blocks(4 << 20) == [4 << 20, 2 << 20, 1 << 20]
    True
    """
    return [largest >> power for power in range((largest // SMALLEST_BLOCK).bit_length())]


def choose_reading(
    worker_bytes: Callable[[int], int],
    limits: Limits,
    blocks: Sequence[int],
    share: float,
    least_shared_block: int,
    what: str,
    record_copies: int = 12,
) -> Reading:
    """Return how to read inputs within a share of memory: by as many workers as fit, then with the largest blocks.

    Parameters
    ----------
    worker_bytes
        Memory of one worker, by block size.
    blocks
        Block sizes, descending. One worker with the last size may take all memory.
    least_shared_block
        Least block size with several workers.
    what
        Names the step when it raises `TooLittle`.
    record_copies
        How often the memory beside blocks holds the longest record. Default: 12, which suits a shuffle.
    """
    room_bytes = limits.room_bytes
    for workers in range(limits.workers, 0, -1):
        for block in (size for size in blocks if workers == 1 or size >= least_shared_block):
            needed = workers * worker_bytes(block)
            is_least = workers == 1 and block == blocks[-1]
            if needed <= (room_bytes if is_least else share * room_bytes):
                # Several threads can hold copies of such a record beside their blocks. Measured at 300 MB and two
                # workers: records of 15 MB stay within the limit, of 30 MB exceed it by 90 MB.
                longest = max(block, (room_bytes - needed) // record_copies)
                return Reading(workers, block, min(limits.max_record_bytes, longest))
    raise TooLittle(what)
