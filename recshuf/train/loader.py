"""`PileLoader`: batches for training, from the piles of a store."""

from __future__ import annotations

import time
import weakref
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.piles.order.epochs import EpochOrder
from recshuf.piles.order.groups import Groups
from recshuf.piles.order.rekeyed import RekeyedPiles
from recshuf.records.keys import MAX_PILES
from recshuf.records.provenance import find_origins
from recshuf.system.buffers import BufferPool
from recshuf.system.numbers import check_number
from recshuf.train.blocks import choose_block
from recshuf.train.columns import iterate_rows
from recshuf.train.cutting import Cutter
from recshuf.train.packing.documents import DocumentSource
from recshuf.train.packing.packed_loader import PackedLoader
from recshuf.train.position import Position, count_batches
from recshuf.train.prefetch import Absence, close_at_exit, compute_ahead
from recshuf.train.schedule import Schedule, Sharding
from recshuf.train.selection import Selection, list_columns
from recshuf.train.state import LoaderState, find_position
from recshuf.train.stores import fill_piles, open_piles, restore_decoder
from recshuf.train.transforms import TransformedBlock, append_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from recshuf.piles.order.groups import Regions
    from recshuf.train.blocks import Block
    from recshuf.train.transforms import Transform

Loaded = TypeVar("Loaded")

_MOST_AHEAD = 1 << 16
_KEPT_PILES = 2


class _Epoch(NamedTuple):
    order: EpochOrder
    regions: Regions
    groups: Groups
    schedule: Schedule

    def make_cutter(self, first_step: int) -> Cutter:
        return Cutter(self.groups, self.schedule.starting_at(first_step))


