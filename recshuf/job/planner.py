"""Computes the plan, every number of a run, before it starts. Pure: integers in, integers out.

Memory of the two passes, each at most `Limits.room_bytes`:

    scatter:  workers * (reading a fragment + block * _GROUPING)      + resident piles
    gather:   writers * sink + piles in flight * pile * ORDERING     + resident piles
              + further ordered piles * pile * _WAITING               (decoded piles take more)
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from recshuf.job.plan import Costs, Cut, InputSize, InputSizes, Limits, Plan, count_shards
from recshuf.job.sizing import (
    CACHE_PILE_BYTES,
    MAX_PLANNED_PILES,
    MOST_SPILLED_PILE_BYTES,
    SMALLEST_BLOCK,
    STAYING_SHARE,
    UNEVEN,
    Reading,
    TooLittle,
    assign_sets,
    choose_reading,
    choose_set_bytes,
    choose_spilled_bytes,
    count_piles,
    fit,
    halve_blocks,
    limit_converted,
)
from recshuf.records.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import InputSummary
    from recshuf.piles.layout import PileLayout


_LARGEST_BLOCK = 32 << 20
_FEW_BYTES = 256 << 20
"""Up to so much in memory, blocks have half the largest size: more of them are in the processor's cache when they are grouped,
and the allocators have memory for them."""
_SLICE_BYTES = 32 << 10
"""Least size of a slice on disk; blocks are enlarged for it. At 16 KiB, the calls to write and read a slice cost as much
as its bytes."""
_SMALLEST_PILE = 1 << 20
_GROUPING = 2.0
"""Memory of grouping a batch by pile, as a multiple of the batch: the copy in pile order, keys and indices."""
ORDERING = 2.75
"""Memory of ordering a pile, as a multiple of the pile: the loaded and the ordered copy, keys, lengths and indices."""
_WAITING = 1.25
"""Memory of an ordered pile, as a multiple of the pile."""
_SPILLING_SHARE = 0.8
"""The scatter's share of the memory limit, if no piles stay in memory. Larger blocks make fewer and longer slices."""
_MISJUDGED = 1.25
"""Factor by which the memory for piles may be underestimated."""
_REGION_EXTRA_BYTES, _SLICE_EXTRA_BYTES = 4096, 40
"""What a region takes on disk beside its slices, as files have blocks, and what a slice has for its header."""
_RESERVED_DESCRIPTORS = 40


def make_plan(
    inputs: Sequence[InputSize],
    limits: Limits,
    costs: Costs,
    cut: Cut,
    output_count: int | None = None,
    piles: PileLayout | None = None,
) -> Plan:
    """Return the plan of a run, with the `piles` of an earlier run if it continues that one."""
    sizes = InputSizes.of(inputs)

    def plan_within(limits: Limits) -> _Planner:
        planner = _Planner(sizes, limits, costs, cut, output_count, piles)
        planner.check()
        return planner

    return fit(plan_within, replace(limits, input_count=len(inputs))).plan()


class _Gathering(NamedTuple):
    writers: int
    sink_threads: int
    in_flight: int
    """Pile runs being loaded, ordered or written, per writer."""
    most_pile_bytes: int
    """The largest pile for which all of them fit in memory."""
    sink_bytes: int


