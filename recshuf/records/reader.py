"""Reading the inputs of a source in many threads, each batch with its place."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING

from recshuf.errors import Stopped
from recshuf.interfaces import SupportsJoining
from recshuf.records.lanes import Handover, Lane, Load, Loader
from recshuf.records.rows import RowRange
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Fragment, Source
    from recshuf.records.reading_plan import ReadingPlan
    from recshuf.records.rows import RowCounter

    Visit = Callable[[pa.RecordBatch, list[RowRange]], None]
    """Takes a batch and where its rows are from, which directly follow each other; called in many threads."""


def group_inputs(source: Source, inputs: Sequence[int], most_bytes: int, workers: int) -> Iterator[list[int]]:
    """Yield runs of consecutive inputs that one thread reads in one go, so many small ones in each that it pays.

    A run holds `most_bytes` or less, if it is not of one input, and no more than an eighth of what each worker has to
    read, so that all have enough to do.
    """
    sizes = [source.inputs[index].native_bytes for index in inputs]
    most = min(most_bytes, sum(size or 0 for size in sizes) // (8 * workers))
    run: list[int] = []
    run_bytes = 0
    for index, size in zip(inputs, sizes, strict=True):
        if run and (size is None or run_bytes + size > most or index != run[-1] + 1):
            yield run
            run, run_bytes = [], 0
        run.append(index)
        run_bytes += most + 1 if size is None else size
    if run:
        yield run


class Reading:
    """Reads inputs of a source, every batch once.

    Parameters
    ----------
    inputs
        Indexes of the inputs to read.
    visit
        Gets every batch.
    finish
        Hears of inputs that all their batches have been visited, of each once; called in many threads.
    """

    def __init__(
        self,
        source: Source,
        plan: ReadingPlan,
        inputs: Sequence[int],
        visit: Visit,
        finish: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._visit = visit
        self._finish = finish
        self._waiting = deque(group_inputs(source, inputs, plan.block_bytes, plan.workers))
        self._lanes: dict[int, Lane] = {}
        self._joined_rows: dict[int, int] = {}
        self._open: list[Lane] = []
        self._handover = Handover(plan.workers)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self, name: str) -> None:
        """Read everything.

        Parameters
        ----------
        name
            What the threads are called.

        Raises
        ------
        Exception
            The first error of any thread, after all threads have ended.
        """
        futures: list[Future[None]] = []
        with Pool(self._plan.workers, name) as pool:
            try:
                futures += (pool.submit(self._work) for _ in range(self._plan.workers))
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # Also when this thread is interrupted.
                done = [future.done() and not future.exception() for future in futures]
                if sum(done) < self._plan.workers:
                    self._stop()
        errors = [error for future in futures if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, Stopped))
        if errors:
            raise errors[0]

    def rows_of(self, input_index: int) -> int:
        """Return how many rows of an input have been read so far."""
        lane = self._lanes.get(input_index)
        return self._joined_rows.get(input_index, 0) if lane is None else lane.ledger.rows

    def _stop(self) -> None:
        with self._lock:
            self._stopped.set()
            for lane in self._lanes.values():
                lane.ledger.stop()
        self._handover.stop()

    def _work(self) -> None:
        """Read until nothing is left to read, then help those who still do."""
        try:
            while (run := self._choose_run()) is not None:
                self._read_run(run)
            while (lane := self._choose_open()) is not None:
                self._read_shared(lane)
        finally:
            self._handover.leave()
        while (load := self._handover.take()) is not None:
            self._visit_load(load)

    def _choose_run(self) -> list[int] | None:
        with self._lock:
            if self._stopped.is_set():
                raise Stopped
            return self._waiting.popleft() if self._waiting else None

    def _choose_open(self) -> Lane | None:
        with self._lock:
            return self._open[0] if self._open else None

    def _read_run(self, run: list[int]) -> None:
        """Read an input that others may help with, or several that are so small that nobody needs to."""
        if len(run) == 1:
            lane = self._open_lane(run[0])
            with self._lock:
                self._open.append(lane)
            self._read_shared(lane)
            return
        while run and (joined := self._read_joined(run)):
            run = run[joined:]
        self._read_in_turn(run)

    def _read_joined(self, run: list[int]) -> int:
        """Read as many small inputs at once as can be; return how many."""
        if not isinstance(self._source, SupportsJoining):
            return 0
        joined = self._source.read_joined(run, self._plan.block_bytes, self._plan.max_record_bytes)
        if joined is None:
            return 0
        if self._stopped.is_set():
            raise Stopped
        rows = dict(zip(run, joined.rows, strict=False))
        self._joined_rows.update(rows)
        ranges = [RowRange(index, 0, count) for index, count in rows.items()]
        self._hand_on(Load([Lane([*rows], iter(()))], [joined.batch], ranges))
        return len(rows)

    def _read_in_turn(self, run: list[int]) -> None:
        """Read small inputs one after the other, and hand on together what fits a block."""
        loader = self._make_loader()
        for index in run:
            lane = self._open_lane(index)
            while (taken := lane.take()) is not None:
                self._read(lane, *taken, loader)
                self._release(lane)
            self._release(lane)
        loader.flush()

    def _read_shared(self, lane: Lane) -> None:
        """Read fragments of an input, whoever else does so too, until none is left."""
        loader = self._make_loader()
        while (taken := lane.take()) is not None:
            self._read(lane, *taken, loader)
            loader.flush()
            self._release(lane)
        if self._close(lane):
            self._release(lane)

    def _open_lane(self, index: int) -> Lane:
        fragments = self._source.fragments(index, self._plan.block_bytes, self._plan.max_record_bytes)
        lane = Lane([index], iter(fragments))
        with self._lock:
            self._lanes[index] = lane
            if self._stopped.is_set():
                raise Stopped
        return lane

    def _make_loader(self) -> Loader:
        return Loader(self._hand_on, self._plan.block_bytes)

    def _close(self, lane: Lane) -> bool:
        """Take a lane whose fragments are all taken out of the open ones; return whether nobody else did."""
        with self._lock:
            is_open = lane in self._open
            if is_open:
                self._open.remove(lane)
            return is_open

    def _release(self, lane: Lane) -> None:
        """Note that something of a lane is done."""
        if lane.release() and self._finish is not None:
            self._finish(lane.inputs)

    def _hand_on(self, load: Load) -> None:
        if not self._handover.offer(load):
            self._visit_load(load)

    def _visit_load(self, load: Load) -> None:
        self._visit(*load.take())
        for lane in load.lanes:
            self._release(lane)

    def _read(self, lane: Lane, number: int, fragment: Fragment, loader: Loader) -> None:
        count = fragment.record_count
        numbered = self._number_uncounted if count is None else self._number_counted
        for row, batch in numbered(lane.ledger, number, fragment):
            if self._stopped.is_set():
                raise Stopped
            loader.add(lane, RowRange(lane.inputs[0], row, batch.num_rows), batch)

    @staticmethod
    def _number_counted(
        ledger: RowCounter, number: int, fragment: Fragment
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        count = fragment.record_count or 0
        row = ledger.claim(number, count)
        ledger.finish(number)
        end = row + count
        for batch in fragment.batches():
            yield row, batch
            row += batch.num_rows
        if row != end:
            raise RuntimeError(f"a fragment of {count} records yielded {row - end:+d} of them")

    @staticmethod
    def _number_uncounted(
        ledger: RowCounter, number: int, fragment: Fragment
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the batches of a fragment whose size is known only when it has been read.

        Each batch waits until the next one has been read, so that the turn passes on before the last batch,
        mostly the only one, is visited.
        """
        waiting: tuple[int, pa.RecordBatch] | None = None
        for batch in fragment.batches():
            if waiting is not None:
                yield waiting
            waiting = ledger.claim(number, batch.num_rows), batch
        ledger.finish(number)
        if waiting is not None:
            yield waiting
