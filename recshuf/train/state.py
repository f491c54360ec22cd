"""Where a loader stands: what all loaders have in common, and their state, one small JSON object for all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.piles.epochs import MAX_EPOCH
from recshuf.records.keys import ORDER_VERSION
from recshuf.system.units import check_number
from recshuf.train.schedule import MOST_STEPS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@dataclass(slots=True)
class Position:
    """Where an iteration stands or begins; each has its own, so that a loader can tell the latest from those before it."""

    epoch: int
    step: int
    """Batches that the consumer has received."""
    is_begun: bool = False

    def begin(self) -> Position:
        """Return the position of a new iteration: once at this step, afterwards at the beginning of the epoch."""
        return Position(self.epoch, 0 if self.is_begun else self.step, is_begun=True)


class ResumableLoader(ABC):
    """Yields batches, and counts those that its latest iterator has yielded."""

    def __init__(self, epoch: int) -> None:
        self._position = Position(epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over batches, once from where `load_state_dict` or `seek` went, else from the first one."""
        return _count(*self._start())

    def _start(self) -> tuple[Generator[Any], Position]:
        """Return the batches of a new iteration, and its position."""
        position = self._position = self._position.begin()
        return self._read(position.epoch, position.step), position

    @abstractmethod
    def _read(self, epoch: int, first_step: int) -> Generator[Any]:
        """Return the batches of an epoch from a step on."""

    @abstractmethod
    def show(self, name: str) -> str:
        """Return what it yields, as the call of a class of this name."""

    def __repr__(self) -> str:
        return self.show(type(self).__name__)

    @abstractmethod
    def shard(self, rank: int, world_size: int) -> None:
        """Yield the batches of another rank from now on.

        Raises
        ------
        UsageError
            When so many ranks do not fit the lanes.
        """

    @abstractmethod
    def read_share(self, epoch: int, first_step: int, every: int) -> Generator[Any]:
        """Return an iterator over the first of `every` batches from a step on, without threads: for a worker."""

    @abstractmethod
    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at another position, which may lie anywhere."""

    @abstractmethod
    def _count_steps(self, epoch: int) -> int:
        """Return the number of batches of an epoch, or one that none has without end."""

    @property
    def epoch(self) -> int:
        """Number of the epoch; without end, of that which the first batch begins."""
        return self._position.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON of some 300 bytes, the same on every rank.

        It counts the global batches that the latest iterator yielded. A loader with another `world_size` continues there,
        if the global batch is the same.
        """
        return self.describe(self._position.epoch, self._position.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the next iteration.

        Raises
        ------
        UsageError
            When the state is of another store, or of other batches; names the field and both values.
        """
        self.seek(*self.find_position(state))

    def find_position(self, state: Any) -> tuple[int, int]:
        """Return epoch and step of a state, if it is of these batches; see `load_state_dict`."""
        state = state if isinstance(state, Mapping) else {}
        epoch, step = (number if type(number := state.get(name)) is int else 0 for name in _POSITION)
        mine = self.describe(epoch, step)
        given = {name: value for name, value in _OF_PACKED.items() if name in mine or name in state}
        added = {name: mine[name] for name in _ADDED if name in mine}
        mine, state = {**given, **mine}, {**given, **added, **state}
        for name, here in mine.items():
            if name not in state:
                remedy = f"leave out {name}" if name in _PARTS else "give what state_dict returned"
                raise UsageError(f"load_state_dict: no {name!r} in the state; {remedy}")
            theirs = state[name]
            if name not in _POSITION and (here != theirs or type(here) is not type(theirs)):
                remedy = _REMEDIES.get(name, f"make the loader with {name}={theirs!r}")
                raise UsageError(
                    f"load_state_dict: {name!r} is {theirs!r} in the state and {here!r} here; {remedy}"
                )
        if unknown := [name for name in state if name not in mine]:
            raise UsageError(
                f"load_state_dict: the state has {', '.join(map(repr, unknown))}, which this loader has not; load it into a "
                "loader like the one that saved it"
            )
        epoch = check_number("epoch", state["epoch"], MAX_EPOCH)
        return epoch, check_number("step", state["step"], MOST_STEPS)

    def seek(self, epoch: int, step: int) -> None:
        """Choose the epoch of the next iteration, and how many of its global batches to skip. Nothing is read.

        Raises
        ------
        UsageError
            When the epoch does not have so many batches.
        """
        epoch = check_number("epoch", epoch, MAX_EPOCH)
        most = self._count_steps(epoch) if step else 0
        self._position = Position(epoch, check_number("step", step, most))


def _count(batches: Generator[Any], position: Position) -> Generator[Any]:
    """Yield batches, and count each before the consumer has it."""
    with closing(batches):
        for batch in batches:
            position.step += 1
            yield batch


START: dict[str, Any] = {"step": 0, "version": 1, "order": ORDER_VERSION}
"""The end of any state, at the first batch. A step is a global batch that the consumer has received."""
_POSITION = ("epoch", "step")
_REMEDIES = {
    "version": "load it with the version of recshuf that saved it",
    "order": "load it with the version of recshuf that saved it",
    "store": "open the store that was trained from",
    "stores": "give the stores, weights and filter of the state, in its order, or begin a new epoch if a store has changed since",
    "weights": "give the schedule of the state as far as its step; what comes later may differ",
    "snapshot": "the store has changed since the state was saved, and older snapshots cannot be opened; make the loader "
    "with the next epoch, without the state",
    "sets": "the store and that of the state are copies that were changed apart; open the one that was trained from, or begin a new epoch",
    "batch": "give a batch_size that makes batch_size x world_size the global batch of the state; with torch.distributed, "
    "load the state after it is initialized",
    "filter": "give the filter of the state, or begin a new epoch",
    **{
        name: f"call packed with the {name} of the state"
        for name in ("tokens", "column", "eos", "documents", "pad")
    },
}
_PARTS = ("filter", "limit")
"""Fields that a state has only if the loader was given them."""
_ADDED = ("sets",)
"""Fields that states of earlier versions lack."""
_OF_PACKED = {"eos": None, "documents": "cut", "pad": None}
"""Fields that a state has only with other values than these."""
