"""The plan: every number of a run, decided before a byte moves. Pure: integers in, integers out.

Memory of the two passes, each at most `Limits.room_bytes`:

    scatter:  workers * (reading a fragment + block * GROUPING)      + what piles stay resident
    gather:   writers * sink + piles in flight * pile * ORDERING     + what piles stay resident
              + piles ready beside them * pile * WAITING             (piles more, where they are decoded)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import MemoryLimitError
from recshuf.memory import format_size
from recshuf.pile_sizes import (
    CACHE_PILE_BYTES,
    MAX_PLANNED_PILES,
    MOST_SPILLED_PILE_BYTES,
    UNEVEN,
    assign_sets,
    choose_spilled_bytes,
    count_piles,
    limit_converted,
    share_regions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MB = 10**6

LARGEST_BLOCK = 32 << 20
SMALLEST_BLOCK = 1 << 20
SLICE_BYTES = 32 << 10
"""What a block adds to a region on disk should have, even if the block has to be larger for it: of 16 KiB, the calls that
write and read it cost as much as the bytes."""
SMALLEST_PILE = 1 << 20
GROUPING = 2.0
"""Memory of grouping a batch by pile, as a multiple of the batch: the copy in pile order, keys and indices."""
ORDERING = 2.75
"""Memory of ordering a pile, as a multiple of the pile: as loaded, as taken, keys, lengths and indices."""
WAITING = 1.25
"""Memory of a pile that was ordered, as a multiple of the pile."""
STAYING_SHARE, SPILLING_SHARE = 0.6, 0.8
"""What the scatter may take of the memory limit where piles may stay there, and where none does: the larger the blocks,
the fewer and longer the slices that are written."""
INPUT_BYTES = 4 << 10
"""Memory of what is kept of each input to the end, be it as small as it may: names, place, counts and stamps."""
MISJUDGED = 1.25
"""How many times as much as expected to fit into memory may fit after all."""
RESERVED_DESCRIPTORS = 40
SPILL_COMPRESSIONS = ("none", "lz4", "zstd")
"""How spilled records may be compressed; pile sets name one by its place here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use."""

    memory_bytes: int
    workers: int
    max_record_bytes: int
    pile_count: int | None = None
    """A pile count that the user insists on."""
    spill_compression: str = "none"
    """How spilled records are compressed, one of `SPILL_COMPRESSIONS`."""
    input_count: int = 0
    """Inputs of which something is kept to the end; `make_plan` counts them."""

    @property
    def taken_bytes(self) -> int:
        """What is kept of the inputs, bounded so that a small limit does not refuse thousands that it can hold."""
        return min(INPUT_BYTES * self.input_count, self.memory_bytes // 4)

    @property
    def room_bytes(self) -> int:
        """What is left for the passes."""
        return self.memory_bytes - self.taken_bytes


class InputSize(NamedTuple):
    """What the census tells the plan of one input; None where it is unknown."""

    record_count: int | None
    byte_count: int | None
    """Size of its records as slices, keys included."""
    file_bytes: int | None
    is_exact: bool = True
    """Whether `record_count` is counted and not estimated."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the formats say of their memory: functions of the block size and of the threads of a sink."""

    reading_bytes: Callable[[int], int]
    sink_bytes: Callable[[int], int]
    decoding_factor: float = 1.0
    """Size of a batch after conversion, as a multiple of its native size; 1 where nothing is converted."""
    place_bytes: int = 0
    """What travels beside each record to tell where it was read."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the output is cut into shards; exactly one of the fields is set."""

    shards: int | None = None
    shard_records: int | None = None
    shard_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PileLayout:
    """How an earlier run divided its records, which a run that goes on from it must keep."""

    pile_count: int
    region_piles: int
    set_of_input: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Every number of a run."""

    record_count: int | None
    """Records expected; None for streams."""
    record_count_is_exact: bool
    byte_count: int | None
    """Bytes of their slices expected."""
    output_count: int | None
    """Records that will be written at most (``--head-count``); None for all."""
    pile_count: int
    pile_bytes: int
    """Size above which a pile is split."""
    region_piles: int
    """How many piles share a region of a pile set on disk; 1 unless they are small."""
    set_of_input: tuple[int, ...]
    """The pile set that each input's records go to."""
    block_bytes: int
    max_record_bytes: int
    scatter_workers: int
    gather_workers: int
    shard_writers: int
    sink_threads: int
    units_in_flight: int
    """Piles being loaded, ordered or waiting to be written, for each shard writer."""
    resident_bytes: int
    """Piles kept in memory, at most; none where they are not expected to fit."""
    spilled_bytes: int
    """Expected on disk between the passes, before compression."""
    peak_memory_bytes: int
    """Expected at most, beside the interpreter and its libraries."""
    peak_disk_bytes: int
    """Expected at most beside the inputs: spilled piles and output; the output is taken to be as large as the
    inputs' files or, where their size is unknown, as their records."""
    descriptors: int
    shard_count: int | None
    """None where it depends on a number of records that is not yet known."""
    spill_compression: str = "none"
    """How spilled records are compressed; how well is not known, so no other number depends on it."""
    place_bytes: int = 0
    """Bytes of `byte_count` for each record that tell where it was read."""

    @property
    def set_count(self) -> int:
        """Number of pile sets."""
        return max(self.set_of_input, default=0) + 1

    def inputs_of(self, set_index: int) -> list[int]:
        """Return the inputs whose records go to a pile set."""
        return [index for index, one in enumerate(self.set_of_input) if one == set_index]

    def to_json(self) -> dict[str, object]:
        """Return the plan as JSON values."""
        return asdict(self) | {"set_of_input": list(self.set_of_input), "set_count": self.set_count}


