"""Reads the inputs of a source in many threads, which share inputs and batches among them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from recshuf.dataclass import dataclass
from recshuf.errors import CheckError, Stopped
from recshuf.records.arrays import count_bytes
from recshuf.records.batch import RowCounter, concat_batches, join_ranges, number_batches
from recshuf.records.keys import RowRange
from recshuf.system.threads import run_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Fragment, Source

    Visit = Callable[[pa.RecordBatch, list[RowRange]], None]
    """Gets a batch and the consecutive row ranges in it; called in many threads."""


class BatchGroup(NamedTuple):
    """Consecutive batches, to be visited together, with their ranges; after that, the task of each is released."""

    tasks: list[InputTask]
    batches: list[pa.RecordBatch]
    ranges: list[RowRange]

    def take(self) -> tuple[pa.RecordBatch, list[RowRange]]:
        batch = concat_batches(self.batches)
        self.batches.clear()
        return batch, join_ranges(self.ranges)


class Coalescer:
    """Joins small consecutive batches into groups of at most `most_bytes`, and emits them."""

    def __init__(self, emit: Callable[[BatchGroup], None], most_bytes: int) -> None:
        self._emit = emit
        self._most_bytes = most_bytes
        self._group = BatchGroup([], [], [])
        self._bytes = 0

    def add(self, task: InputTask, ranges: Sequence[RowRange], batch: pa.RecordBatch) -> None:
        size = count_bytes(batch)
        if self._bytes + size > self._most_bytes:
            self.flush()
        task.hold()
        self._group.tasks.append(task)
        self._group.batches.append(batch)
        self._group.ranges.extend(ranges)
        self._bytes += size
        del batch
        if self._bytes + size > self._most_bytes:
            self.flush()

    def flush(self) -> None:
        if self._group.batches:
            group, self._group, self._bytes = self._group, BatchGroup([], [], []), 0
            self._emit(group)


class WorkQueue:
    """Passes groups of batches from threads that still read to threads that have nothing left to read.

    Without it, one thread alone would process the last fragment, which may be the only one.
    """

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self._idle = 0
        self._offered: deque[BatchGroup] = deque()
        self._changed = threading.Condition()
        self._stopped = False

    def offer(self, group: BatchGroup) -> bool:
        """Give a group to an idle thread; return whether there is one."""
        with self._changed:
            if len(self._offered) >= self._idle:
                return False
            self._offered.append(group)
            self._changed.notify()
            return True

    def leave(self) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def take(self) -> BatchGroup | None:
        """Wait for a group and return it; None when no reader is left. Raises `Stopped` after `stop`."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._offered or not self._readers or self._stopped)
            self._idle -= 1
            if self._stopped:
                raise Stopped
            return self._offered.popleft() if self._offered else None

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class InputPart(NamedTuple):
    """Consecutive fragments of one input."""

    input_index: int
    start: int = 0
    """Number of the first fragment."""
    stop: int | None = None
    """Number behind that of the last fragment; None for all."""
    first_row: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.start and self.stop is None

    def choose(self, fragments: Iterable[Fragment]) -> Iterator[Fragment]:
        return islice(fragments, self.start, self.stop)


def whole_inputs(source: Source) -> list[InputPart]:
    return [InputPart(index) for index in range(len(source.inputs))]


@mutable_dataclass(slots=True)
class InputTask:
    """One input being read, or several joined; any thread may take its next fragment."""

    inputs: Sequence[int]
    fragments: Iterator[Fragment]
    counter: RowCounter = field(default_factory=RowCounter)
    is_whole: bool = True
    """Whether all their records are read."""
    taken: int = 0
    left: int = 1
    """Fragments not yet read, batches not yet visited, and one for the iterator until it is exhausted."""
    fragment_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a fragment is made, which may include its decompression; taken before `lock`."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `left`."""

    def take(self) -> tuple[int, Fragment] | None:
        """Return the next fragment and its number; None if there is none."""
        with self.fragment_lock:
            try:
                fragment = next(self.fragments, None)
            except BaseException:
                self.hold()  # for ever: other threads find no more fragments now, and the input must not be complete
                raise
            if fragment is None:
                return None
            self.hold()
            self.taken += 1
            return self.taken - 1, fragment

    def hold(self) -> None:
        with self.lock:
            self.left += 1

    def release(self) -> bool:
        with self.lock:
            self.left -= 1
            return not self.left


