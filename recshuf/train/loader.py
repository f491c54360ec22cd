"""`PileLoader`: batches for training, from the piles of a store."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from recshuf.errors import UsageError
from recshuf.formats.stored import list_columns
from recshuf.piles.epochs import EpochOrder
from recshuf.records.keys import MAX_PILES
from recshuf.storage import parse_storage
from recshuf.system.units import check_number, show_call
from recshuf.train.batch_reader import BatchReader
from recshuf.train.blocks import choose_block, iterate_rows
from recshuf.train.documents import Packing
from recshuf.train.filtering import FilteredPiles, check_filter
from recshuf.train.loading import GroupSource, open_cache, open_piles
from recshuf.train.packing import PackedLoader
from recshuf.train.schedule import Sharding
from recshuf.train.state import START, ResumableLoader
from recshuf.train.weights import Weights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from recshuf.piles.epochs import Reshuffle
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.train.blocks import Output, Transform
    from recshuf.train.documents import Documents
    from recshuf.train.mix_reader import MixReader
    from recshuf.train.state import Position
    from recshuf.train.weights import Unit


_MOST_AHEAD = 1 << 16


class PileLoader(ResumableLoader):
    """Yields the batches of an epoch to one rank.

    Every epoch is an exact, uniform shuffle of all records. Epoch 0 with the store's seed and ``mix=1`` is the order of
    ``recshuf gather``. Iterating again without `set_epoch` yields the same epoch.

    An iterator holds threads and open files until it is exhausted, closed or dropped. Batches own their memory.

    Parameters
    ----------
    store
        Path or URL of a store, or a `PileStore`; or a dict of such with weights, see `MixLoader`.
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
        the records of piles together, ``"none"`` repeats epoch 0.
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
        ``"numpy"``, ``"torch"`` or ``"jax"``: dictionaries of arrays, of tensors, or of arrays of JAX; ``"arrow"``: record
        batches.
    transform
        Function of a batch and of one seed for each record, an array of shape ``(n,)``; returns what the iterator yields.
        A seed is a function of the loader's seed, the epoch, and the source and row of the record, whatever the batch
        and the rank. Default: none.
    limit
        The epoch ends after so many records of all ranks together, so that an epoch without limit begins with the same
        batches; the next epoch of a mix goes on there. Default: none.
    filter
        Arrow expression, such as ``pyarrow.compute.field("lang") == "en"``: an epoch is a shuffle of the records for which
        it is true. All records are read once to count them, when the loader is made. Columns are those of the store and
        ``"_id"``, whatever `columns` are. Default: all records.
    weight_by, schedule_by
        Of a mix, see `MixLoader`.
    endpoint_url, storage_options
        For URLs; see `recshuf.ScatterOptions`.
    cache
        Folder of this machine for regions of a store that is far away. All processes share it; each region is fetched once,
        and those used least recently go. Default: none.
    cache_bytes
        Most bytes in `cache`, such as ``"200GB"``: at least a group. Default: half of the free space, when the loader is made.

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
        reshuffle: Reshuffle = "rotate",
        rank: int = 0,
        world_size: int = 1,
        lanes: int = 1,
        mix: int = 1,
        drop_last: bool = True,
        prefetch: int = 1,
        output: Output = "numpy",
        transform: Transform | None = None,
        limit: int | None = None,
        filter: Any = None,  # noqa: A002
        weight_by: str | None = None,
        schedule_by: Unit = "step",
        endpoint_url: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        mix = check_number("mix", mix, MAX_PILES, least=1)
        prefetch = check_number("prefetch", prefetch, _MOST_AHEAD)
        self._sharding = Sharding(batch_size, rank, world_size, lanes, drop_last, limit)
        order = EpochOrder(0 if seed is None else seed, epoch, reshuffle, store_seed=0, mix=mix)
        self._output, self._transform = output, transform
        choose_block(output)
        if transform is not None and not callable(transform):
            raise UsageError(
                f"transform={transform!r}: give a function of a batch and of the seeds of its records"
            )
        self._is_filtered = filter is not None
        if self._is_filtered:
            check_filter(filter)
        names = list_columns(columns)
        self._reader: BatchReader | MixReader
        storage = parse_storage(endpoint_url, storage_options)
        regions = open_cache(cache, cache_bytes)

        def open_one(store: Any, names: list[str] | None) -> BatchReader:
            piles, is_mine = open_piles(store, storage)
            with ExitStack() as cleanup:
                if is_mine:
                    cleanup.callback(piles.close)
                if regions is not None:
                    regions.hold(mix * int(piles.byte_counts.max(axis=1, initial=0).sum()))  # a group
                    piles.use_cache(regions)
                if self._is_filtered:
                    piles = cast("StoredPiles", FilteredPiles(piles, filter))
                own = piles.seed if seed is None else seed
                groups = GroupSource(piles, replace(order, seed=own, store_seed=piles.seed), prefetch)
                reader = BatchReader(groups, names, self._sharding)
                cleanup.pop_all()
            if is_mine:
                reader.close_at_the_end()
            return reader

        # Last, since it may have to be made from files first.
        if isinstance(store, Mapping):
            self._reader = _open_mix(
                open_one, Weights.read(store, schedule_by), names, self._sharding, weight_by
            )
        elif weight_by is not None or schedule_by != "step":
            raise UsageError(
                "weight_by, schedule_by: one store has no weights; give a dict of stores, or leave them out"
            )
        else:
            self._reader = open_one(store, names)
        super().__init__(order.epoch)
        self._check_part()

    def _check_part(self) -> None:
        """Refuse a filter that leaves no batch; one that leaves no record is refused before."""
        sharding = self._sharding
        if self._is_filtered and sharding.drop_last and 0 < self.num_records < sharding.batch:
            remedy = ", or give drop_last=False" if isinstance(self._reader, BatchReader) else ""
            raise UsageError(
                f"filter: keeps {self.num_records:,} records, less than a global batch of {sharding.batch} (batch_size x "
                f"world_size); make it smaller{remedy}"
            )

    def show(self, name: str, *, with_rank: bool = True) -> str:
        sharding, reader = self._sharding, self._reader
        shown: dict[str, object] = {"batch_size": sharding.batch_size}
        if with_rank:
            shown |= {"rank": sharding.rank, "world_size": sharding.world_size}
        shown |= {"epoch": self.epoch, "mix": reader.mix, "num_records": self.num_records}
        return show_call(name, reader.name, **shown | reader.part)

    @property
    def num_records(self) -> int:
        """Number of records of the store, or of those that the filter keeps; or of all stores."""
        return self._reader.num_records

    @property
    def schema(self) -> pa.Schema:
        """Columns of record batches."""
        return self._reader.schema

    @property
    def known_columns(self) -> list[str]:
        """Names of all columns of the store."""
        return self._reader.known

    def shard(self, rank: int, world_size: int) -> None:
        sharding = replace(self._sharding, rank=rank, world_size=world_size)
        self._reader.shard(sharding)
        self._sharding = sharding
        self._check_part()

    @property
    def reader(self) -> BatchReader | MixReader:
        """What reads the batches, for other loaders. The position of this one does not matter to it."""
        return self._reader

    def __len__(self) -> int:
        """Return the number of batches of the epoch, the same on every rank."""
        return self._count_steps(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Another epoch than the present one starts at its first batch.

        Raises
        ------
        UsageError
            When it is not the number of an epoch.
        """
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def _count_steps(self, epoch: int) -> int:
        # With several lanes, it differs a little from epoch to epoch.
        return self._reader.count_steps(epoch)

    def records(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the records of the batches, one by one.

        It is many times slower. A batch counts as received with its last record.
        """
        return _split(*self._start())

    def packed(
        self,
        tokens: int = 2048,
        *,
        column: str,
        boundaries: bool = False,
        eos: int | None = None,
        documents: Documents = "cut",
        pad: int | None = None,
    ) -> PackedLoader:
        """Return a loader of sequences of one length, made of the documents of a column, for language models.

        Documents come in the order of the epochs, and no token is left out. A batch is `batch_size` sequences, as many from
        each lane. There is no last batch: epoch follows epoch, beginning with this loader's. `drop_last` and `columns` do
        not matter. A transform gets batches of sequences, and a seed for each sequence.

        Parameters
        ----------
        tokens
            Length of a sequence.
        column
            Column of lists of numbers.
        boundaries
            Whether batches have two more columns of int32: ``doc_ids``, the number of the document in its sequence, from 0,
            and ``positions`` in the document, or in its part in this sequence, from 0.
        eos
            Token put after each document, also one without tokens. It belongs to that document.
        documents
            ``"cut"``: a sequence may hold the end of one and the beginning of the next. ``"whole"``: those of a group are
            put into sequences by best fit; only one that is longer than a sequence is cut, into pieces of that length and
            a rest.
        pad
            Token in the gaps at the end of sequences of whole documents, whose ``doc_ids`` are -1. Default: 0.

        Raises
        ------
        UsageError
            When an argument is not valid, the column holds no lists of numbers, or there is a limit.
        """
        if self._sharding.limit is not None:
            raise UsageError("packed: its sequences have no end; make the loader without limit")
        packing = Packing(tokens, column, boundaries, eos, documents, pad)
        sources, mixture = self._reader.pack(packing)
        return PackedLoader(sources, mixture, self.describe(self.epoch, 0), self._output, self._transform)

    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        return self._reader.describe(epoch, step) | START | {"epoch": epoch, "step": step}

    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        return self._reader.read(epoch, first_step, self._output, self._transform)

    def read_share(self, epoch: int, first_step: int, every: int) -> Generator[Any]:
        return self._reader.read(epoch, first_step, self._output, self._transform, prefetch=0, every=every)


def _split(batches: Generator[Any], position: Position) -> Iterator[dict[str, Any]]:
    with closing(batches):
        for batch in batches:
            records = list(iterate_rows(batch))
            yield from records[:-1]
            position.step += 1
            yield from records[-1:]  # none if a transform left none


def _open_mix(
    open_one: Callable[[Any, list[str] | None], BatchReader],
    weights: Weights,
    names: list[str] | None,
    sharding: Sharding,
    weight_by: str | None,
) -> MixReader:
    from recshuf.train.mix_reader import MixReader, find_own_columns

    if not sharding.drop_last:
        raise UsageError("drop_last=False: a mix drops nothing, its next epoch goes on; leave it out")
    if weight_by is not None and not isinstance(weight_by, str):
        raise UsageError(f"weight_by={weight_by!r}: give the name of a column")
    own = find_own_columns(names)
    readers = [open_one(store, own) for store in weights.stores]
    return MixReader(readers, weights, names, sharding, weight_by)
