"""Reads the batches of epochs from the piles of a store.

What is left of an epoch from a step on: groups to load, in bundles, and batches to cut from them.
"""

from __future__ import annotations

import time
import weakref
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from recshuf.piles.groups import Groups
from recshuf.records.provenance import find_origins
from recshuf.system.buffers import BufferPool
from recshuf.train.blocks import Part, TransformedBlock, append_seeds, choose_block
from recshuf.train.prefetch import Absence, close_at_exit, compute_ahead
from recshuf.train.schedule import Schedule
from recshuf.train.selection import Selection, restore_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from recshuf.piles.epochs import EpochOrder
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.train.blocks import Block, Transform
    from recshuf.train.schedule import Phase, Sharding


BUNDLE_BYTES = 4 << 20
"""Smaller groups are loaded together, since each load costs about half a millisecond."""


class _LoadedGroup(NamedTuple):
    block: Block
    """It may hold other groups, too."""
    begin: int
    """Where the records of the group begin in the block."""


class BatchCutter:
    """Cuts the batches of one rank.

    Parameters
    ----------
    phases
        The phases that are left, each with the first of its steps to take.
    """

    def __init__(self, groups: Groups, phases: list[tuple[Phase, int]]) -> None:
        self._groups = groups
        self._phases = phases

    def find_bundles(self) -> Iterator[list[int]]:
        """Yield the groups to load, in order; those of a list are loaded together, into one block."""
        wanted = chain.from_iterable(phase.find_groups(step) for phase, step in self._phases)
        return self._groups.bundle(wanted, BUNDLE_BYTES)

    def cut(self, blocks: Iterator[Block]) -> Iterator[Any]:
        """Return an iterator over the batches.

        Parameters
        ----------
        blocks
            The blocks of all bundles, in order.
        """
        groups = self._find_groups(blocks)
        return chain.from_iterable(starmap(partial(_cut_phase, groups), self._phases))

    def _find_groups(self, blocks: Iterator[Block]) -> Iterator[_LoadedGroup]:
        """Yield the groups in blocks."""
        for bundle in self.find_bundles():
            block = next(blocks)
            for begin in np.cumsum([0, *self._groups.sizes[bundle[:-1]]]).tolist():
                yield _LoadedGroup(block, begin)
            del block  # to be freed before the next one is there


def _cut_phase(groups: Iterator[_LoadedGroup], phase: Phase, first_step: int) -> Iterator[Any]:
    """Yield the batches of a phase, from one of its steps on."""
    held: dict[int, _LoadedGroup] = {}
    for tracks in phase.walk(first_step):
        parts: list[Part] = []
        for track, pieces in enumerate(tracks):
            for piece in pieces:
                if piece.is_next:
                    held.pop(track, None)  # to be freed before the next one is there
                    held[track] = next(groups)
                block, begin = held[track]
                _add_part(parts, Part(block, begin + piece.start, begin + piece.stop))
        batch = parts[0].block.cut(parts)
        parts.clear()  # to free a block that is used up
        yield batch
        del batch


def _add_part(parts: list[Part], part: Part) -> None:
    """Append a part, joined to the last one if it follows that in its block."""
    if parts and parts[-1].block is part.block and parts[-1].stop == part.start:
        part = parts.pop()._replace(stop=part.stop)
    parts.append(part)


Loaded = TypeVar("Loaded")
_KEPT_PILES = 2


class _Epoch(NamedTuple):
    order: EpochOrder
    groups: Groups
    schedule: Schedule

    def make_cutter(self, first_step: int) -> BatchCutter:
        return BatchCutter(self.groups, self.schedule.starting_at(first_step))


