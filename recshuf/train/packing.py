"""Sequences of one length for language models, cut from documents in the order of the epochs.

The documents of a lane, epoch after epoch, are one stream of tokens. It is cut into sequences without gaps; a sequence
may hold the end of one document and the beginning of the next. A global batch takes as many sequences from each lane.

    documents   | a a a a a | b b | c c c c c c c c | d d ...
    sequences   | a a a a | a b b c | c c c c | c c c d | ...
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, UsageError
from recshuf.piles.order.epochs import check_number
from recshuf.piles.order.groups import Groups
from recshuf.records.arrow_views import has_offsets, is_contiguous_list, view_bytes, view_offsets
from recshuf.train.blocks import make_batch
from recshuf.train.prefetch import close_at_exit, compute_ahead
from recshuf.train.selection import Selection
from recshuf.train.stores import EpochPiles, restore_decoder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.order.epochs import EpochOrder
    from recshuf.piles.store.stored import StoredPiles
    from recshuf.train.schedule import Sharding
    from recshuf.train.state import LoaderState

_MOST_TOKENS = 1 << 31
_POSITIONS = "positions"


class LanePosition(NamedTuple):
    """The next token of a lane."""

    epoch: int
    record: int
    """Number of the document in the lane of this epoch."""
    token: int
    """Number of the token in the document."""


class _Task(NamedTuple):
    """A group to load."""

    groups: Groups
    group: int
    epoch: int
    first_record: int


class _Documents(NamedTuple):
    """Consecutive documents of a lane, and their tokens back to back: document k has ``starts[k]:starts[k + 1]``."""

    epoch: int
    first_record: int
    starts: NDArray[np.int64]
    tokens: NDArray[Any]

    def find(self, position: LanePosition) -> int:
        """Return where the token at a position lies, or the one after the end of an earlier epoch."""
        if position.epoch == self.epoch:
            offset = int(self.starts[position.record - self.first_record]) + position.token
        else:
            offset = position.token
        if offset > len(self.tokens):
            raise UsageError(f"load_state_dict: no token at {list(position)}; give what state_dict returned")
        return offset

    def locate(self, offset: int) -> LanePosition:
        """Return the position of the token that lies at an offset."""
        record = int(np.searchsorted(self.starts, offset, side="right")) - 1
        return LanePosition(self.epoch, self.first_record + record, offset - int(self.starts[record]))


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where documents come from, and in which order."""

    piles: StoredPiles
    order: EpochOrder
    mix: int
    prefetch: int
    """Number of groups of each lane to load ahead."""
    owner: object
    """Keeps the files of the piles open."""

    def find_type(self, column: str) -> pa.DataType:
        """Return the type of the tokens in a column.

        Raises
        ------
        UsageError
            When there is no such column, or it does not hold lists of numbers.
        """
        schema = restore_decoder(self.piles).finish()
        if schema.names.count(column) != 1:
            raise UsageError(
                f"column={column!r}: no such column in the store, or several; it has {schema.names}"
            )
        kind = schema.field(column).type
        if not (is_contiguous_list(kind) and _is_number(kind.value_type)):
            raise UsageError(
                f"column={column!r}: holds {kind}, no lists of numbers; name the column of tokens"
            )
        return kind.value_type

    def read(
        self, epochs: EpochPiles, column: str, lane: int, lanes: int, start: LanePosition
    ) -> Generator[_Documents]:
        """Yield the documents of a lane without end, from the group of a position on."""
        selection = Selection(restore_decoder(self.piles), [column])

        def load(task: _Task) -> _Documents:
            records = task.groups.load([task.group])
            documents = selection.make_table(records.batch).column(0)
            return _Documents(task.epoch, task.first_record, *_view_tokens(documents, column))

        return compute_ahead(load, self._plan(epochs, lane, lanes, start), self.prefetch)

    def _plan(self, epochs: EpochPiles, lane: int, lanes: int, start: LanePosition) -> Iterator[_Task]:
        epoch, record = start.epoch, start.record
        while True:
            order = replace(self.order, epoch=epoch)
            groups = Groups(epochs.open(order), order, self.mix)
            numbers = np.arange(lane, len(groups.sizes), lanes)
            ends = np.cumsum(groups.sizes[numbers]).tolist()
            if not ends or not ends[-1]:
                raise UsageError(f"lane {lane} has no records in epoch {epoch}; give fewer lanes")
            begin = 0
            for number, end in zip(numbers.tolist(), ends, strict=True):
                if record < end and begin < end:
                    yield _Task(groups, number, epoch, begin)
                begin = end
            del groups  # its piles may go before those of the next epoch are written
            epoch, record = epoch + 1, 0


class _LaneTokens:
    """The stream of tokens of a lane."""

    def __init__(self, documents: Generator[_Documents], start: LanePosition) -> None:
        self._chunks = documents
        self._chunk = next(documents)
        self._offset = self._chunk.find(start)
        self._last_epoch = self._chunk.epoch

    @property
    def position(self) -> LanePosition:
        """Position of the next token."""
        return self._chunk.locate(self._offset)

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
            part = self._chunk.tokens[self._offset : self._offset + count]
            self._offset += len(part)
            count -= len(part)
            yield part
            if count:
                self._read_next()

    def _read_next(self) -> None:
        if len(self._chunk.tokens):
            self._last_epoch = self._chunk.epoch
        self._chunk, self._offset = next(self._chunks), 0
        if self._chunk.epoch > self._last_epoch + 1:
            raise UsageError(
                f"no document of epoch {self._chunk.epoch - 1} holds tokens; name another column"
            )


