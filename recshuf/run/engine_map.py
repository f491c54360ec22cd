"""Where the passes of a run are done: at once by threads of this process, or elsewhere, number by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from recshuf.job.plan import sum_known
from recshuf.output.entries import find_sets
from recshuf.run.scatter_pass import list_stored, scatter
from recshuf.run.shards import find_unchanged, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.errors import PileError
    from recshuf.output.entries import FinishedShard
    from recshuf.piles.sealed_set import SealedSet
    from recshuf.run.resolve import Run
    from recshuf.run.shards import Bounds


class EngineMap(ABC):
    """Lists what the passes of a run have finished, and has the rest done."""

    @abstractmethod
    def count_sets(self, run: Run) -> int:
        """Return the number of pile sets."""

    @abstractmethod
    def list_sets(self, run: Run) -> list[SealedSet]:
        """Return the sealed sets, by number."""

    @abstractmethod
    def forget_set(self, run: Run, entry: SealedSet, error: PileError) -> str:
        """Note that a set is lost, so that `scatter` makes it again, and return who does; else raise the error."""

    @abstractmethod
    def scatter(self, run: Run, numbers: Sequence[int]) -> list[SealedSet]:
        """Fill the store with the sets of these numbers, all that it lacks, and return those that are on disk."""

    @abstractmethod
    def list_shards(self, run: Run, bounds: Bounds) -> dict[int, FinishedShard]:
        """Return the finished shards, which are in the stage, by number; what else is there is deleted."""

    @abstractmethod
    def gather(self, run: Run, numbers: Sequence[int], bounds: Bounds) -> dict[int, FinishedShard]:
        """Write the shards of these numbers to the stage, and return them by number."""


class LocalMap(EngineMap):
    """One call of each pass, with all numbers. Piles that fit in memory stay there."""

    def count_sets(self, run: Run) -> int:
        return run.plan.set_count

    def list_sets(self, run: Run) -> list[SealedSet]:
        if run.inputs.stored is not None:
            return list_stored(run.inputs.stored)
        return [] if run.stage is None else find_sets(run.stage.log.entries)

    def forget_set(self, run: Run, entry: SealedSet, error: PileError) -> str:  # noqa: ARG002 - of others
        if run.inputs.stored is not None:
            raise error
        return "its inputs are read again"

    def scatter(self, run: Run, numbers: Sequence[int]) -> list[SealedSet]:
        if run.inputs.stored is not None:
            return []
        inputs = run.inputs
        records = sum_known(inputs.counts or [one.record_count for one in inputs.source.inputs])
        run.progress.start("scatter", records, run.plan.byte_count)
        return scatter(run, numbers)

    def list_shards(self, run: Run, bounds: Bounds) -> dict[int, FinishedShard]:
        return find_unchanged(run, bounds)

    def gather(self, run: Run, numbers: Sequence[int], bounds: Bounds) -> dict[int, FinishedShard]:
        return gather(run, numbers, bounds)