def make_plan(
    inputs: Sequence[InputSize],
    limits: Limits,
    costs: Costs,
    cut: Cut,
    output_count: int | None = None,
    piles: PileLayout | None = None,
) -> Plan:
    """Return the plan of a run, with the `piles` of an earlier one if it goes on from there.

    Raises
    ------
    MemoryLimitError
        When not even one worker with the smallest blocks and piles fits the limit.
    """
    limits = replace(limits, input_count=len(inputs))
    record_count = _sum_known([size.record_count for size in inputs])
    byte_count = _sum_known([size.byte_count for size in inputs])
    kept_bytes = _expect_kept(byte_count, record_count, output_count)
    shard_count = count_shards(cut, _least(record_count, output_count), _output_bytes(inputs))
    writers, threads, in_flight, pile_share, sink_bytes = _fit_gather(limits, costs, shard_count)
    given_count = piles.pile_count if piles else limits.pile_count
    spilled_pile_bytes = min(int(pile_share / UNEVEN), choose_spilled_bytes(byte_count or 0))
    if costs.decoding_factor > 1 and writers < limits.workers:
        waiting_room = limits.room_bytes - _spare(limits) - 2 * writers * sink_bytes
        most_bytes = int(waiting_room / (writers * in_flight * _ordering_factor(costs)))
        spilled_pile_bytes = min(spilled_pile_bytes, limit_converted(byte_count or 0, most_bytes))
    spilled_count = given_count or count_piles(byte_count, spilled_pile_bytes)
    region_piles = (
        piles.region_piles if piles else share_regions(byte_count, spilled_count, spilled_pile_bytes)
    )
    region_count = -(-spilled_count // region_piles)
    scatter_workers, block_bytes, scatter_bytes = _choose_scatter(limits, costs, kept_bytes, region_count)
    fits = kept_bytes is not None and kept_bytes <= limits.room_bytes - _spare(limits) - max(
        scatter_bytes, _gather_bytes(writers, in_flight, min(CACHE_PILE_BYTES, pile_share), sink_bytes, costs)
    )
    # Some come out larger than planned, and what is larger than the share is split.
    pile_bytes = min(int(pile_share / UNEVEN), CACHE_PILE_BYTES) if fits else spilled_pile_bytes
    if byte_count is None and not given_count:
        # As large as makes no difference to what may stay in memory.
        free_bytes = int((scatter_bytes // writers - sink_bytes) / (in_flight * _ordering_factor(costs)))
        pile_bytes = max(pile_bytes, min(int(pile_share / UNEVEN), MOST_SPILLED_PILE_BYTES, free_bytes))
    pile_count = given_count or count_piles(byte_count, pile_bytes)
    if byte_count is not None:
        # Piles that come out larger than planned, for want of a larger count, are not split if they fit.
        pile_bytes = min(pile_share, max(pile_bytes, math.ceil(UNEVEN * byte_count / pile_count)))
    gather_bytes = _gather_bytes(writers, in_flight, pile_bytes, sink_bytes, costs)
    # Piles of unknown size may fit into all that is left.
    staying = limits.room_bytes if kept_bytes is None else kept_bytes if fits else 0
    room = max(limits.room_bytes - _spare(limits) - staying, scatter_bytes) - gather_bytes
    ahead = _count_ahead(room // writers, pile_bytes, sink_bytes, costs)
    gather_bytes += writers * int(ahead * pile_bytes * WAITING * costs.decoding_factor)
    resident_bytes = max(0, limits.room_bytes - max(scatter_bytes, gather_bytes) - _spare(limits))
    if kept_bytes is not None and kept_bytes > MISJUDGED * resident_bytes:
        resident_bytes = 0
    spilled_bytes = max(0, (kept_bytes or 0) - resident_bytes)
    same_inputs = piles is not None and len(piles.set_of_input) == len(inputs)
    set_of_input = (
        piles.set_of_input
        if piles and same_inputs
        else assign_sets([size.byte_count or 0 for size in inputs], pile_count // region_piles)
    )
    output_bytes = _output_bytes(inputs) or 0
    return Plan(
        record_count=record_count,
        record_count_is_exact=record_count is not None and all(size.is_exact for size in inputs),
        byte_count=byte_count,
        output_count=output_count,
        pile_count=pile_count,
        pile_bytes=pile_bytes,
        region_piles=region_piles,
        set_of_input=set_of_input,
        block_bytes=block_bytes,
        max_record_bytes=min(limits.max_record_bytes, _longest_record(limits, scatter_bytes, block_bytes)),
        scatter_workers=scatter_workers,
        gather_workers=limits.workers,
        shard_writers=writers,
        sink_threads=threads,
        units_in_flight=in_flight + ahead,
        resident_bytes=resident_bytes,
        spilled_bytes=spilled_bytes,
        peak_memory_bytes=max(scatter_bytes, gather_bytes)
        + min(resident_bytes, kept_bytes or resident_bytes)
        + limits.taken_bytes,
        peak_disk_bytes=spilled_bytes + output_bytes,
        descriptors=max(set_of_input, default=0) + 1 + scatter_workers + writers + RESERVED_DESCRIPTORS,
        shard_count=shard_count,
        spill_compression=limits.spill_compression,
        place_bytes=costs.place_bytes,
    )


def count_shards(cut: Cut, record_count: int | None, output_bytes: int | None) -> int | None:
    """Return the number of shards; None where it depends on a number that is None.

    >>> count_shards(Cut(shard_records=10), 21, None)
    3
    """
    if cut.shards is not None:
        return cut.shards
    if cut.shard_records is not None:
        return None if record_count is None else max(1, -(-record_count // cut.shard_records))
    if cut.shard_bytes is None:
        raise ValueError("a cut needs one of its fields")
    return None if output_bytes is None else max(1, -(-output_bytes // cut.shard_bytes))


def shard_bounds(cut: Cut, record_count: int, output_bytes: int) -> list[int]:
    """Return the first record of each shard in the shuffled order, and the number of records at the end.

    >>> shard_bounds(Cut(shards=3), 10, 0), shard_bounds(Cut(shard_records=4), 10, 0)
    ([0, 4, 7, 10], [0, 4, 8, 10])
    """
    shards = count_shards(cut, record_count, output_bytes) or 1
    if cut.shard_records is not None:
        return [*range(0, max(1, record_count), cut.shard_records), record_count]
    share, longer = divmod(record_count, shards)
    return [shard * share + min(shard, longer) for shard in range(shards + 1)]


def _choose_scatter(
    limits: Limits, costs: Costs, kept_bytes: int | None, region_count: int
) -> tuple[int, int, int]:
    """Return the workers, block size and memory of the scatter, which takes more where no piles are to stay.

    `region_count` is how many regions of piles there are then.
    """
    if kept_bytes is None:
        return _fit_scatter(limits, costs, STAYING_SHARE, _list_blocks(LARGEST_BLOCK))
    halves = [LARGEST_BLOCK >> power for power in range(LARGEST_BLOCK.bit_length())]
    chosen = _fit_scatter(limits, costs, STAYING_SHARE, halves)
    if kept_bytes <= MISJUDGED * (limits.room_bytes - _spare(limits) - chosen[2]):
        return chosen
    largest = max(LARGEST_BLOCK, min(region_count, MAX_PLANNED_PILES) * SLICE_BYTES)
    return _fit_scatter(limits, costs, SPILLING_SHARE, _list_blocks(largest))


def _list_blocks(largest: int) -> range:
    return range(largest // SMALLEST_BLOCK * SMALLEST_BLOCK, 0, -SMALLEST_BLOCK)


def _fit_scatter(limits: Limits, costs: Costs, share: float, blocks: Sequence[int]) -> tuple[int, int, int]:
    """Return workers, block size and memory of the scatter, at most a share of all: large blocks first, then many workers.

    `blocks` are the sizes to choose from, descending to the smallest; none below that is taken.
    """
    most_bytes = share * limits.room_bytes
    for workers in range(limits.workers, 0, -1):
        # With few workers left, small blocks cost more than idle cores.
        smallest = SMALLEST_BLOCK if workers == 1 else 4 * SMALLEST_BLOCK
        for block in takewhile(smallest.__le__, blocks):
            needed = workers * (costs.reading_bytes(block) + int(GROUPING * block))
            if needed <= most_bytes or (
                workers == 1 and block == SMALLEST_BLOCK and needed <= limits.room_bytes
            ):
                return workers, block, needed
    needed = costs.reading_bytes(SMALLEST_BLOCK) + int(GROUPING * SMALLEST_BLOCK)
    raise _too_small("reading the inputs", needed, limits)


def _fit_gather(limits: Limits, costs: Costs, shard_count: int | None) -> tuple[int, int, int, int, int]:
    """Return writers, threads and units in flight of each, the largest pile, and the memory of one sink."""
    most = min(limits.workers, shard_count or limits.workers)
    choices = [(writers, limits.workers // writers) for writers in range(most, 0, -1)]
    choices += [(1, threads) for threads in range(limits.workers - 1, 0, -1)]
    for writers, threads in choices:
        in_flight = limits.workers + 1 if writers == 1 else 2
        sink_bytes = costs.sink_bytes(threads)
        rest = limits.room_bytes - writers * sink_bytes
        pile_share = int(rest / (writers * in_flight * _ordering_factor(costs)))
        # More of either is not worth piles so small.
        if pile_share >= (SMALLEST_PILE if writers == threads == 1 else 4 * SMALLEST_PILE):
            return writers, threads, in_flight, pile_share, sink_bytes
    needed = costs.sink_bytes(1) + int((limits.workers + 1) * _ordering_factor(costs) * SMALLEST_PILE)
    raise _too_small("writing a shard", needed, limits)


def _gather_bytes(writers: int, in_flight: int, pile_bytes: int, sink_bytes: int, costs: Costs) -> int:
    return writers * (sink_bytes + int(in_flight * pile_bytes * _ordering_factor(costs)))


def _ordering_factor(costs: Costs) -> float:
    """Return the memory of ordering a pile, and of decoding it, as a multiple of the pile.

    A decoded pile leaves as much again behind for a moment: at 256 MB, two workers and JSONL to Parquet took 360 to 422 MB
    when that was not counted.
    """
    decoding = costs.decoding_factor
    return ORDERING * (2 * decoding if decoding > 1 else decoding)


def _count_ahead(room: int, pile_bytes: int, sink_bytes: int, costs: Costs) -> int:
    """Return how many more piles to have ready for a sink: what takes about as much memory as the sink does.

    It takes none while it writes what it holds, a row group maybe, and then as many as that needs.
    """
    return max(0, min(sink_bytes, room) // int(pile_bytes * WAITING * costs.decoding_factor))


def _too_small(what: str, needed: int, limits: Limits) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what} needs at least {format_size(needed + limits.taken_bytes)} of memory, and the limit is "
        f"{format_size(limits.memory_bytes)}; raise --memory"
    )


def _spare(limits: Limits) -> int:
    """Return what no pass plans with: room for copies of long records."""
    return limits.room_bytes // 5


def _longest_record(limits: Limits, scatter_bytes: int, block_bytes: int) -> int:
    """Return the longest record that several threads can each hold copies of, beside their ordinary load.

    Measured at 300 MB and two workers: records of 15 MB stay within the limit, of 30 MB exceed it by 90 MB.
    """
    return max(block_bytes, (limits.room_bytes - scatter_bytes) // 12)


def _expect_kept(byte_count: int | None, record_count: int | None, output_count: int | None) -> int | None:
    """Return the bytes that stay in piles: of a sample of n of N records, n (1 + ln(N / n)) are ever kept.

    The k-th record read is kept if it is among the n smallest keys so far, which has probability n / k.
    """
    if byte_count is None or not record_count or output_count is None or output_count >= record_count:
        return byte_count
    share = max(1, output_count) / record_count
    return math.ceil(byte_count * min(1.0, share * (1 - math.log(share))))


def _output_bytes(inputs: Sequence[InputSize]) -> int | None:
    return _sum_known(
        [size.file_bytes if size.file_bytes is not None else size.byte_count for size in inputs]
    )


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _least(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None