def group_inputs(
    source: Source, parts: Sequence[InputPart], most_bytes: int, workers: int
) -> Iterator[list[InputPart]]:
    """Yield runs of consecutive inputs for one thread each; small whole inputs are grouped.

    A run of several inputs holds at most `most_bytes`, and at most an eighth of a worker's share, to balance the load.
    """
    sizes = [source.inputs[part.input_index].native_bytes if part.is_whole else None for part in parts]
    most = min(most_bytes, sum(size or 0 for size in sizes) // (8 * workers))
    run: list[InputPart] = []
    run_bytes = 0
    for part, size in zip(parts, sizes, strict=True):
        is_next = bool(run) and part.input_index == run[-1].input_index + 1
        if run and (size is None or run_bytes + size > most or not is_next):
            yield run
            run, run_bytes = [], 0
        run.append(part)
        run_bytes += most + 1 if size is None else size
    if run:
        yield run


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """Threads and block size for reading the inputs."""

    workers: int
    block_bytes: int
    max_record_bytes: int


class InputReader:
    """Reads inputs of a source, or parts of them, every batch once; at most one part of each input.

    First runs of inputs are read, each by one thread, then inputs that are still open, shared by idle threads. `visit` gets
    every batch, and `on_finished` each input once, after all its batches were visited; both are called in many threads. Locks
    are not nested, except those of one `InputTask`.
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
        self._runs = deque(group_inputs(source, parts, plan.block_bytes, plan.workers))
        self._tasks: dict[int, InputTask] = {}
        self._open: list[InputTask] = []
        """With fragments left, as far as is known."""
        self._joined_rows: dict[int, int] = {}
        self._lock = threading.Lock()
        """Guards the runs and tasks."""
        self._is_stopped = False
        self._queue = WorkQueue(plan.workers)

    def run(self, name: str) -> None:
        try:
            run_threads(name, [self._work] * self._plan.workers, self._plan.workers, self._stop)
        except BaseException:
            # What this visits refers to it in turn, so that open files would stay until garbage is collected.
            self._tasks.clear()
            self._open.clear()
            raise

    def rows_of(self, input_index: int) -> int:
        task = self._tasks.get(input_index)
        return self._joined_rows.get(input_index, 0) if task is None else task.counter.rows

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for task in self._tasks.values():
                task.counter.stop()
        self._queue.stop()

    def _check(self) -> None:
        if self._is_stopped:
            raise Stopped

    def _work(self) -> None:
        """Read until nothing is left, then visit batches that other threads have read."""
        try:
            while (run := self._next_run()) is not None:
                self._read_run(run)
            while (task := self._next_open()) is not None:
                self._read_shared(task)
        finally:
            self._queue.leave()
        while (group := self._queue.take()) is not None:
            self._visit_group(group)

    def _next_run(self) -> list[InputPart] | None:
        with self._lock:
            self._check()
            return self._runs.popleft() if self._runs else None

    def _next_open(self) -> InputTask | None:
        with self._lock:
            return self._open[0] if self._open else None

    def _read_run(self, run: list[InputPart]) -> None:
        """Read a part of one input, shared with other threads, or several small whole ones."""
        if len(run) == 1:
            self._read_shared(self._begin(run[0], is_shared=True))
            return
        coalescer = Coalescer(self._emit, self._plan.block_bytes)
        while run and (joined := self._read_joined(run, coalescer)):
            run = run[joined:]
        self._read_in_turn(run, coalescer)
        coalescer.flush()

    def _read_joined(self, run: list[InputPart], coalescer: Coalescer) -> int:
        """Read small inputs joined, if the source can; return how many."""
        inputs = [part.input_index for part in run]
        joined = self._source.read_joined(inputs, self._plan.block_bytes, self._plan.max_record_bytes)
        if joined is None:
            return 0
        rows = dict(zip(inputs, joined.rows, strict=False))
        with self._lock:
            self._check()
            self._joined_rows.update(rows)
        ranges = [RowRange(index, 0, count) for index, count in rows.items()]
        task = InputTask([*rows], iter(()))
        coalescer.add(task, ranges, joined.batch)
        self._release(task)
        return len(rows)

    def _read_in_turn(self, run: list[InputPart], coalescer: Coalescer) -> None:
        """Read small inputs in turn; batches that fit a block are visited together."""
        for part in run:
            task = self._begin(part, is_shared=False)
            while (taken := task.take()) is not None:
                self._read(task, *taken, coalescer)
                self._release(task)
            self._release(task)

    def _read_shared(self, task: InputTask) -> None:
        """Read fragments of an input until none is left; other threads may do the same."""
        coalescer = Coalescer(self._emit, self._plan.block_bytes)
        while (taken := task.take()) is not None:
            self._read(task, *taken, coalescer)
            coalescer.flush()
            self._release(task)
        with self._lock:
            is_open = task in self._open
            if is_open:
                self._open.remove(task)
        if is_open:
            self._release(task)

    def _begin(self, part: InputPart, *, is_shared: bool) -> InputTask:
        """Return the task of a part of an input, whose fragments other threads may take if `is_shared`."""
        fragments = self._source.fragments(
            part.input_index, self._plan.block_bytes, self._plan.max_record_bytes
        )
        counter = RowCounter(part.first_row)
        task = InputTask([part.input_index], part.choose(fragments), counter, part.is_whole)
        with self._lock:
            self._check()
            self._tasks[part.input_index] = task
            if is_shared:
                self._open.append(task)
        return task

    def _read(self, task: InputTask, number: int, fragment: Fragment, coalescer: Coalescer) -> None:
        index = task.inputs[0]
        name = self._source.inputs[index].name
        for row, batch in number_batches(task.counter, name, number, fragment):
            self._check()
            coalescer.add(task, [RowRange(index, row, batch.num_rows)], batch)

    def _emit(self, group: BatchGroup) -> None:
        if not self._queue.offer(group):
            self._visit_group(group)

    def _visit_group(self, group: BatchGroup) -> None:
        self._visit(*group.take())
        for task in group.tasks:
            self._release(task)

    def _release(self, task: InputTask) -> None:
        if not task.release():
            return
        for index in task.inputs if task.is_whole else ():
            summary, rows = self._source.inputs[index], self.rows_of(index)
            if summary.record_count_is_exact and rows != summary.record_count:
                raise CheckError(
                    f"{summary.name}: {rows:,} records read, {summary.record_count:,} counted before; run again, and report "
                    "this as a fault"
                )
        if self._on_finished is not None:
            self._on_finished(task.inputs)
