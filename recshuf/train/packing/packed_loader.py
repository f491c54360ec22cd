"""Sequences of one length for language models, cut from documents in the order of the epochs.

The documents of a lane, epoch after epoch, are one stream of tokens. It is cut into sequences without gaps; a sequence
may hold the end of one document and the beginning of the next. A global batch takes as many sequences from each lane, so
the number of batches tells where every lane stands.

    documents   | a a a a a | b b | c c c c c c c c | d d ...
    sequences   | a a a a | a b b c | c c c c | c c c d | ...
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.arrow_views import wrap_values
from recshuf.system.numbers import check_number
from recshuf.train.blocks import make_batch
from recshuf.train.packing.documents import LanePosition
from recshuf.train.packing.lane_positions import LaneFinder
from recshuf.train.packing.lane_tokens import LaneTokens
from recshuf.train.position import Position, count_batches
from recshuf.train.prefetch import close_at_exit
from recshuf.train.state import find_position
from recshuf.train.stores import EpochPiles

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from recshuf.train.packing.documents import DocumentSource
    from recshuf.train.schedule import Sharding
    from recshuf.train.state import LoaderState

_MOST_TOKENS = 1 << 31


class PackedLoader:
    """Yields batches of sequences without end: epoch follows epoch. See `PileLoader.packed`.

    It has no length and no `set_epoch`.

    Parameters
    ----------
    start
        Describes the loader at its first batch.
    tokens
        Length of a sequence.
    column
        Column of lists of numbers.

    Raises
    ------
    UsageError
        When the column holds no tokens, a lane has no records in the first epoch, or an argument is not valid.
    """

    def __init__(
        self,
        source: DocumentSource,
        sharding: Sharding,
        start: LoaderState,
        output: str,
        tokens: int,
        column: str,
    ) -> None:
        tokens = check_number("tokens", tokens, _MOST_TOKENS, least=1)
        self._source, self._sharding, self._start, self._output = source, sharding, start, output
        self._tokens, self._column = tokens, column
        self._kind = source.find_type(column)
        source.check_lanes(sharding.lanes)
        share = sharding.lanes // sharding.world_size if sharding.lanes > 1 else 1
        first = sharding.rank * share if sharding.lanes > 1 else 0
        self._lanes = range(first, first + share)
        self._lane_tokens = sharding.batch // sharding.lanes * tokens
        self._position = Position(start.epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over batches, once from where `load_state_dict` went, else from the first one.

        A batch is a dictionary of one array or tensor of shape ``(batch_size, tokens)``, or a record batch.
        """
        position = self._position = self._position.begin()
        return count_batches(close_at_exit(self._run(position.epoch, position.step)), position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON of some 300 bytes, the same on every rank: the state of a `PileLoader`.

        It has the epoch of the first batch, how many global batches the latest iterator yielded, `tokens` and `column`.
        """
        position = replace(self._start, epoch=self._position.epoch, step=self._position.step)
        return position.to_dict() | {"tokens": self._tokens, "column": self._column}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the next iteration, on any number of ranks.

        Raises
        ------
        UsageError
            When the state is of another store, or of other batches; names the field and both values.
        """
        self._position = Position(*find_position(self.state_dict(), state))

    def _run(self, epoch: int, step: int) -> Generator[Any]:
        with ExitStack() as stack:
            streams = self._open_streams(stack, epoch, step)
            while True:
                yield self._cut(streams)

    def _open_streams(self, stack: ExitStack, epoch: int, step: int) -> list[LaneTokens]:
        """Return the streams of this rank's lanes, so many steps after the beginning of an epoch."""
        source, lanes, column = self._source, self._sharding.lanes, self._column
        epochs, counter = EpochPiles(source.piles), source.find_counter(column)
        positions = dict.fromkeys(self._lanes, LanePosition(epoch, 0, 0))
        if step and counter is not None:
            finder = LaneFinder(source, epochs, counter, lanes)
            # Epochs are kept until the streams have opened them, too.
            positions, _epochs = finder.find(self._lanes, epoch, step * self._lane_tokens)
        streams = []
        for lane in self._lanes:
            groups = source.read(epochs, column, lane, lanes, positions[lane])
            streams.append(LaneTokens(stack.enter_context(closing(groups)), positions[lane].token))
        if counter is None:
            self._skip_steps(streams, step)
        return streams

    def _skip_steps(self, streams: list[LaneTokens], steps: int) -> None:
        # Step by step, so that all lanes are in the same epochs, whose piles with new keys are written once.
        for _ in range(steps):
            for stream in streams:
                stream.skip(self._lane_tokens)

    def _cut(self, streams: list[LaneTokens]) -> Any:
        """Return the next batch of this rank."""
        batch, sharding = self._sharding.batch_size, self._sharding
        others = (
            (sharding.world_size - 1) * batch if sharding.lanes == 1 else 0
        )  # rows of other ranks in the lane
        before = sharding.rank * batch if sharding.lanes == 1 else 0
        tokens = np.empty((len(streams), batch // len(streams) * self._tokens), self._kind.to_pandas_dtype())
        for stream, part in zip(streams, tokens, strict=True):
            stream.skip(before * self._tokens)
            stream.fill(part)
            stream.skip((others - before) * self._tokens)
        values = wrap_values(tokens.reshape(-1), self._kind)
        sequences = pa.FixedSizeListArray.from_arrays(values, self._tokens)
        records = pa.RecordBatch.from_arrays([sequences], names=[self._column])
        return make_batch(self._output, records)
