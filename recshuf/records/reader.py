"""Reads the inputs of a source in many threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.dataclass import dataclass
from recshuf.interfaces import SupportsJoining
from recshuf.records.batch import number_batches
from recshuf.records.batch_groups import (
    BatchGroup,
    Coalescer,
    InputSchedule,
    InputTask,
    WorkQueue,
    group_inputs,
)
from recshuf.records.keys import RowRange
from recshuf.system.threads import run_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Fragment, Source
    from recshuf.records.batch_groups import InputPart

    Visit = Callable[[pa.RecordBatch, list[RowRange]], None]
    """Gets a batch and the consecutive row ranges in it; called in many threads."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """Threads and block size for reading the inputs."""

    workers: int
    block_bytes: int
    max_record_bytes: int


class InputReader:
    """Reads inputs of a source, or parts of them, every batch once; at most one part of each input.

    `visit` gets every batch, and `on_finished` each input once, after all its batches were visited; both are called in many
    threads. Locks are not nested, except those of one `InputTask`.
    """

    def __init__(
        self,
        source: Source,
        plan: ReadingPlan,
        parts: Sequence[InputPart],
        visit: Visit,
        on_finished: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._visit = visit
        self._on_finished = on_finished
        self._schedule = InputSchedule(group_inputs(source, parts, plan.block_bytes, plan.workers))
        self._queue = WorkQueue(plan.workers)

    def run(self, name: str) -> None:
        run_threads(name, [self._work] * self._plan.workers, self._plan.workers, self._stop)

    def rows_of(self, input_index: int) -> int:
        return self._schedule.rows_of(input_index)

    def _stop(self) -> None:
        self._schedule.stop()
        self._queue.stop()

    def _work(self) -> None:
        """Read until nothing is left, then visit batches that other threads have read."""
        try:
            while (run := self._schedule.next_run()) is not None:
                self._read_run(run)
            while (task := self._schedule.next_open()) is not None:
                self._read_shared(task)
        finally:
            self._queue.leave()
        while (group := self._queue.take()) is not None:
            self._visit_group(group)

    def _read_run(self, run: list[InputPart]) -> None:
        """Read a part of one input, shared with other threads, or several small whole ones."""
        if len(run) == 1:
            self._read_shared(self._begin(run[0], is_shared=True))
            return
        while run and (joined := self._read_joined(run)):
            run = run[joined:]
        self._read_in_turn(run)

    def _read_joined(self, run: list[InputPart]) -> int:
        """Read small inputs joined, if the source can; return how many."""
        if not isinstance(self._source, SupportsJoining):
            return 0
        inputs = [part.input_index for part in run]
        joined = self._source.read_joined(inputs, self._plan.block_bytes, self._plan.max_record_bytes)
        if joined is None:
            return 0
        rows = dict(zip(inputs, joined.rows, strict=False))
        self._schedule.note_joined(rows)
        ranges = [RowRange(index, 0, count) for index, count in rows.items()]
        self._emit(BatchGroup([InputTask([*rows], iter(()))], [joined.batch], ranges))
        return len(rows)

    def _read_in_turn(self, run: list[InputPart]) -> None:
        """Read small inputs in turn; batches that fit a block are visited together."""
        coalescer = Coalescer(self._emit, self._plan.block_bytes)
        for part in run:
            task = self._begin(part, is_shared=False)
            while (taken := task.take()) is not None:
                self._read(task, *taken, coalescer)
                self._release(task)
            self._release(task)
        coalescer.flush()

    def _read_shared(self, task: InputTask) -> None:
        """Read fragments of an input until none is left; other threads may do the same."""
        coalescer = Coalescer(self._emit, self._plan.block_bytes)
        while (taken := task.take()) is not None:
            self._read(task, *taken, coalescer)
            coalescer.flush()
            self._release(task)
        if self._schedule.close(task):
            self._release(task)

    def _begin(self, part: InputPart, *, is_shared: bool) -> InputTask:
        fragments = self._source.fragments(
            part.input_index, self._plan.block_bytes, self._plan.max_record_bytes
        )
        return self._schedule.begin(part, part.choose(fragments), is_shared=is_shared)

    def _read(self, task: InputTask, number: int, fragment: Fragment, coalescer: Coalescer) -> None:
        for row, batch in number_batches(task.counter, number, fragment):
            self._schedule.check()
            coalescer.add(task, RowRange(task.inputs[0], row, batch.num_rows), batch)

    def _emit(self, group: BatchGroup) -> None:
        if not self._queue.offer(group):
            self._visit_group(group)

    def _visit_group(self, group: BatchGroup) -> None:
        self._visit(*group.take())
        for task in group.tasks:
            self._release(task)

    def _release(self, task: InputTask) -> None:
        if task.release() and self._on_finished is not None:
            self._on_finished(task.inputs)
