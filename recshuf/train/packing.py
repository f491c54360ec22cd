"""Sequences of one length for language models, cut from documents in the order of the epochs.

The documents of a lane, epoch after epoch, are one stream of tokens. It is cut into sequences without gaps; a sequence
may hold the end of one document and the beginning of the next. A global batch takes as many sequences from each lane, so
the number of batches tells where every lane stands.

    documents   | a a a a a | b b | c c c c c c c c | d d ...
    sequences   | a a a a | a b b c | c c c c | c c c d | ...

Lane l is the groups l, l + L, l + 2 L ... of an epoch, and then those of the next one. The number of tokens of each region
tells where it stands:

    tokens of groups    0: 5   1: 9   2: 4   3: 2        lane 0 of 2 has 9, lane 1 has 11
    after 7 tokens      lane 0 is at token 2 of group 2, lane 1 at token 7 of group 1
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.records.arrays import wrap_values
from recshuf.system.units import check_number, show_call
from recshuf.train.blocks import make_batch
from recshuf.train.documents import LanePosition, find_lane
from recshuf.train.prefetch import close_at_exit
from recshuf.train.state import ResumableLoader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from recshuf.train.documents import DocumentSource, GroupTokens, TokenCounter
    from recshuf.train.schedule import Sharding


def lack_tokens() -> UsageError:
    """Return the error for an epoch in which a lane has no tokens."""
    return UsageError(
        "no document of a lane holds tokens; give fewer lanes if there are several, else name another column"
    )


class LaneTokens:
    """The stream of tokens of a lane.

    Parameters
    ----------
    groups
        The tokens of its groups, without end.
    offset
        Number of tokens of the first group to leave out.
    """

    def __init__(self, groups: Generator[GroupTokens], offset: int) -> None:
        self._groups = groups
        self._group = next(groups)
        self._offset = offset
        self._last_epoch = self._group.epoch

    def skip(self, count: int) -> None:
        """Skip some tokens."""
        for _ in self._take(count):
            pass

    def fill(self, tokens: NDArray[Any]) -> None:
        """Write the next tokens to an array of shape ``(n,)``."""
        done = 0
        for part in self._take(len(tokens)):
            tokens[done : done + len(part)] = part
            done += len(part)

    def _take(self, count: int) -> Iterator[NDArray[Any]]:
        """Yield the next tokens in parts."""
        while count:
            part = self._group.tokens[self._offset : self._offset + count]
            self._offset += len(part)
            count -= len(part)
            yield part
            if count:
                self._read_next()

    def _read_next(self) -> None:
        if len(self._group.tokens):
            self._last_epoch = self._group.epoch
        self._group, self._offset = next(self._groups), 0
        if self._group.epoch > self._last_epoch + 1:
            raise lack_tokens()


@dataclass(frozen=True, slots=True)
class LaneFinder:
    """Finds positions in the lanes of a source.

    Parameters
    ----------
    count
        Counts the tokens of regions.
    lanes
        Number of all lanes.
    """

    source: DocumentSource
    count: TokenCounter
    lanes: int

    def find(self, wanted: range, epoch: int, tokens: int) -> dict[int, LanePosition]:
        """Return the position of each wanted lane, by lane, so many tokens after the beginning of an epoch."""
        passed, tokens = self._pass_epochs(tokens)
        rest, first = dict.fromkeys(wanted, tokens), epoch
        epoch += passed
        positions: dict[int, LanePosition] = {}
        counts_of_regions = self.count()
        while rest:
            groups = self.source.groups.open(epoch)
            counts = groups.sum(counts_of_regions)
            for lane in list(rest):
                numbers = find_lane(groups, epoch, lane, self.lanes)
                ends = np.cumsum(counts[numbers])
                if rest[lane] < ends[-1]:
                    at = int(np.searchsorted(ends, rest[lane], side="right"))
                    begin = int(ends[at]) - int(counts[numbers[at]])
                    positions[lane] = LanePosition(epoch, int(numbers[at]), rest.pop(lane) - begin)
                elif not ends[-1] and epoch > first:
                    raise lack_tokens()
                else:
                    rest[lane] -= int(ends[-1])
            epoch += 1
        return positions

    def _pass_epochs(self, tokens: int) -> tuple[int, int]:
        """Return how many whole epochs lie before a token, if all have as many, and its number in the next one."""
        total = int(self.count().sum()) if self.lanes == 1 else 0
        return divmod(tokens, total) if total else (0, tokens)


_MOST_TOKENS = 1 << 31


class PackedLoader(ResumableLoader):
    """Yields batches of sequences without end: epoch follows epoch. See `PileLoader.packed`.

    A batch is a dictionary of one array or tensor of shape ``(batch_size, tokens)``, or a record batch. It has no length and
    no `set_epoch`. Its state is that of the `PileLoader`, with the epoch of the first batch, `tokens` and `column`.

    Parameters
    ----------
    start
        State of the loader at the first batch.
    tokens
        Length of a sequence.
    """

    def __init__(
        self, source: DocumentSource, sharding: Sharding, start: dict[str, Any], output: str, tokens: int
    ) -> None:
        self._tokens = check_number("tokens", tokens, _MOST_TOKENS, least=1)
        self._source, self._sharding, self._start_state, self._output = source, sharding, start, output
        self._kind = source.find_type()
        groups = source.groups.open(start["epoch"])
        for lane in range(sharding.lanes):
            find_lane(groups, start["epoch"], lane, sharding.lanes)
        share = sharding.lanes // sharding.world_size if sharding.lanes > 1 else 1
        first = sharding.rank * share if sharding.lanes > 1 else 0
        self._lanes = range(first, first + share)
        self._lane_tokens = sharding.batch // sharding.lanes * tokens
        super().__init__(start["epoch"])

    def __repr__(self) -> str:
        """Return what it yields."""
        batch, source = self._sharding.batch_size, self._source
        shown = {"tokens": self._tokens, "column": source.column, "batch_size": batch}
        return show_call(type(self).__name__, str(source.groups.piles.path), **shown)

    def _describe(self) -> dict[str, Any]:
        return self._start_state | {"tokens": self._tokens, "column": self._source.column}

    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        return close_at_exit(self._run(epoch, first_step))

    def _run(self, epoch: int, step: int) -> Generator[Any]:
        with ExitStack() as stack:
            streams = self._open_streams(stack, epoch, step)
            while True:
                yield self._cut(streams)

    def _open_streams(self, stack: ExitStack, epoch: int, step: int) -> list[LaneTokens]:
        """Return the streams of this rank's lanes, so many steps after the beginning of an epoch."""
        source, lanes = self._source, self._sharding.lanes
        counter = source.find_counter()
        positions = dict.fromkeys(self._lanes, LanePosition(epoch, 0, 0))
        if step and counter is not None:
            finder = LaneFinder(source, counter, lanes)
            positions = finder.find(self._lanes, epoch, step * self._lane_tokens)
        streams = []
        for lane in self._lanes:
            groups = source.read(lane, lanes, positions[lane])
            streams.append(LaneTokens(stack.enter_context(closing(groups)), positions[lane].token))
        if counter is None:
            for stream in streams:
                stream.skip(step * self._lane_tokens)
        return streams

    def _cut(self, streams: list[LaneTokens]) -> Any:
        """Return the next batch of this rank."""
        batch, sharding = self._sharding.batch_size, self._sharding
        is_shared = sharding.lanes == 1  # the lane, with other ranks
        before = sharding.rank * batch if is_shared else 0
        others = (sharding.world_size - 1) * batch if is_shared else 0
        tokens = np.empty((len(streams), batch // len(streams) * self._tokens), self._kind.to_pandas_dtype())
        for stream, part in zip(streams, tokens, strict=True):
            stream.skip(before * self._tokens)
            stream.fill(part)
            stream.skip((others - before) * self._tokens)
        values = wrap_values(tokens.reshape(-1), self._kind)
        sequences = pa.FixedSizeListArray.from_arrays(values, self._tokens)
        records = pa.RecordBatch.from_arrays([sequences], names=[self._source.column])
        return make_batch(self._output, records)