class PileLoader:
    """Yields the batches of an epoch to one rank.

    Every epoch is an exact, uniform shuffle of all records. Epoch 0 with the store's seed is the order of
    ``recshuf gather``. Iterating again without `set_epoch` yields the same epoch.

    An iterator holds threads and open files until it is exhausted, closed or dropped. Batches own their memory.

    Parameters
    ----------
    store
        Path of a store, or a `PileStore`.
    batch_size
        Records of a batch on each rank. The global batch is ``batch_size * world_size`` records.
    columns
        Names of columns, in this order; ``"_id"`` adds the source and the row of each record. Default: all but
        ``"_id"``.
    seed
        Default: that of the store.
    epoch
        Number of the first epoch.
    reshuffle
        How later epochs differ. ``"rotate"`` puts other piles of the sets together and draws new orders, ``"piles"`` keeps
        the records of piles together, ``"exact"`` draws everything anew, ``"none"`` repeats epoch 0. Each iteration of
        ``"exact"`` reads all records first, and writes them to the temporary folder, which TMPDIR names.
    rank, world_size
        Number of this rank, from 0, and of all.
    lanes
        1: the global order does not depend on `world_size`, and every rank reads every group. A multiple of `world_size`:
        every rank reads its own part only, and the order depends on `lanes`.
    mix
        Number of piles that are shuffled together in memory: a group. More piles make two epochs less alike.
    drop_last
        Whether to drop the last records that do not fill a global batch. Else the last batch is shorter. It is padded with
        the first records of the tail, so that all ranks get as many: to a multiple of `lanes` if that is above 1, else of
        `world_size`.
    prefetch
        Number of groups that threads load ahead. A loop that does hardly anything else loads them itself, which is faster.
    output
        ``"numpy"``, ``"torch"`` or ``"arrow"``: dictionaries of arrays, of tensors, or record batches.
    transform
        Function of a batch and of one seed for each record, an array of shape ``(n,)``; returns what the iterator yields.
        A seed is a function of the loader's seed, the epoch, and the source and row of the record, whatever the batch
        and the rank. Default: none.

    Raises
    ------
    UsageError
        When an argument is not valid. When an epoch is opened: when it has enough records for a global batch, but not in
        each of the lanes.
    """

    def __init__(
        self,
        store: Any,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        reshuffle: str = "rotate",
        rank: int = 0,
        world_size: int = 1,
        lanes: int = 1,
        mix: int = 1,
        drop_last: bool = True,
        prefetch: int = 1,
        output: str = "numpy",
        transform: Transform | None = None,
    ) -> None:
        self._mix = check_number("mix", mix, MAX_PILES, least=1)
        self._prefetch = check_number("prefetch", prefetch, _MOST_AHEAD)
        self._sharding = Sharding(batch_size, rank, world_size, lanes, drop_last)
        order = EpochOrder(0 if seed is None else seed, epoch, reshuffle, store_seed=0)
        self._output, self._transform = output, transform
        choose_block(output)
        if transform is not None and not callable(transform):
            raise UsageError(
                f"transform={transform!r}: give a function of a batch and of the seeds of its records"
            )
        self._columns = list_columns(columns)
        # Last, since it may have to be made from files first.
        self._piles, is_mine = open_piles(store)
        if is_mine:
            self._close_at_the_end()
        own = self._piles.seed
        self._order = replace(order, seed=own if seed is None else order.seed, store_seed=own)
        self._selection = Selection(restore_decoder(self._piles), self._columns)
        self._position = Position(self._order.epoch, 0)
        self._next_step = 0
        self._opened: _Epoch | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._position.epoch

    @property
    def num_records(self) -> int:
        """Number of records of the store."""
        return int(self._piles.counts.sum())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the records of a batch, on average, with all columns."""
        return int(self._piles.byte_counts.sum()) * self._sharding.batch_size // max(1, self.num_records)

    @property
    def schema(self) -> pa.Schema:
        """Columns of record batches."""
        return self._selection.schema

    @property
    def known_columns(self) -> list[str]:
        """Names of all columns of the store."""
        return self._selection.known

    def __len__(self) -> int:
        """Return the number of batches of the epoch, the same on every rank.

        With several lanes, it differs a little from epoch to epoch.
        """
        return self._open(self._order).schedule.steps

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the epoch, once from where `load_state_dict` or `seek` went."""
        return count_batches(*self._start())

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the records of the batches, one by one.

        It is many times slower. A batch counts as received with its last record.
        """
        return _split(*self._start())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Another epoch than the present one starts at its first batch."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, step: int) -> None:
        """Choose the epoch of the next iteration, and how many of its global batches to skip. Nothing is read.

        Raises
        ------
        UsageError
            When the epoch does not have so many batches.
        """
        order = replace(self._order, epoch=epoch)
        step = check_number("step", step, self._open(order).schedule.steps)
        self._order, self._position, self._next_step = order, Position(order.epoch, step), step

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON of less than 300 bytes, the same on every rank.

        It counts the batches that the latest iterator yielded. A loader with another `world_size` continues there, if
        the global batch is the same.
        """
        return self._describe().to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the next iteration.

        Raises
        ------
        UsageError
            When the state is of another store, or of other batches; names the field and both values.
        """
        self.seek(*find_position(self.state_dict(), state))

    def packed(self, tokens: int = 2048, *, column: str) -> PackedLoader:
        """Return a loader of sequences of one length, cut from the documents of a column, for language models.

        Documents come in the order of the epochs and are cut afterwards: a sequence may hold the end of one and the
        beginning of the next, and no token is left out. A batch is `batch_size` sequences, as many from each lane. There
        is no last batch: epoch follows epoch, beginning with this loader's. `drop_last` and `columns` do not matter.

        Parameters
        ----------
        tokens
            Length of a sequence.
        column
            Column of lists of numbers.

        Raises
        ------
        UsageError
            When the column holds none, or there is a transform.
        """
        if self._transform is not None:
            raise UsageError("packed: its sequences have no transform; make the loader without transform")
        source = DocumentSource(self._piles, self._order, self._mix, self._prefetch, owner=self)
        start = replace(self._describe(), step=0)
        return PackedLoader(source, self._sharding, start, self._output, tokens, column)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_selection", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._selection = Selection(restore_decoder(self._piles), self._columns)
        self._opened = None
        self._close_at_the_end()

    def _close_at_the_end(self) -> None:
        weakref.finalize(self, self._piles.close)

    def _describe(self) -> LoaderState:
        return LoaderState(
            store=self._piles.store_id,
            snapshot=self._piles.snapshot,
            seed=self._order.seed,
            epoch=self._position.epoch,
            reshuffle=self._order.reshuffle,
            mix=self._mix,
            lanes=self._sharding.lanes,
            batch=self._sharding.batch,
            drop_last=self._sharding.drop_last,
            step=self._position.step,
        )

    def _open(self, order: EpochOrder) -> _Epoch:
        """Return an epoch, kept until another one is opened."""
        if self._opened is None or self._opened.order != order:
            regions: Regions = RekeyedPiles(self._piles, order) if order.needs_keys else self._piles
            groups = Groups(regions, order, self._mix)
            self._opened = _Epoch(order, regions, groups, Schedule(groups.sizes, self._sharding))
        return self._opened

    def read(
        self,
        first_step: int,
        output: str,
        transform: Transform | None = None,
        *,
        prefetch: int | None = None,
    ) -> Generator[Any]:
        """Return an iterator over the batches of the epoch from a step on, in any form, for other loaders. The position stays.

        `prefetch` is by default that of the loader.
        """
        make_block = choose_block(output)
        if transform is not None:
            make_block = partial(TransformedBlock, make_block=make_block, transform=transform)
        epoch, absence = self._open(self._order), Absence()
        cutter = epoch.make_cutter(first_step)
        load = partial(self._load, make_block, transform is not None)
        ahead = self._prefetch if prefetch is None else prefetch
        blocks = self._load_all(epoch, cutter.find_bundles(), load, ahead, absence)
        return close_at_exit(_cut(cutter, blocks, absence))

    def read_bundles(self, first_step: int, worker: int, workers: int) -> Generator[pa.RecordBatch]:
        """Return an iterator over one of as many bundles as there are workers, for `recshuf.torch`. No transform.

        Bundles count from those of the step.
        """
        epoch = self._open(self._order)
        mine = islice(epoch.make_cutter(first_step).find_bundles(), worker, None, workers)
        return close_at_exit(self._load_all(epoch, mine, partial(self._load, _keep, False), ahead=0))

    def find_bundles(self, first_step: int) -> Iterator[list[int]]:
        """Return an iterator over the groups of each bundle of the epoch from a step on, for `recshuf.torch`."""
        return self._open(self._order).make_cutter(first_step).find_bundles()

    def cut_bundles(self, first_step: int, blocks: Iterator[Block]) -> Iterator[Any]:
        """Return an iterator over the batches from a step on, cut from the blocks of all bundles, for `recshuf.torch`."""
        return self._open(self._order).make_cutter(first_step).cut(blocks)

    def _start(self) -> tuple[Generator[Any], Position]:
        """Return the batches of a new iteration, and its position."""
        position = self._position = Position(self.epoch, self._next_step)
        self._next_step = 0
        return self.read(position.step, self._output, self._transform), position

    def _load_all(
        self,
        epoch: _Epoch,
        bundles: Iterator[list[int]],
        load: Callable[..., Loaded],
        ahead: int,
        absence: Absence | None = None,
    ) -> Generator[Loaded]:
        """Yield what `load` makes of each bundle."""
        with ExitStack() as stack:
            groups = epoch.groups
            if isinstance(epoch.regions, RekeyedPiles):
                filled = stack.enter_context(fill_piles(epoch.regions))
                groups = Groups(filled, epoch.order, self._mix)
            load = partial(load, groups, BufferPool(self._most_kept))
            pairs = pairwise(chain(bundles, [[]]))
            yield from stack.enter_context(closing(compute_ahead(load, pairs, ahead, absence)))

    @property
    def _most_kept(self) -> int:
        """Largest block that is used again: all blocks of one pile, but not those of several that are mixed."""
        return _KEPT_PILES * int(self._piles.byte_counts.sum(axis=0).max(initial=0))

    def _load(
        self,
        make: Callable[[pa.RecordBatch], Loaded],
        needs_seeds: bool,
        groups: Groups,
        memory: BufferPool,
        bundles: tuple[list[int], list[int]],
    ) -> Loaded:
        """Return what is made of the records of the first bundle."""
        records = groups.load(*bundles, memory.allocate)
        # Else Arrow would keep the memory of text that nobody refers to any more, as much as two piles.
        _release_unused()
        table = self._selection.make_table(records.batch)
        if needs_seeds:
            table = append_seeds(table, groups.order.draw_seeds(find_origins(records.batch)))
        return make(table)


def _release_unused() -> None:
    """Give back to the system what Arrow keeps for this thread to use again."""
    pa.default_memory_pool().release_unused()


def _keep(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def _cut(cutter: Cutter, blocks: Generator[Block], absence: Absence) -> Generator[Any]:
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


def _split(batches: Generator[Any], position: Position) -> Iterator[dict[str, Any]]:
    with closing(batches):
        for batch in batches:
            records = list(iterate_rows(batch))
            yield from records[:-1]
            position.step += 1
            yield from records[-1:]  # none if a transform left none
