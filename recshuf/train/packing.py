"""Sequences of one length for language models, cut from documents in the order of the epochs.

The documents of a lane, epoch after epoch, are one stream of tokens. It is cut into sequences without gaps; a sequence
may hold the end of one document and the beginning of the next. A global batch takes as many sequences from each lane, so
the number of batches tells where every lane stands.

    documents   | a a a a a | b b | c c c c c c c c | d d ...
    sequences   | a a a a | a b b c | c c c c | c c c d | ...
    doc_ids     | 0 0 0 0 | 0 1 1 2 | 0 0 0 0 | 0 0 0 1 | ...
    positions   | 0 1 2 3 | 0 0 1 0 | 0 1 2 3 | 0 1 2 0 | ...

Lane l is the groups l, l + L, l + 2 L ... of an epoch, and then those of the next one. The number of tokens of each group
tells where it stands:

    tokens of groups    0: 5   1: 9   2: 4   3: 2        lane 0 of 2 has 9, lane 1 has 11
    after 7 tokens      lane 0 is at token 2 of group 2, lane 1 at token 7 of group 1

With documents that are kept whole, the tokens of a group are those of whole sequences, with their gaps.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.records.arrays import take_rows, wrap_values
from recshuf.system.units import show_call
from recshuf.train.blocks import Part, choose_block
from recshuf.train.documents import DOC_IDS, POSITIONS
from recshuf.train.lanes import Position, RecordLane, Stream, find_position, read_lanes
from recshuf.train.loading import close_at_exit
from recshuf.train.schedule import MOST_STEPS
from recshuf.train.state import ResumableLoader
from recshuf.train.weights import find_places

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from recshuf.train.blocks import Transform
    from recshuf.train.documents import DocumentSource, GroupTokens, TokenCounter
    from recshuf.train.weights import Mixture


class PackedLoader(ResumableLoader):
    """Yields batches of sequences without end: epoch follows epoch. See `PileLoader.packed`.

    A batch is a dictionary of arrays or tensors of shape ``(batch_size, tokens)``, or a record batch. It has no length. Its
    state is that of the `PileLoader`, with the epoch of the first batch, `tokens`, `column`, and what else was given.

    Parameters
    ----------
    sources
        The documents of each store.
    mixture
        Of which stores the sequences of batches are.
    start
        State of the loader at the first batch.
    """

    def __init__(
        self,
        sources: Sequence[DocumentSource],
        mixture: Mixture,
        start: dict[str, Any],
        output: str,
        transform: Transform | None = None,
    ) -> None:
        kinds = [source.find_type() for source in sources]
        for source, kind in zip(sources, kinds, strict=True):
            if kind != kinds[0]:
                raise UsageError(
                    f"column={source.packing.column!r}: {source.groups.piles.path} holds tokens of {kind}, and "
                    f"{sources[0].groups.piles.path} of {kinds[0]}; make the stores with one type"
                )
        self._kind, self._packing = kinds[0], sources[0].packing.conform(kinds[0])
        self._sources = [replace(source, packing=self._packing) for source in sources]
        self._mixture, self._start_state = mixture, start
        self._output, self._transform = output, transform
        self._counters: dict[int, TokenCounter] = {}
        for source in sources:
            source.groups.check_lanes(start["epoch"], mixture.sharding.lanes)
        super().__init__(start["epoch"])

    def show(self, name: str, **_: Any) -> str:
        shown = self._packing.describe() | {"batch_size": self._mixture.sharding.batch_size}
        paths = [str(source.groups.piles.path) for source in self._sources]
        return show_call(name, *paths, **shown)

    def shard(self, rank: int, world_size: int) -> None:
        sharding = replace(self._mixture.sharding, rank=rank, world_size=world_size)
        self._mixture = replace(self._mixture, sharding=sharding)

    def _count_steps(self, _: int) -> int:
        return MOST_STEPS

    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        own = {"batch": self._mixture.sharding.batch, "epoch": epoch, "step": step}
        return self._start_state | self._mixture.describe(step) | own | self._packing.describe()

    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        return close_at_exit(self._run(epoch, first_step, self._sources[0].groups.prefetch, 1))

    def read_share(self, epoch: int, first_step: int, every: int) -> Generator[Any]:
        return close_at_exit(self._run(epoch, first_step, 0, every))

    def _run(self, epoch: int, step: int, prefetch: int, every: int) -> Generator[Any]:
        order, sharding = replace(self._sources[0].groups.order, epoch=epoch), self._mixture.sharding
        opened = [cache(source.groups.open) for source in self._sources]

        def open_tokens(lane: int, store: int, sequences: int) -> tuple[Generator[GroupTokens], int]:
            source, position = self._sources[store], Position(epoch, 0, 0)
            if sequences:
                counter = self._counters[store] = self._counters.get(store) or source.make_counter()
                tokens = sequences * self._packing.tokens
                position = find_position(opened[store], counter, lane, sharding.lanes, epoch, tokens)
            return source.read(lane, sharding.lanes, *position[:2], prefetch), position.rows

        def open_lane(lane: int) -> RecordLane:
            share = self._mixture.share(lane)
            return RecordLane(share, step, lambda *place: Stream(partial(open_tokens, lane, *place)))

        steps, unit = count(step, every), self._packing.tokens
        with closing(read_lanes(self._mixture, open_lane, epoch, steps, every, unit)) as batches:
            for number, parts, labels in batches:
                batch = self._cut(parts, labels)
                parts.clear()  # to free what is used up
                if self._transform is not None:
                    first = number * sharding.batch + sharding.rank * sharding.batch_size
                    numbers = np.arange(first, first + sharding.batch_size, dtype=np.uint64)
                    batch = self._transform(batch, order.draw_seeds(numbers))
                yield batch
                del batch

    def _cut(self, parts: Sequence[GroupTokens], labels: list[NDArray[np.intp]]) -> Any:
        """Return a batch of the sequences of these tokens."""
        size, columns = self._packing.tokens, dict[str, pa.Array]()
        columns[self._packing.column] = wrap_values(_join([part.tokens for part in parts]), self._kind)
        if self._packing.boundaries:
            columns |= _mark(parts, self._mixture.sharding.batch_size, size)
        sequences = [pa.FixedSizeListArray.from_arrays(values, size) for values in columns.values()]
        records = pa.RecordBatch.from_arrays(sequences, names=list(columns))
        if len(self._sources) > 1:
            records = take_rows(records, find_places(labels))
        block = choose_block(self._output)(records)
        return block.cut([Part(block, 0, records.num_rows)])


def _mark(parts: Sequence[GroupTokens], count: int, size: int) -> dict[str, pa.Array]:
    """Return the document of each token of some sequences, counted in its sequence, and its position in the piece there."""
    offsets = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])]).tolist()
    begins, gaps = (
        np.concatenate([one + offset for one, offset in zip(ones, offsets, strict=True)])
        for ones in ([part.begins for part in parts], [part.gaps for part in parts])
    )
    firsts = np.arange(0, count * size, size)
    begins = np.sort(np.concatenate([begins, firsts]))
    begins = begins[np.append(begins[1:] != begins[:-1], True)]
    numbers = np.arange(len(begins)) - np.searchsorted(begins, firsts)[begins // size]
    numbers[np.searchsorted(begins, gaps)] = -1
    lengths = np.append(begins[1:], count * size) - begins
    ids = np.repeat(numbers.astype(np.int32), lengths)
    positions = np.tile(np.arange(size, dtype=np.int32), count)
    positions -= np.repeat((begins % size).astype(np.int32), lengths)
    return {DOC_IDS: wrap_values(ids, pa.int32()), POSITIONS: wrap_values(positions, pa.int32())}


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