class _Planner:
    """Computes the numbers of one plan, each from those above it."""

    def __init__(
        self,
        inputs: InputSizes,
        limits: Limits,
        costs: Costs,
        cut: Cut,
        output_count: int | None,
        piles: PileLayout | None,
    ) -> None:
        self._inputs = inputs
        self._limits = limits
        self._spare_bytes = limits.room_bytes // 5
        self._costs = costs
        self._output_count = output_count
        self._piles = piles
        self._given_count = piles.pile_count if piles else limits.pile_count
        self._record_count = inputs.record_count
        self._byte_count = inputs.byte_count
        self._output_bytes = inputs.known_bytes
        written = [count for count in (self._record_count, output_count) if count is not None]
        self._shard_count = count_shards(cut, min(written, default=None), self._output_bytes)

    def check(self) -> None:
        """Raise `TooLittle` when there is no plan."""
        _ = self._gathering, self._scattering

    def plan(self) -> Plan:
        limits, gathering, scattering = self._limits, self._gathering, self._scattering
        resident_bytes, kept_bytes, sets = self._resident_bytes, self._kept_bytes, self._set_of_input
        spilled_bytes = max(0, (kept_bytes or 0) - resident_bytes)
        if spilled_bytes:
            spilled_bytes += self._pile_count * (max(sets, default=0) + 1) * _REGION_EXTRA_BYTES
            slices = self._pile_count * (kept_bytes or 0) // scattering.block_bytes
            spilled_bytes += min(slices, self._record_count or slices) * _SLICE_EXTRA_BYTES
        staying_bytes = min(resident_bytes, kept_bytes or resident_bytes)
        return Plan(
            record_count=self._record_count,
            record_count_is_exact=self._record_count is not None and self._inputs.are_exact,
            byte_count=self._byte_count,
            output_count=self._output_count,
            pile_count=self._pile_count,
            pile_bytes=self._pile_bytes,
            set_of_input=sets,
            block_bytes=scattering.block_bytes,
            max_record_bytes=scattering.max_record_bytes,
            scatter_workers=scattering.workers,
            gather_workers=limits.workers,
            shard_writers=gathering.writers,
            sink_threads=gathering.sink_threads,
            units_in_flight=gathering.in_flight + self._ahead,
            resident_bytes=resident_bytes,
            spilled_bytes=spilled_bytes,
            peak_memory_bytes=self._passes_bytes + staying_bytes + limits.taken_bytes,
            peak_disk_bytes=spilled_bytes + (self._output_bytes or 0),
            descriptors=max(sets, default=0)
            + 1
            + scattering.workers
            + gathering.writers
            + _RESERVED_DESCRIPTORS,
            shard_count=self._shard_count,
            spill_compression=limits.spill_compression,
            added_bytes=self._costs.added_bytes,
            value_bytes=self._value_bytes,
        )

    @cached_property
    def _kept_bytes(self) -> int | None:
        """Bytes added to piles. For a sample of n of N records, n (1 + ln(N / n)) records are.

        The k-th record read is kept if it is among the n smallest keys so far, which has probability n / k.
        """
        byte_count, record_count, output_count = self._byte_count, self._record_count, self._output_count
        if byte_count is None or not record_count or output_count is None or output_count >= record_count:
            return byte_count
        share = max(1, output_count) / record_count
        return math.ceil(byte_count * min(1.0, share * (1 - math.log(share))))

    @cached_property
    def _ordering_factor(self) -> float:
        """Memory of ordering a pile, and of decoding it, as a multiple of the pile.

        Decoding briefly holds the pile twice. Without counting that, JSONL to Parquet at 256 MB with two workers took
        360 to 422 MB.
        """
        decoding = self._costs.decoding_factor
        return ORDERING * (2 * decoding if decoding > 1 else decoding)

    @cached_property
    def _gathering(self) -> _Gathering:
        limits = self._limits
        most = min(limits.workers, self._shard_count or limits.workers)
        choices = [(writers, limits.workers // writers) for writers in range(most, 0, -1)]
        choices += [(1, threads) for threads in range(limits.workers - 1, 0, -1)]
        for writers, threads in choices:
            in_flight = limits.workers + 1 if writers == 1 else 2
            sink_bytes = self._costs.sink_bytes(threads)
            rest = limits.room_bytes - writers * sink_bytes
            most_pile_bytes = int(rest / (writers * in_flight * self._ordering_factor))
            # Several writers or threads are not worth smaller piles.
            if most_pile_bytes >= (_SMALLEST_PILE if writers == threads == 1 else 4 * _SMALLEST_PILE):
                return _Gathering(writers, threads, in_flight, most_pile_bytes, sink_bytes)
        raise TooLittle("writing a shard")

    @cached_property
    def _even_pile_bytes(self) -> int:
        """Size limit for planned piles; some come out larger, and must not be split."""
        return int(self._gathering.most_pile_bytes / UNEVEN)

    @cached_property
    def _spilled_pile_bytes(self) -> int:
        limits, (writers, _, in_flight, _, sink_bytes) = self._limits, self._gathering
        byte_count = self._byte_count or 0
        size = min(self._even_pile_bytes, choose_spilled_bytes(byte_count))
        if self._costs.decoding_factor > 1 and writers < limits.workers:
            waiting_room = limits.room_bytes - self._spare_bytes - 2 * writers * sink_bytes
            most_bytes = int(waiting_room / (writers * in_flight * self._ordering_factor))
            size = min(size, limit_converted(byte_count, most_bytes))
        return size

    @cached_property
    def _spilled_count(self) -> int:
        return self._given_count or count_piles(self._byte_count, self._spilled_pile_bytes)

    @cached_property
    def _scattering(self) -> Reading:
        """How inputs are read; with more memory if no piles stay there."""
        if self._kept_bytes is None:
            return self._plan_scatter(STAYING_SHARE, _list_blocks(_LARGEST_BLOCK))
        largest = _LARGEST_BLOCK // 2 if self._kept_bytes <= _FEW_BYTES else _LARGEST_BLOCK
        chosen = self._plan_scatter(STAYING_SHARE, halve_blocks(largest))
        scatter_bytes = chosen.workers * self._scatter_worker_bytes(chosen.block_bytes)
        if self._kept_bytes <= _MISJUDGED * (self._limits.room_bytes - self._spare_bytes - scatter_bytes):
            return chosen
        largest = max(_LARGEST_BLOCK, min(self._spilled_count, MAX_PLANNED_PILES) * _SLICE_BYTES)
        return self._plan_scatter(_SPILLING_SHARE, _list_blocks(largest))

    def _plan_scatter(self, share: float, blocks: Sequence[int]) -> Reading:
        # Fewer workers with larger blocks are faster than many with small ones.
        least = 4 * SMALLEST_BLOCK
        return choose_reading(
            self._scatter_worker_bytes, self._limits, blocks, share, least, "reading the inputs"
        )

    def _scatter_worker_bytes(self, block: int) -> int:
        return self._costs.reading_bytes(block) + int(_GROUPING * block)

    @cached_property
    def _scatter_bytes(self) -> int:
        return self._scattering.workers * self._scatter_worker_bytes(self._scattering.block_bytes)

    @cached_property
    def _fits(self) -> bool:
        """Whether all piles are expected to stay in memory."""
        if self._kept_bytes is None or self._limits.spills_all:
            return False
        pile_bytes = min(CACHE_PILE_BYTES, self._gathering.most_pile_bytes)
        passes_bytes = max(self._scatter_bytes, self._order_bytes(pile_bytes))
        return self._kept_bytes <= self._limits.room_bytes - self._spare_bytes - passes_bytes

    def _order_bytes(self, pile_bytes: int) -> int:
        writers, _, in_flight, _, sink_bytes = self._gathering
        return writers * (sink_bytes + int(in_flight * pile_bytes * self._ordering_factor))

    @cached_property
    def _wanted_pile_bytes(self) -> int:
        if self._fits:
            return min(self._even_pile_bytes, CACHE_PILE_BYTES)
        if self._byte_count is not None or self._given_count:
            return self._spilled_pile_bytes
        # As large as possible without reducing the memory for resident piles.
        writers, _, in_flight, _, sink_bytes = self._gathering
        rest = self._scatter_bytes // writers - sink_bytes
        free_bytes = int(rest / (in_flight * self._ordering_factor))
        largest = min(self._even_pile_bytes, MOST_SPILLED_PILE_BYTES, free_bytes)
        return max(self._spilled_pile_bytes, largest)

    @cached_property
    def _pile_count(self) -> int:
        return self._given_count or count_piles(self._byte_count, self._wanted_pile_bytes)

    @cached_property
    def _pile_bytes(self) -> int:
        """Size above which a pile is split; with few piles, a pile larger than planned may still fit."""
        if self._byte_count is None:
            return self._wanted_pile_bytes
        expected = math.ceil(UNEVEN * self._byte_count / self._pile_count)
        return min(self._gathering.most_pile_bytes, max(self._wanted_pile_bytes, expected))

    @cached_property
    def _ahead(self) -> int:
        """Number of further piles to order for a sink: about as much memory as the sink takes.

        While a sink writes its content, such as a row group, it takes no pile, and then many at once.
        """
        limits, gathering = self._limits, self._gathering
        # Piles of unknown size may fill all memory.
        staying = limits.room_bytes if self._kept_bytes is None else self._kept_bytes if self._fits else 0
        room = max(limits.room_bytes - self._spare_bytes - staying, self._scatter_bytes)
        room -= self._order_bytes(self._pile_bytes)
        waiting = int(self._pile_bytes * _WAITING * self._costs.decoding_factor)
        return max(0, min(gathering.sink_bytes, room // gathering.writers) // waiting)

    @cached_property
    def _passes_bytes(self) -> int:
        """Memory of the pass that takes more, without resident piles."""
        waiting = int(self._ahead * self._pile_bytes * _WAITING * self._costs.decoding_factor)
        gather_bytes = self._order_bytes(self._pile_bytes) + self._gathering.writers * waiting
        return max(self._scatter_bytes, gather_bytes)

    @cached_property
    def _resident_bytes(self) -> int:
        """Most bytes of piles in memory; 0 if they are not expected to fit."""
        resident_bytes = max(0, self._limits.room_bytes - self._passes_bytes - self._spare_bytes)
        is_hopeless = self._limits.spills_all or (
            self._kept_bytes is not None and self._kept_bytes > _MISJUDGED * resident_bytes
        )
        return 0 if is_hopeless else resident_bytes

    @cached_property
    def _value_bytes(self) -> int:
        """Size of the largest pile that is ordered alone, while the other writers order theirs, and no piles are in memory."""
        writers, _, in_flight, _, sink_bytes = self._gathering
        waiting = int((in_flight + self._ahead) * self._pile_bytes * self._ordering_factor)
        taken = writers * sink_bytes + (writers - 1) * waiting
        # Until its next row group is complete, the sink of another writer may hold the pile that was alone before.
        held = (writers - 1) * self._costs.decoding_factor
        room = (self._limits.room_bytes - taken) / (self._ordering_factor + held)
        return max(self._pile_bytes, int(room))

    @cached_property
    def _set_of_input(self) -> tuple[int, ...]:
        if self._piles and len(self._piles.set_of_input) == len(self._inputs):
            return self._piles.set_of_input
        byte_counts = self._inputs.byte_counts
        return assign_sets(byte_counts, choose_set_bytes(int(byte_counts.sum()), self._pile_count))


def _list_blocks(largest: int) -> range:
    return range(largest // SMALLEST_BLOCK * SMALLEST_BLOCK, 0, -SMALLEST_BLOCK)


def take_census(inputs: Sequence[InputSummary], added_bytes: int = 0) -> InputSizes:
    """Return the size of each input, with keys and `added_bytes` per record."""
    return InputSizes.of(
        InputSize(
            record_count=summary.record_count,
            byte_count=_with_keys(summary.native_bytes, summary.record_count, KEY_BYTES + added_bytes),
            file_bytes=summary.file_bytes,
            is_exact=summary.record_count_is_exact,
        )
        for summary in inputs
    )


def _with_keys(native_bytes: int | None, record_count: int | None, key_bytes: int) -> int | None:
    if native_bytes is None or record_count is None:
        return native_bytes
    return native_bytes + record_count * key_bytes
