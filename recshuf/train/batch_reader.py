"""Reads the batches of epochs from the piles of a store: loads groups, in bundles, and cuts batches from them."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, tee
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.formats.stored import Selection
from recshuf.job.report import PythonWarnings
from recshuf.records.provenance import find_origins
from recshuf.system.buffers import BufferPool
from recshuf.train.blocks import Part, append_seeds, choose_block
from recshuf.train.documents import DocumentSource
from recshuf.train.loading import Absence, close_at_exit, compute_ahead, list_bundles, restore_decoder
from recshuf.train.schedule import Schedule
from recshuf.train.weights import SEQUENCE_STEPS, Mixture, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from recshuf.piles.groups import Groups
    from recshuf.train.blocks import Block, Transform
    from recshuf.train.documents import Packing
    from recshuf.train.loading import Bundle, GroupSource
    from recshuf.train.schedule import Phase, Piece, Sharding

    MakeBlock = Callable[[pa.RecordBatch], Block]


BUNDLE_BYTES = 4 << 20
"""Smaller groups are loaded together, since each load costs about half a millisecond."""
_KEPT_PILES = 2
_MOST_LEFT_OUT = 0.05
"""Share of the records that lanes may cost an epoch without a word."""


class _Epoch(NamedTuple):
    number: int
    groups: Groups
    schedule: Schedule


class BatchReader:
    """Reads the batches that one rank gets of any epoch, from any step on. It has no position.

    Parameters
    ----------
    columns
        Names of columns; see `Selection`.
    sharding
        The part of this rank.
    """

    def __init__(self, source: GroupSource, columns: Sequence[str] | None, sharding: Sharding) -> None:
        self.source = source
        self._columns = columns
        self._sharding = sharding
        self._has_told = False
        self._prepare()

    def _prepare(self) -> None:
        self.selection = Selection(restore_decoder(self.source.piles), self._columns)
        self._opened: _Epoch | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.selection.schema

    @property
    def known(self) -> list[str]:
        return self.selection.known

    @property
    def num_records(self) -> int:
        return int(self.source.piles.counts.sum())

    @property
    def name(self) -> Any:
        return str(self.source.piles.path)

    @property
    def mix(self) -> int:
        return self.source.order.mix

    @property
    def part(self) -> dict[str, Any]:
        """The fields of a state that only a part of the records has."""
        part = {"limit": self._sharding.limit, "filter": getattr(self.source.piles, "kept", None)}
        return {name: value for name, value in part.items() if value is not None}

    def describe(self, _epoch: int, _step: int) -> dict[str, Any]:
        """Return what a state holds of the batches before a position: of which they are."""
        source = self.source
        return {
            "store": source.piles.store_id,
            "snapshot": source.piles.snapshot,
            "sets": source.piles.content,
            "seed": source.order.seed,
            "reshuffle": source.order.reshuffle,
            "mix": source.order.mix,
            "lanes": self._sharding.lanes,
            "batch": self._sharding.batch,
            "drop_last": self._sharding.drop_last,
            **self.part,
        }

    def add_column(self, name: str) -> None:
        """Read a further column, the last one, unless it is among the columns."""
        if self._columns is not None and name not in self._columns:
            self._columns = [*self._columns, name]
            self._prepare()

    def pack(self, packing: Packing) -> tuple[list[DocumentSource], Mixture]:
        """Return the documents of the store, and that all sequences are of it."""
        mixture = Mixture((Stretch(0, (1,)),), SEQUENCE_STEPS, self._sharding, self.source.order.seed)
        return [DocumentSource(self.source, self, packing)], mixture

    def close_at_the_end(self) -> None:
        """Have the piles closed when nothing refers to the reader any more."""
        # Not at the exit of the interpreter, where a thread may still read them; the system closes files.
        weakref.finalize(self, self.source.piles.close).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("selection", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()
        self.close_at_the_end()

    def shard(self, sharding: Sharding) -> None:
        self._sharding, self._opened = sharding, None

    def count_steps(self, epoch: int) -> int:
        """Return the number of batches of an epoch, the same on every rank."""
        return self._open(epoch).schedule.steps

    def read(
        self,
        epoch: int,
        first_step: int,
        output: str,
        transform: Transform | None = None,
        *,
        prefetch: int | None = None,
        every: int = 1,
    ) -> Generator[Any]:
        """Return an iterator over the batches of an epoch from a step on, in a form that `choose_block` knows.

        `prefetch` is by default that of the reader. Of `every` batches only the first is made: all groups are loaded.
        """
        make_block = choose_block(output, self.source.piles.nulls, transform)
        opened, absence = self._open(epoch), Absence()
        phases = opened.schedule.starting_at(first_step)
        # By their first visits. Those of the tail were visited before.
        visits = Counter(chain.from_iterable(phase.find_groups(step) for phase, step in phases))
        bundles, cut_bundles = tee(opened.groups.announce(opened.groups.bundle(visits, BUNDLE_BYTES)))
        seeds = None if transform is None else ()
        load = partial(self._load, BufferPool(self._most_kept), make_block, seeds)
        ahead = self.source.prefetch if prefetch is None else prefetch
        blocks = compute_ahead(load, list_bundles(epoch, opened.groups, bundles), ahead, absence)
        batches = _cut(phases, visits, _find_groups(cut_bundles, opened.groups, blocks), every)
        return close_at_exit(_note_absence(batches, blocks, absence, self.source.piles.forget))

    def read_lane(
        self, lane: int, lanes: int, epoch: int, group: int, seeds: tuple[int, ...] | None, prefetch: int
    ) -> Generator[pa.RecordBatch]:
        """Return an iterator over the tables of a lane, epoch after epoch without end, from a group on.

        With `seeds`, not None, the last column has those of the records; for its numbers see `EpochOrder.draw_seeds`.
        """
        absence = Absence()
        load = partial(self._load, BufferPool(self._most_kept), _return_unchanged, seeds)
        bundles = self.source.walk_lane(lane, lanes, epoch, group, BUNDLE_BYTES)
        tables = compute_ahead(load, bundles, prefetch, absence)
        return _note_absence(tables, tables, absence, self.source.piles.forget)

    def _open(self, epoch: int) -> _Epoch:
        """Return an epoch, kept until another one is opened."""
        if self._opened is None or self._opened.number != epoch:
            groups = self.source.open(epoch)
            self._opened = _Epoch(epoch, groups, Schedule(groups.sizes, self._sharding))
            self._tell_left_out(self._opened)
        return self._opened

    def _tell_left_out(self, opened: _Epoch) -> None:
        """Warn, once, if lanes of very different sizes cost an epoch many records."""
        left_out, count = opened.schedule.left_out, self.num_records
        if left_out <= _MOST_LEFT_OUT * count or self._has_told or self._sharding.rank:
            return
        self._has_told = True
        PythonWarnings().warn(
            f"lanes={self._sharding.lanes}: epoch {opened.number} leaves out {left_out:,} of {count:,} records, as it ends with "
            "its shortest lane; give fewer lanes, or drop_last=False"
        )

    @property
    def _most_kept(self) -> int:
        """Largest block that is used again: all blocks of one pile, but not those of several that are mixed."""
        return _KEPT_PILES * int(self.source.piles.byte_counts.sum(axis=0).max(initial=0))

    def _load(
        self, memory: BufferPool, make_block: MakeBlock, seeds: tuple[int, ...] | None, bundle: Bundle
    ) -> Any:
        """Return a block of the records of a bundle; for `seeds` see `read_lane`."""
        records = bundle.groups.load(bundle.numbers, bundle.following, memory.allocate)
        # Else Arrow would keep the memory of text that nobody refers to any more, as much as two piles.
        _release_unused()
        table = self.selection.make_table(records.batch)
        if seeds is not None:
            order = replace(self.source.order, epoch=bundle.epoch)
            table = append_seeds(table, order.draw_seeds(find_origins(records.batch), *seeds))
        return make_block(table)


def _return_unchanged(table: pa.RecordBatch) -> pa.RecordBatch:
    return table


def _release_unused() -> None:
    """Give back to the system what Arrow keeps for this thread to use again."""
    pa.default_memory_pool().release_unused()


class _LoadedGroup(NamedTuple):
    block: Block
    """It may hold other groups, too."""
    begin: int
    """Where the records of the group begin in the block."""

    def take(self, piece: Piece) -> Part:
        return Part(self.block, self.begin + piece.start, self.begin + piece.stop)


def _find_groups(
    bundles: Iterator[list[int]], groups: Groups, blocks: Iterator[Block]
) -> Iterator[_LoadedGroup]:
    for bundle in bundles:
        block = next(blocks)
        for begin in np.cumsum([0, *groups.sizes[bundle[:-1]]]).tolist():
            yield _LoadedGroup(block, begin)
        del block  # to be freed before the next one is there


def _cut(
    phases: list[tuple[Phase, int]], visits: Counter[int], groups: Iterator[_LoadedGroup], every: int
) -> Iterator[Any]:
    """Yield the first of `every` batches of phases, each from one of its steps on.

    `visits` says how often each group is come to. It is loaded once, and kept while it is come to again.
    """
    unwanted, kept = 0, dict[int, _LoadedGroup]()
    for phase, first_step in phases:
        held: dict[int, _LoadedGroup] = {}
        for tracks in phase.walk(first_step):
            parts: list[Part] = []
            for track, pieces in enumerate(tracks):
                for piece in pieces:
                    if piece.is_next:
                        held.pop(track, None)  # to be freed before the next one is there
                        held[track] = kept.get(piece.group) or next(groups)
                        visits[piece.group] -= 1
                        kept[piece.group] = held[track]
                        if not visits[piece.group]:
                            del kept[piece.group]
                    _add_part(parts, held[track].take(piece))
            if not unwanted:
                if phase.has_repeats:  # blocks copy what lies in several parts
                    parts.insert(0, parts[0]._replace(stop=parts[0].start))
                batch = parts[0].block.cut(parts)
                parts.clear()  # to free a block that is used up
                yield batch
                del batch
            unwanted = (unwanted or every) - 1


def _add_part(parts: list[Part], part: Part) -> None:
    """Append a part, joined to the last one if it follows that in its block."""
    if parts and parts[-1].block is part.block and parts[-1].stop == part.start:
        part = parts.pop()._replace(stop=part.stop)
    parts.append(part)


def _note_absence(
    batches: Iterator[Any], blocks: Generator[Block], absence: Absence, forget: Callable[[], None]
) -> Generator[Any]:
    with ExitStack() as cleanup:
        cleanup.callback(forget)
        cleanup.enter_context(closing(blocks))
        for batch in batches:
            left = time.perf_counter()
            yield batch
            absence.seconds += time.perf_counter() - left
            if absence.is_relieved:
                # The block before the latest one is used up. This thread may have loaded it.
                _release_unused()
                absence.is_relieved = False