class PackedLoader:
    """Yields batches of sequences without end: epoch follows epoch. See `PileLoader.packed`.

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
        When the column holds no tokens, or an argument is not valid.
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
        share = sharding.lanes // sharding.world_size if sharding.lanes > 1 else 1
        first = sharding.rank * share if sharding.lanes > 1 else 0
        self._lanes = range(first, first + share)
        self._step = 0
        self._positions = dict.fromkeys(self._lanes, LanePosition(start.epoch, 0, 0))
        self._resumed: tuple[int, dict[int, LanePosition]] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over batches, once from where `load_state_dict` went, else from the first one.

        A batch is a dictionary of one array or tensor of shape ``(batch_size, tokens)``, or a record batch.
        """
        first = dict.fromkeys(self._lanes, LanePosition(self._start.epoch, 0, 0))
        self._step, self._positions = self._resumed or (0, first)
        self._resumed = None
        return close_at_exit(self._run(dict(self._positions)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON: the state of a `PileLoader`, and the position of each lane of this rank."""
        lanes = {str(lane): list(position) for lane, position in self._positions.items()}
        return self._describe(self._step) | {_POSITIONS: lanes}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue where `state_dict` was called, with the next iteration, on any number of ranks.

        Parameters
        ----------
        state
            With one lane, or as many ranks as before, that of this rank. Else a list of those of all ranks.

        Raises
        ------
        UsageError
            When a state is of other batches, or lacks the position of a lane of this rank; names it.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        positions: dict[str, list[int]] = {}
        steps = set()
        for one in states:
            steps.add(self._check(one))
            positions |= one[_POSITIONS]
        if len(steps) != 1:
            raise UsageError(f"load_state_dict: 'step' is {sorted(steps)}; give states of the same moment")
        for lane in self._lanes:
            if str(lane) not in positions:
                raise UsageError(
                    f"load_state_dict: no position of lane {lane}; give a list of the states of all ranks"
                )
        self._step = steps.pop()
        self._positions = {lane: LanePosition(*positions[str(lane)]) for lane in self._lanes}
        self._resumed = self._step, self._positions

    def _check(self, state: Mapping[str, Any]) -> int:
        """Return the step of a state of the same batches."""
        mine = self._describe(0)
        for name in ("tokens", "column", _POSITIONS):
            if name not in state:
                raise UsageError(
                    f"load_state_dict: no {name!r} in the state; give what state_dict of packed returned"
                )
            if name in mine and state[name] != mine[name]:
                raise UsageError(
                    f"load_state_dict: {name!r} is {state[name]!r} in the state and {mine[name]!r} here; call packed "
                    f"with {name}={state[name]!r}"
                )
        return self._start.find_position(state)[1]

    def _describe(self, step: int) -> dict[str, Any]:
        described = replace(self._start, step=step).to_dict()
        return described | {"tokens": self._tokens, "column": self._column}

    def _run(self, positions: dict[int, LanePosition]) -> Generator[Any]:
        lanes, source, epochs = self._sharding.lanes, self._source, EpochPiles(self._source.piles)
        with ExitStack() as stack:
            streams = {}
            for lane, start in positions.items():
                documents = stack.enter_context(
                    closing(source.read(epochs, self._column, lane, lanes, start))
                )
                streams[lane] = _LaneTokens(documents, start)
            while True:
                batch = self._cut(list(streams.values()))
                self._step += 1
                self._positions = {lane: stream.position for lane, stream in streams.items()}
                yield batch

    def _cut(self, streams: list[_LaneTokens]) -> Any:
        """Return the next batch of this rank."""
        batch, sharding = self._sharding.batch_size, self._sharding
        others = (
            (sharding.world_size - 1) * batch if sharding.lanes == 1 else 0
        )  # rows of other ranks in the lane
        before = sharding.rank * batch if sharding.lanes == 1 else 0
        tokens = np.empty((len(streams), batch // len(streams) * self._tokens), _dtype_of(self._kind))
        for stream, part in zip(streams, tokens, strict=True):
            stream.skip(before * self._tokens)
            stream.fill(part)
            stream.skip((others - before) * self._tokens)
        values = pa.Array.from_buffers(self._kind, tokens.size, [None, pa.py_buffer(tokens)])
        sequences = pa.FixedSizeListArray.from_arrays(values, self._tokens)
        records = pa.RecordBatch.from_arrays([sequences], names=[self._column])
        return make_batch(self._output, records)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def _view_tokens(documents: pa.Array, column: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return where each document starts and the last one ends, and the tokens of all."""
    values = documents.flatten()
    if documents.null_count or values.null_count:
        raise ConversionError(
            column, "holds nulls, which are no tokens", remedy="write the store without them"
        )
    if has_offsets(documents.type):
        starts = view_offsets(documents).astype(np.int64)
        starts -= starts[0]
    else:
        starts = np.arange(len(documents) + 1) * documents.type.list_size
    return starts, view_bytes(values).view(_dtype_of(values.type))
