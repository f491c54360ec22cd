"""The two passes of a run: by this process, over a kept store, or by the tasks of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from recshuf.errors import ConversionError, MemoryLimitError, SchemaMismatch
from recshuf.job.planner import ORDERING
from recshuf.piles.epochs import EpochOrder, StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.regions import FilledRegions
from recshuf.run.gather import check_written
from recshuf.run.scatter_pass import observe_inputs, scatter_inputs
from recshuf.run.shards import ShardWriter, name_output, take_over_shards
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from recshuf.job.report import Progress
    from recshuf.records.digests import InputCounts
    from recshuf.run.open_run import Workspace
    from recshuf.run.resolve import ResolvedJob


class RunPasses(ABC):
    """The passes of a run, whose resources are open."""

    def __init__(self, resolved: ResolvedJob, workspace: Workspace, progress: Progress) -> None:
        self.resolved = resolved
        """The job; of the gather, with the decoder that was used."""
        self.workspace = workspace
        self._progress = progress

    @property
    @abstractmethod
    def spilled_bytes(self) -> int:
        """Bytes of records in pile sets, after compression."""

    @abstractmethod
    def scatter(self) -> InputCounts:
        """Fill the store of the run, and return the counts of each input."""

    @abstractmethod
    def gather(self, bounds: list[int], byte_count: int) -> None:
        """Write all shards that are not finished, and compare their records with those of the store.

        Parameters
        ----------
        bounds
            First record of each shard in the shuffled order, and the end of the last.
        byte_count
            Bytes of the records, about.
        """

    def open_groups(self) -> Groups:
        """Return the records of the store in the order of the output."""
        return Groups(FilledRegions(self.workspace.store), StoredOrder())


class LocalPasses(RunPasses):
    """The passes in threads of this process. Piles that fit in memory stay there."""

    @property
    def spilled_bytes(self) -> int:
        return self.workspace.store.spilled_bytes

    def scatter(self) -> InputCounts:
        self._counts = scatter_inputs(self.resolved, self.workspace, self._progress)
        return self._counts

    def gather(self, bounds: list[int], byte_count: int) -> None:
        try:
            self._write(bounds, byte_count)
        except (SchemaMismatch, ConversionError):
            if not self.resolved.decoding.infers_from_prefix:
                raise
        else:
            return
        # Types that the first records tell do not fit all others: all are observed, and all shards are written again.
        self.resolved = self.resolved.scan_fully()
        observe_inputs(self.resolved, self.workspace, self._counts, self._progress)
        if self.workspace.work is not None:
            self.workspace.work.keep_only(set())
        self._progress.start("gather", bounds[-1], byte_count)
        self._write(bounds, byte_count)

    def _write(self, bounds: list[int], byte_count: int) -> None:
        resolved, work = self.resolved, self.workspace.work
        target = resolved.open_target()
        finished = take_over_shards(resolved, self.workspace, target, bounds, self._progress)
        note = (lambda _: None) if work is None else work.journal.note
        writer = ShardWriter(resolved, target, work, note, self.workspace.stream)
        groups = self.open_groups()
        with name_output(resolved, None if work is None else work.path):
            written = writer.write(groups, bounds, byte_count, finished.keys(), self._progress)
        check_written(groups, bounds[-1], [*finished.values(), *written.values()])


class StoredPasses(LocalPasses):
    """The passes over a kept store: its sets are adopted, and its records come in the order of an epoch."""

    def scatter(self) -> InputCounts:
        from recshuf.run.stores.stored_inputs import adopt_stored

        inputs = self.resolved.inputs
        assert inputs.stored is not None  # noqa: S101 - it is what this class is for
        self._counts = adopt_stored(self.workspace.store, inputs.stored, len(inputs.source.inputs))
        return self._counts

    def open_groups(self) -> Groups:
        resolved, stored, epoch = self.resolved, self.resolved.inputs.stored, self.resolved.job.epoch
        assert stored is not None  # noqa: S101 - as above
        assert epoch is not None  # noqa: S101 - as above
        column_count = None if resolved.job.options["provenance"] else len(resolved.inputs.source.schema)
        order = EpochOrder(stored.seed, epoch.number, epoch.reshuffle, stored.seed)
        if order.is_stored:
            return Groups(FilledRegions(self.workspace.store), StoredOrder(), column_count=column_count)
        groups = Groups(stored, order, epoch.mix, column_count)
        needed = int(ORDERING * groups.byte_counts.max(initial=0))
        if needed > resolved.job.memory_bytes:
            raise MemoryLimitError(
                f"{stored.path}: ordering a group of piles needs {format_size(round_up(needed))} of memory, and the limit is "
                f"{format_size(resolved.job.memory_bytes)}; raise --memory, lower --mix, or scatter into more --piles"
            )
        return groups
