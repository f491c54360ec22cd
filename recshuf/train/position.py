"""Positions of iterations: how many batches the consumer has received of each."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


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


def count_batches(batches: Generator[Any], position: Position) -> Generator[Any]:
    """Yield batches, and count each before the consumer has it."""
    with closing(batches):
        for batch in batches:
            position.step += 1
            yield batch
