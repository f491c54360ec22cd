"""Reads the batches of a mix of stores: what `BatchReader` is for one store.

An epoch has as many batches as the stores that have a weight at step 0 have records for, or as a limit says. Each of L lanes has ``batch / L``
records of a global batch, from its own lane of every store, which goes on from epoch to epoch of the store. Within a lane
of batch t the stores are sorted by raw outputs of ``Philox(SeedSequence(seed, spawn_key=(6, epoch, t)))``, with several
lanes ``(6, epoch, t, lane)``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.metadata import compare_meanings
from recshuf.formats.stored import read_metadata
from recshuf.job.report import PythonWarnings
from recshuf.records.arrays import has_offsets, take_rows, wrap_values
from recshuf.records.batch import concat_batches
from recshuf.train.blocks import Part, choose_block
from recshuf.train.documents import DocumentSource, StoredCounter, sum_lengths
from recshuf.train.lanes import RecordLane, StoreMap, Stream, TokenLane, find_position, read_lanes
from recshuf.train.loading import close_at_exit
from recshuf.train.weights import SEQUENCE_STEPS, Mixture, find_places, name_store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray

    from recshuf.train.batch_reader import BatchReader
    from recshuf.train.blocks import Transform
    from recshuf.train.documents import Packing
    from recshuf.train.lanes import Place
    from recshuf.train.schedule import Sharding
    from recshuf.train.weights import Weights


STORE = "_store"
"""Name of the column with the number of the store."""


class MixReader:
    """Reads the batches that one rank gets of any epoch of a mix, from any step on. It has no position.

    Parameters
    ----------
    readers
        Those of the stores, of the columns that `find_own_columns` returns.
    columns
        Names of columns, also `STORE`. Default: all of the stores.
    weight_by
        Column whose lengths the weights share. Default: they share records.
    """

    def __init__(
        self,
        readers: Sequence[BatchReader],
        weights: Weights,
        columns: list[str] | None,
        sharding: Sharding,
        weight_by: str | None,
    ) -> None:
        self._readers, self._weights, self._columns, self._weight_by = readers, weights, columns, weight_by
        self._check_stores()
        self._schema = readers[0].schema
        self._measured, self._is_extra = None, False
        if weight_by is not None:
            self._measured, self._is_extra = self._add_measured(weight_by)
        self._sizes = [int(reader.source.piles.counts.sum()) for reader in readers]
        for store, size in zip(weights.stores, self._sizes, strict=True):
            if not size:
                raise UsageError(f"{name_store(store)}: holds no records; leave it out")
        self._nulls = {name for reader in readers for name in reader.source.piles.nulls or ()}
        self.shard(sharding)

    def _check_stores(self) -> None:
        stores, first = self._weights.stores, self._readers[0].schema
        names: dict[tuple[str, int], Any] = {}
        for number, (reader, store) in enumerate(zip(self._readers, stores, strict=True)):
            piles = reader.source.piles
            if (other := names.setdefault((piles.store_id, piles.snapshot), store)) is not store:
                PythonWarnings().warn(
                    f"{name_store(store)}: is the store {name_store(other)}, or a copy; its records come twice, in one order; "
                    "give it one name and one weight"
                )
            if not reader.schema.equals(first, check_metadata=False):
                raise UsageError(
                    f"{name_store(store)}: has other columns than {name_store(stores[0])}: {_show(reader.schema)} and "
                    f"{_show(first)}; choose equal ones with columns, or make the stores with one schema"
                )
            self._compare_meanings(number)
        if STORE in (self._columns or ()) and any(STORE in one.selection.known for one in self._readers):
            raise UsageError(
                f"columns: two columns are called {STORE!r}; give the inputs another name, or leave it out"
            )

    def _compare_meanings(self, number: int) -> None:
        """Warn if what a store says of its records, as of labels and units, contradicts the first one."""
        origins = (self._readers[each].source.piles.info.origin or {} for each in (0, number))
        first, other = map(read_metadata, origins)
        if first is None or other is None:
            return
        for said in compare_meanings(first, other, self._readers[0].schema.names):
            stores = (name_store(self._weights.stores[each]) for each in (0, number))
            PythonWarnings().warn(
                f"{' and '.join(stores)}: {said}; so equal values mean different things, and are mixed"
            )

    def _add_measured(self, name: str) -> tuple[int, bool]:
        """Have the column read that weights count; return its number, and whether nobody else wants it."""
        for reader, store in zip(self._readers, self._weights.stores, strict=True):
            if name not in reader.known:
                known = ", ".join(map(repr, reader.known))
                raise UsageError(f"weight_by={name!r}: no such column in {name_store(store)}; it has {known}")
            reader.add_column(name)
        for number in range(len(self._readers)):
            self._count_tokens(number)
        return self._readers[0].schema.names.index(name), name not in self._schema.names

    def _count_tokens(self, number: int) -> NDArray[np.int64]:
        """Return how much the regions of a store weigh, shape ``(K, M)``."""
        name, piles = str(self._weight_by), self._readers[number].source.piles
        store, kind = self._weights.stores[number], self._readers[number].schema.field(name).type
        if not (has_offsets(kind) or pa.types.is_fixed_size_list(kind)):
            raise UsageError(
                f"weight_by={name!r}: {name_store(store)} has {kind} there, which has no length; name a column of lists or text"
            )
        counts = sum_lengths(piles, name, kind)
        if counts is None:
            raise UsageError(
                f"weight_by={name!r}: only decoding tells how long the values in {name_store(store)} are; make the store from tables or "
                "Parquet files, or leave out weight_by"
            )
        if not counts.any():
            raise UsageError(
                f"weight_by={name!r}: all values in {name_store(store)} are empty; leave the store out"
            )
        return counts

    @property
    def schema(self) -> pa.Schema:
        if self._columns is None:
            return self._schema
        store = pa.field(STORE, pa.int64())
        return pa.schema([store if name == STORE else self._schema.field(name) for name in self._columns])

    @property
    def known(self) -> list[str]:
        return self._readers[0].selection.known

    @property
    def num_records(self) -> int:
        return sum(self._sizes)

    @property
    def mix(self) -> int:
        return self._readers[0].source.order.mix

    @property
    def part(self) -> dict[str, Any]:
        """The fields of a state that only a part of the records has."""
        return {} if self._sharding.limit is None else {"limit": self._sharding.limit}

    @property
    def name(self) -> Any:
        return self._weights.show()

    def shard(self, sharding: Sharding) -> None:
        used = zip(self._weights.stretches[0].weights, self._sizes, strict=True)
        records = sum(size for weight, size in used if weight)
        steps = (records if sharding.limit is None else min(records, sharding.limit)) // sharding.batch
        self._sharding = sharding
        self._mixture = self._mix(steps, sharding, has_shares=self._weight_by is None)
        stores = zip(self._readers, self._weights.stores, strict=True)
        for reader, store in stores if sharding.lanes > 1 else ():
            try:
                reader.source.check_lanes(reader.source.order.epoch, sharding.lanes)
            except UsageError as error:
                raise UsageError(f"{name_store(store)}: {error}") from None

    def _mix(self, steps: int, sharding: Sharding, *, has_shares: bool) -> Mixture:
        """Return of which stores batches are, if an epoch has so many."""
        sources, seed = [reader.source for reader in self._readers], self._readers[0].source.order.seed
        stores = [[one.piles.store_id, one.piles.snapshot, one.order.seed] for one in sources]
        for store, source in zip(stores, sources, strict=True):
            store += [source.piles.kept] if hasattr(source.piles, "kept") else []  # by a filter
        contents = tuple(source.piles.content for source in sources)
        stretches = self._weights.count_from(steps)
        return Mixture(stretches, steps, sharding, seed, tuple(stores), has_shares, contents)

    def pack(self, packing: Packing) -> tuple[list[DocumentSource], Mixture]:
        """Return the documents of the stores, and of which stores the sequences of batches are: weights share sequences."""
        if self._weight_by is not None:
            raise UsageError(
                "packed: weights share sequences, all of one length; make the mix without weight_by"
            )
        if self._weights.unit != "step":
            raise UsageError("packed: sequences have no epochs; make the mix with schedule_by='step'")
        sources = [DocumentSource(reader.source, reader, packing) for reader in self._readers]
        return sources, self._mix(SEQUENCE_STEPS, self._sharding, has_shares=True)

    def count_steps(self, _: int) -> int:
        return self._mixture.steps

    def count_records(self, epoch: int) -> list[int]:
        """Return how many records each store gives to an epoch."""
        if self._weight_by is not None:
            raise UsageError(
                "counts: with weight_by, only reading tells how many records a store gives; count _store"
            )
        ends = [epoch * self._mixture.steps, (epoch + 1) * self._mixture.steps]
        parts = [
            [self._mixture.share(lane).before(end) for end in ends] for lane in range(self._sharding.lanes)
        ]
        counts: list[int] = np.diff(np.sum(parts, axis=0, dtype=object), axis=0)[0].tolist()
        return counts

    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        order, mixture = self._readers[0].source.order, self._mixture
        return {
            "batch": self._sharding.batch,
            "lanes": self._sharding.lanes,
            "weight_by": self._weight_by,
            **mixture.describe(epoch * mixture.steps + step),
            "seed": order.seed,
            "reshuffle": order.reshuffle,
            "mix": order.mix,
            **self.part,
        }

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
        """Return an iterator over the batches of an epoch from a step on; see `BatchReader.read`."""
        make_block = choose_block(output, self._nulls, transform)
        begin = epoch * self._mixture.steps + first_step
        open_lane = partial(self._open_lane, begin, transform is not None, prefetch)
        return close_at_exit(self._run(epoch, first_step, every, make_block, open_lane))

    def _run(
        self,
        epoch: int,
        first_step: int,
        every: int,
        make_block: Any,
        open_lane: Callable[[int], RecordLane | TokenLane],
    ) -> Generator[Any]:
        steps = range(first_step, self._mixture.steps, every)
        if not steps:
            return
        with closing(read_lanes(self._mixture, open_lane, epoch, steps, every)) as batches:
            for _, parts, labels in batches:
                block = make_block(self._join(parts, labels))
                parts.clear()  # to free what is used up
                yield block.cut([Part(block, 0, self._sharding.batch_size)])
                del block

    def _open_lane(
        self, step: int, has_seeds: bool, prefetch: int | None, lane: int
    ) -> RecordLane | TokenLane:
        """Return a lane from a step on, counted since step 0 of epoch 0."""
        lanes, sources = self._sharding.lanes, [reader.source for reader in self._readers]

        def read(store: int, epoch: int, group: int) -> Generator[pa.RecordBatch]:
            ahead = sources[store].prefetch if prefetch is None else prefetch
            seeds = (store,) if has_seeds else None
            return self._readers[store].read_lane(lane, lanes, epoch, group, seeds, ahead)

        def open_at(store: int, row: int) -> tuple[Generator[pa.RecordBatch], int]:
            counter = StoredCounter(sources[store].piles.counts)
            found = find_position(sources[store].open, counter, lane, lanes, 0, row)
            return read(store, found.epoch, found.group), found.rows

        def open_stream(store: int, place: Place) -> Stream:
            return Stream(lambda: (read(store, place.epoch, place.group), 0), self._measured, self._is_extra)

        if self._weight_by is None:
            return RecordLane(
                self._mixture.share(lane), step, lambda store, row: Stream(partial(open_at, store, row))
            )
        maps = [StoreMap(source, lanes, self._count_tokens(number)) for number, source in enumerate(sources)]
        return TokenLane(self._mixture.stretches, self._mixture.rows, maps, open_stream, lane, step)

    def _join(self, parts: Sequence[pa.RecordBatch], labels: list[NDArray[np.intp]]) -> pa.RecordBatch:
        """Return the records of this rank's parts of lanes in order, with the wanted columns."""
        records = take_rows(concat_batches(parts), find_places(labels))
        if self._columns is None or STORE not in self._columns:
            return records
        numbers = wrap_values(np.concatenate(labels).astype(np.int64), pa.int64())
        return records.add_column(self._columns.index(STORE), pa.field(STORE, pa.int64()), numbers)


def find_own_columns(columns: list[str] | None) -> list[str] | None:
    if columns is None:
        return None
    own = [name for name in columns if name != STORE]
    if not own and columns:
        raise UsageError(f"columns={columns!r}: name at least one column of the stores, too")
    if columns.count(STORE) > 1:
        raise UsageError(f"columns: {STORE!r} is named twice; name it once")
    return own


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
