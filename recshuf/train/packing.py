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

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.piles.epochs import MAX_EPOCH
from recshuf.records.arrays import take_rows, wrap_values
from recshuf.system.units import check_number, show_call
from recshuf.train.blocks import make_batch
from recshuf.train.documents import DOC_IDS, POSITIONS, GroupTokens, LanePosition, find_lane
from recshuf.train.prefetch import close_at_exit
from recshuf.train.schedule import MOST_STEPS
from recshuf.train.state import ResumableLoader
from recshuf.train.weights import find_places

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.train.blocks import Transform
    from recshuf.train.documents import DocumentSource, TokenCounter
    from recshuf.train.weights import Mixture, RecordShares


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
        self._groups, self._offset = groups, offset
        self._group: GroupTokens | None = None
        self._last_epoch = 0

    def skip(self, count: int) -> None:
        """Skip some tokens."""
        for _ in self._pass(count):
            pass

    def take(self, count: int) -> list[GroupTokens]:
        """Return the next tokens in parts."""
        return [group.cut(start, stop) for group, start, stop in self._pass(count)]

    def _pass(self, count: int) -> Iterator[tuple[GroupTokens, int, int]]:
        """Yield ranges of tokens of groups, the next ones."""
        while count:
            if self._group is None:
                self._group = next(self._groups)
                self._last_epoch = self._group.epoch
            start, self._offset = self._offset, min(self._offset + count, len(self._group.tokens))
            count -= self._offset - start
            if start < self._offset:
                yield self._group, start, self._offset
            if count:
                self._read_next(self._group)

    def _read_next(self, group: GroupTokens) -> None:
        if len(group.tokens):
            self._last_epoch = group.epoch
        self._group, self._offset = next(self._groups), 0
        if self._group.epoch > self._last_epoch + 1:
            raise lack_tokens()


@dataclass(frozen=True, slots=True)
class LaneFinder:
    """Finds positions in the lanes of a source."""

    source: DocumentSource
    counter: TokenCounter
    lanes: int
    """Number of all lanes."""

    def find(self, wanted: Iterable[int], epoch: int, tokens: int) -> dict[int, LanePosition]:
        """Return the position of each wanted lane, by lane, so many tokens after the beginning of an epoch."""
        passed, tokens = self._pass_epochs(tokens)
        rest, first = dict.fromkeys(wanted, tokens), epoch
        epoch += passed
        positions: dict[int, LanePosition] = {}
        while rest:
            groups = self.source.groups.open(epoch)
            for lane in list(rest):
                numbers = find_lane(groups, epoch, lane, self.lanes)
                counts = self.counter.count(groups, numbers, rest[lane])
                ends = np.cumsum(counts)
                if rest[lane] < ends[-1]:
                    at = int(np.searchsorted(ends, rest[lane], side="right"))
                    begin = int(ends[at] - counts[at])
                    positions[lane] = LanePosition(epoch, int(numbers[at]), rest.pop(lane) - begin)
                elif not ends[-1] and epoch > first:
                    raise lack_tokens()
                else:
                    rest[lane] -= int(ends[-1])
            epoch += 1
        return positions

    def _pass_epochs(self, tokens: int) -> tuple[int, int]:
        """Return how many whole epochs lie before a token, if all have as many, and its number in the next one."""
        total = self.counter.total if self.lanes == 1 else 0
        return divmod(tokens, total) if total else (0, tokens)