class BatchReader:
    """Reads the batches that one rank gets of any epoch, from any step on. It has no position.

    Parameters
    ----------
    piles
        They stay open.
    order
        That of one epoch; others differ in their number.
    columns
        Names of columns; see `Selection`.
    mix
        Number of piles of a group.
    sharding
        The part of this rank.
    prefetch
        Number of groups that threads load ahead.

    Raises
    ------
    UsageError
        When the store lacks a column.
    """

    def __init__(
        self,
        piles: StoredPiles,
        order: EpochOrder,
        columns: Sequence[str] | None,
        mix: int,
        sharding: Sharding,
        prefetch: int,
    ) -> None:
        self.piles = piles
        self.order = order
        self.mix = mix
        self.prefetch = prefetch
        self._columns = columns
        self._sharding = sharding
        self.selection = Selection(restore_decoder(piles), columns)
        self._opened: _Epoch | None = None

    def close_at_the_end(self) -> None:
        """Have the piles closed when nothing refers to the reader any more."""
        # Not at the exit of the interpreter, where a thread may still read them; the system closes files.
        weakref.finalize(self, self.piles.close).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("selection", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.selection = Selection(restore_decoder(self.piles), self._columns)
        self._opened = None
        self.close_at_the_end()

    def count_steps(self, epoch: int) -> int:
        """Return the number of batches of an epoch, the same on every rank.

        Raises
        ------
        UsageError
            When the number of the epoch is not valid, or the epoch has enough records for a global batch, but not in each
            of the lanes.
        """
        return self._open(epoch).schedule.steps

    def read(
        self,
        epoch: int,
        first_step: int,
        output: str,
        transform: Transform | None = None,
        *,
        prefetch: int | None = None,
    ) -> Generator[Any]:
        """Return an iterator over the batches of an epoch from a step on, in a form that `choose_block` knows.

        `prefetch` is by default that of the reader.
        """
        make_block = choose_block(output)
        if transform is not None:
            make_block = partial(TransformedBlock, make_block=make_block, transform=transform)
        opened, absence = self._open(epoch), Absence()
        cutter = opened.make_cutter(first_step)
        load = partial(self._load, make_block, transform is not None)
        ahead = self.prefetch if prefetch is None else prefetch
        blocks = self._load_all(opened, cutter.find_bundles(), load, ahead, absence)
        return close_at_exit(_cut(cutter, blocks, absence))

    def find_bundles(self, epoch: int, first_step: int) -> Iterator[list[int]]:
        """Return an iterator over the groups of each bundle of an epoch from a step on."""
        return self._open(epoch).make_cutter(first_step).find_bundles()

    def read_bundles(
        self, epoch: int, first_step: int, worker: int, workers: int
    ) -> Generator[pa.RecordBatch]:
        """Return an iterator over one of as many bundles as there are workers, loaded by the calling thread.

        Bundles count from those of the step.
        """
        opened = self._open(epoch)
        mine = islice(opened.make_cutter(first_step).find_bundles(), worker, None, workers)
        return close_at_exit(self._load_all(opened, mine, partial(self._load, _keep, False), ahead=0))

    def cut_bundles(self, epoch: int, first_step: int, blocks: Iterator[Block]) -> Iterator[Any]:
        """Return an iterator over the batches of an epoch from a step on, cut from the blocks of all bundles in order."""
        return self._open(epoch).make_cutter(first_step).cut(blocks)

    def _open(self, epoch: int) -> _Epoch:
        """Return an epoch, kept until another one is opened."""
        if self._opened is None or self._opened.order.epoch != epoch:
            order = replace(self.order, epoch=epoch)
            groups = Groups(self.piles, order, self.mix)
            self._opened = _Epoch(order, groups, Schedule(groups.sizes, self._sharding))
        return self._opened

    def _load_all(
        self,
        opened: _Epoch,
        bundles: Iterator[list[int]],
        load: Callable[..., Loaded],
        ahead: int,
        absence: Absence | None = None,
    ) -> Generator[Loaded]:
        """Yield what `load` makes of each bundle."""
        load = partial(load, opened, BufferPool(self._most_kept))
        with closing(compute_ahead(load, pairwise(chain(bundles, [[]])), ahead, absence)) as loaded:
            yield from loaded

    @property
    def _most_kept(self) -> int:
        """Largest block that is used again: all blocks of one pile, but not those of several that are mixed."""
        return _KEPT_PILES * int(self.piles.byte_counts.sum(axis=0).max(initial=0))

    def _load(
        self,
        make: Callable[[pa.RecordBatch], Loaded],
        needs_seeds: bool,
        opened: _Epoch,
        memory: BufferPool,
        bundles: tuple[list[int], list[int]],
    ) -> Loaded:
        """Return what is made of the records of the first bundle."""
        records = opened.groups.load(*bundles, memory.allocate)
        # Else Arrow would keep the memory of text that nobody refers to any more, as much as two piles.
        _release_unused()
        table = self.selection.make_table(records.batch)
        if needs_seeds:
            table = append_seeds(table, opened.order.draw_seeds(find_origins(records.batch)))
        return make(table)


def _release_unused() -> None:
    """Give back to the system what Arrow keeps for this thread to use again."""
    pa.default_memory_pool().release_unused()


def _keep(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def _cut(cutter: BatchCutter, blocks: Generator[Block], absence: Absence) -> Generator[Any]:
    """Yield batches; count how long the consumer is away."""
    with closing(blocks):
        for batch in cutter.cut(blocks):
            left = time.perf_counter()
            yield batch
            absence.seconds += time.perf_counter() - left
            if absence.is_relieved:
                # The block before the latest one is used up. This thread may have loaded it.
                _release_unused()
                absence.is_relieved = False
