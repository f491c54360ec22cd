"""`MixLoader`: batches of several stores, by weight.

An epoch of a mix has ``steps * batch`` records, where the batch is the global one and ``steps * batch`` the records of all
stores, rounded down. Store i gives ``apportion(steps * batch, weights)[i]`` of them. Its records come in the order of its
own epochs, one after the other: mixed epoch e begins where e times that number ends. The first t batches hold
``count_before(t * batch, ...)`` records of each store. Within batch t the stores are sorted by raw outputs of
``Philox(SeedSequence(seed, spawn_key=(6, epoch, t)))``.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.random import Philox, SeedSequence

from recshuf.errors import UsageError
from recshuf.formats.selection import list_columns
from recshuf.piles.epochs import MAX_EPOCH
from recshuf.records.arrays import take_rows, wrap_values
from recshuf.records.batch import concat_batches
from recshuf.records.keys import sort_by_key
from recshuf.records.split import apportion, count_before
from recshuf.system.units import check_number, show_call
from recshuf.train.blocks import choose_block, make_batch
from recshuf.train.loader import PileLoader
from recshuf.train.prefetch import close_at_exit
from recshuf.train.schedule import Sharding
from recshuf.train.state import START, EpochLoader

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.epochs import Reshuffle
    from recshuf.train.batch_reader import BatchReader
    from recshuf.train.blocks import Output


STORE = "_store"
"""Name of the column with the number of the store."""
_LABELS = 6
_LEAST_CHUNK = 1024


class _Stream:
    """The records of a store, epoch after epoch."""

    def __init__(self, reader: BatchReader, size: int, chunk: int, start: int) -> None:
        self._reader, self._size, self._chunk = reader, size, chunk
        self._next = start
        self._held: pa.RecordBatch | None = None
        self._batches = self._read(start)

    def take(self, start: int, count: int) -> list[pa.RecordBatch]:
        """Return some records in parts; `start` does not lie before the end of the last ones."""
        parts = []
        while count:
            if self._held is None or not self._held.num_rows:
                self._held = next(self._batches)
            skipped = min(start - self._next, self._held.num_rows)
            taken = min(count, self._held.num_rows - skipped)
            if taken:
                parts.append(self._held.slice(skipped, taken))
            self._held = self._held.slice(skipped + taken)
            self._next += skipped + taken
            start, count = start + taken, count - taken
        return parts

    def close(self) -> None:
        """End the threads."""
        self._batches.close()

    def _read(self, start: int) -> Generator[pa.RecordBatch]:
        epoch, row = divmod(start, self._size)
        while True:
            with closing(self._reader.read(epoch, row // self._chunk, "arrow")) as batches:
                skipped = row % self._chunk
                for batch in batches:
                    yield batch.slice(skipped)
                    skipped = 0
            epoch, row = epoch + 1, 0


class MixLoader(EpochLoader):
    """Yields batches of several stores, each of which gives an exact number of records to an epoch.

    An epoch has as many records as the stores together, rounded down to whole global batches. Of these, a store gives its
    share by weight. Its records come epoch after epoch of its own, so that those of a small store with a large weight come
    several times. With n > 1 stores, the number of records of each in a global batch, and in all batches so far, is off
    its part of `counts` by less than n - 1. The order within a global batch is random. A mix has no `drop_last`, `transform`, `lanes`,
    ``records()`` or ``packed()``.

    Parameters
    ----------
    weights
        Weight of each store, by path or `PileStore`. All have the same columns. The order of the stores matters.
    seed
        Default: each store's own, and for the order within batches that of the first store.
    columns
        See `PileLoader`; ``"_store"`` adds the number of the store in `weights`.
    batch_size, epoch, reshuffle, rank, world_size, mix, prefetch, output
        See `PileLoader`. `prefetch` is that of each store.

    Raises
    ------
    UsageError
        When an argument is not valid, a store is empty, or the columns of two stores differ.
    """

    def __init__(
        self,
        weights: Mapping[Any, float],
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        reshuffle: Reshuffle = "rotate",
        rank: int = 0,
        world_size: int = 1,
        mix: int = 1,
        prefetch: int = 1,
        output: Output = "numpy",
    ) -> None:
        weights = _read_weights(weights)
        self._weights = {_name(store): weight for store, weight in weights.items()}
        epoch = check_number("epoch", epoch, MAX_EPOCH)
        self._sharding = Sharding(batch_size, rank, world_size)
        choose_block(output)
        self._output, self._columns = output, list_columns(columns)
        own = _find_own_columns(self._columns)
        self._chunk = max(_LEAST_CHUNK, self._sharding.batch)
        self._loaders = [
            PileLoader(
                store, self._chunk, columns=own, seed=seed, reshuffle=reshuffle, mix=mix, drop_last=False,
                prefetch=prefetch, output="arrow",
            )
            for store in weights
        ]  # fmt: skip
        _check_columns([loader.schema for loader in self._loaders], list(weights))
        if STORE in (self._columns or ()) and any(STORE in loader.known_columns for loader in self._loaders):
            raise UsageError(
                f"columns: two columns are called {STORE!r}; give the inputs another name, or leave it out"
            )
        known = [loader.reader.source.piles.nulls or () for loader in self._loaders]
        self._nulls = {name for names in known for name in names}
        self._sizes = [loader.num_records for loader in self._loaders]
        for store, size in zip(weights, self._sizes, strict=True):
            if not size:
                raise UsageError(f"{_name(store)}: holds no records; leave it out")
        batch = self._sharding.batch
        self._steps = sum(self._sizes) // batch
        self._counts = apportion(self._steps * batch, list(weights.values()))
        states = [loader.state_dict() for loader in self._loaders]
        stores = [
            [state["store"], state["snapshot"], state["seed"], count]
            for state, count in zip(states, self._counts, strict=True)
        ]
        digest = xxhash.xxh3_128_hexdigest(json.dumps(stores).encode())
        self._seed: int = states[0]["seed"]
        self._state = {
            "batch": batch,
            # Of the id, the snapshot and the seed of each store, and of the records that it gives to an epoch.
            "stores": digest,
            "seed": self._seed,
            "epoch": epoch,
            "reshuffle": reshuffle,
            "mix": states[0]["mix"],
            **START,
        }
        super().__init__(epoch)

    def __repr__(self) -> str:
        """Return what it yields."""
        shown = {"batch_size": self._sharding.batch_size, "epoch": self.epoch, "counts": self.counts}
        return show_call(type(self).__name__, self._weights, **shown)

    @property
    def counts(self) -> list[int]:
        """Number of records that each store gives to an epoch."""
        return list(self._counts)

    def _count_steps(self, _: int) -> int:
        return self._steps

    def _describe(self) -> dict[str, Any]:
        return dict(self._state)

    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        return close_at_exit(self._run(epoch, first_step))

    def _run(self, epoch: int, first_step: int) -> Generator[Any]:
        size, bases = self._sharding.batch, [epoch * count for count in self._counts]
        before = count_before(first_step * size, self._counts)
        with ExitStack() as stack:
            streams = [
                stack.enter_context(closing(_Stream(loader.reader, own, self._chunk, base + skipped)))
                for loader, own, base, skipped in zip(self._loaders, self._sizes, bases, before, strict=True)
            ]
            for step in range(first_step, self._steps):
                after = count_before((step + 1) * size, self._counts)
                labels = self._draw_labels(epoch, step, np.subtract(after, before))
                batch = self._join(streams, labels, np.add(bases, before).tolist())
                before = after
                yield batch

    def _draw_labels(self, epoch: int, step: int, counts: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the store of each record of a global batch."""
        outputs = Philox(SeedSequence(self._seed, spawn_key=(_LABELS, epoch, step)))
        return np.repeat(np.arange(len(counts)), counts)[
            sort_by_key(outputs.random_raw(self._sharding.batch))
        ]

    def _join(self, streams: Sequence[_Stream], labels: NDArray[np.intp], starts: Sequence[int]) -> Any:
        """Return this rank's part of a global batch."""
        size = self._sharding.batch_size
        first = self._sharding.rank * size
        skipped = np.bincount(labels[:first], minlength=len(streams))
        own = labels[first : first + size]
        parts = []
        for stream, start, skip, count in zip(
            streams, starts, skipped.tolist(), np.bincount(own, minlength=len(streams)).tolist(), strict=True
        ):
            parts += stream.take(start + skip, count)
        # Records are grouped by store; the k-th of all, by store, belongs where the label of that rank lies.
        index = np.empty(size, np.intp)
        index[np.argsort(own, kind="stable")] = np.arange(size)
        records = take_rows(concat_batches(parts), index)
        return make_batch(self._output, self._add_labels(records, own), self._nulls)

    def _add_labels(self, records: pa.RecordBatch, labels: NDArray[np.intp]) -> pa.RecordBatch:
        if self._columns is None or STORE not in self._columns:
            return records
        column = wrap_values(labels.astype(np.int64), pa.int64())
        return records.append_column(STORE, column).select(self._columns)