class _Lane(NamedTuple):
    """A lane of sequences."""

    number: int
    share: RecordShares
    """How many sequences it takes of each store."""
    streams: list[LaneTokens]
    """Those of the stores."""


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
            groups = source.groups.open(start["epoch"])
            for lane in range(mixture.sharding.lanes):
                find_lane(groups, start["epoch"], lane, mixture.sharding.lanes)
        super().__init__(start["epoch"])

    def __repr__(self) -> str:
        """Return what it yields."""
        return self.show(type(self).__name__)

    def show(self, name: str, **_: Any) -> str:
        """Return what it yields, as the call of a class of this name."""
        shown = self._packing.describe() | {"batch_size": self._mixture.sharding.batch_size}
        paths = [str(source.groups.piles.path) for source in self._sources]
        return show_call(name, *paths, **shown)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the first batch begins."""
        return self._position.epoch

    def seek(self, epoch: int, step: int) -> None:
        """Let the next iteration begin so many global batches after the beginning of an epoch. Nothing is read.

        Raises
        ------
        UsageError
            When they are no numbers of an epoch and of a batch.
        """
        self._go(check_number("epoch", epoch, MAX_EPOCH), check_number("step", step, MOST_STEPS))

    def shard(self, rank: int, world_size: int) -> None:
        """Yield the batches of another rank from now on.

        Raises
        ------
        UsageError
            When so many ranks do not fit the lanes.
        """
        sharding = replace(self._mixture.sharding, rank=rank, world_size=world_size)
        self._mixture = replace(self._mixture, sharding=sharding)

    def _describe(self) -> dict[str, Any]:
        return self.describe(self.epoch, 0)

    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at another position."""
        own = {"batch": self._mixture.sharding.batch, "epoch": epoch, "step": step}
        return self._start_state | self._mixture.describe(step) | own | self._packing.describe()

    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        return close_at_exit(self._run(epoch, first_step, self._sources[0].groups.prefetch, 1))

    def read_share(self, epoch: int, first_step: int, every: int) -> Generator[Any]:
        """Return an iterator over the first of `every` batches from a step on, without threads: for a worker."""
        return close_at_exit(self._run(epoch, first_step, 0, every))

    def _run(self, epoch: int, step: int, prefetch: int, every: int) -> Generator[Any]:
        order, sharding = replace(self._sources[0].groups.order, epoch=epoch), self._mixture.sharding
        with ExitStack() as stack:
            lanes = self._open_lanes(stack, epoch, step, prefetch)
            while True:
                batch = self._cut(lanes, epoch, step, every)
                if self._transform is not None:
                    first = step * sharding.batch + sharding.rank * sharding.batch_size
                    numbers = np.arange(first, first + sharding.batch_size, dtype=np.uint64)
                    batch = self._transform(batch, order.draw_seeds(numbers))
                yield batch
                del batch
                step += every

    def _open_lanes(self, stack: ExitStack, epoch: int, step: int, prefetch: int) -> list[_Lane]:
        """Return this rank's lanes, so many steps after the beginning of an epoch."""
        lanes, own = self._mixture.sharding.lanes, self._mixture.sharding.own_lanes
        opened = {lane: _Lane(lane, self._mixture.share(lane), []) for lane in own}
        before = {lane: one.share.before(step) for lane, one in opened.items()}
        for store, source in enumerate(self._sources):
            counts = {lane: before[lane][store] for lane in own}
            positions = dict.fromkeys(own, LanePosition(epoch, 0, 0))
            for count in {*counts.values()} - {0}:
                if store not in self._counters:
                    self._counters[store] = source.make_counter()
                finder = LaneFinder(source, self._counters[store], lanes)
                wanted = [lane for lane in own if counts[lane] == count]
                positions |= finder.find(wanted, epoch, count * self._packing.tokens)
            for lane in own:
                groups = stack.enter_context(closing(source.read(lane, lanes, positions[lane], prefetch)))
                opened[lane].streams.append(LaneTokens(groups, positions[lane].token))
        return [*opened.values()]

    def _cut(self, lanes: Sequence[_Lane], epoch: int, step: int, every: int) -> Any:
        """Return the batch of this rank at a step, and go on to the next one that is wanted."""
        size, count = self._packing.tokens, self._mixture.sharding.batch_size
        parts: list[GroupTokens] = []
        labels: list[NDArray[np.intp]] = []
        for lane in lanes:
            own, turns = self._plan(lane, epoch, step, every)
            labels.append(own)
            for stream, (before, taken, after) in zip(lane.streams, turns, strict=True):
                stream.skip(before * size)
                parts += stream.take(taken * size)
                stream.skip(after * size)
        columns = {self._packing.column: wrap_values(_join([part.tokens for part in parts]), self._kind)}
        if self._packing.boundaries:
            columns |= _mark(parts, count, size)
        sequences = [pa.FixedSizeListArray.from_arrays(values, size) for values in columns.values()]
        records = pa.RecordBatch.from_arrays(sequences, names=list(columns))
        if len(self._sources) > 1:
            records = take_rows(records, find_places(labels))
        return make_batch(self._output, records)

    def _plan(
        self, lane: _Lane, epoch: int, step: int, every: int
    ) -> tuple[NDArray[np.intp], list[tuple[int, int, int]]]:
        """Return the store of each of this rank's sequences of a lane, and how many of each store to skip, take and skip."""
        mixture, rows = self._mixture, self._mixture.sharding.own_rows
        if len(self._sources) == 1:
            taken = rows.stop - rows.start
            # Of a small batch, the numbers below would take as long as all else.
            return _NO_LABELS, [(rows.start, taken, mixture.rows * every - rows.start - taken)]
        begins, ends, following = (lane.share.before(one) for one in (step, step + 1, step + every))
        counts = [end - begin for end, begin in zip(ends, begins, strict=True)]
        labels = mixture.draw_labels(lane.number, epoch, step, counts)
        skipped, own = (
            np.bincount(one, minlength=len(counts)).tolist() for one in (labels[: rows.start], labels[rows])
        )
        passed = [after - begin for after, begin in zip(following, begins, strict=True)]
        turns = [
            (skip, take, rest - skip - take) for skip, take, rest in zip(skipped, own, passed, strict=True)
        ]
        return labels[rows], turns


_NO_LABELS = np.zeros(0, np.intp)


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