def _read_weights(weights: Any) -> dict[Any, float]:
    """Return the weights as numbers of Python."""
    if not hasattr(weights, "items") or not weights:
        raise UsageError(f"weights={weights!r}: give a dict from stores to their weights")
    read = {}
    for store, weight in weights.items():
        number = weight.item() if isinstance(weight, np.generic) else weight
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 < number < float("inf"):
            raise UsageError(f"{_name(store)}: its weight is {weight!r}; give a positive number")
        read[store] = number
    return read


def _find_own_columns(columns: list[str] | None) -> list[str] | None:
    """Return the columns that the stores hold."""
    if columns is None:
        return None
    own = [name for name in columns if name != STORE]
    if not own and columns:
        raise UsageError(f"columns={columns!r}: name at least one column of the stores, too")
    if columns.count(STORE) > 1:
        raise UsageError(f"columns: {STORE!r} is named twice; name it once")
    return own


def _check_columns(schemas: Sequence[pa.Schema], stores: Sequence[Any]) -> None:
    for schema, store in zip(schemas, stores, strict=True):
        if not schema.equals(schemas[0], check_metadata=False):
            raise UsageError(
                f"{_name(store)}: has other columns than {_name(stores[0])}: {_show(schema)} and {_show(schemas[0])}; "
                "choose equal ones with columns, or make the stores with one schema"
            )


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)


def _name(store: Any) -> str:
    return str(getattr(store, "path", store))
