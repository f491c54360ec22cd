"""Reading the inputs of a source in many threads, each batch with its place."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recshuf.errors import MemoryLimitError, Stopped
from recshuf.ledger import RowLedger
from recshuf.memory import format_size
from recshuf.pools import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Fragment, Source

    Visit = Callable[[pa.RecordBatch, int, int], None]
    """Takes a batch, the index of its input, and its first row in it; called in many threads."""


LARGEST_BLOCK = 8 << 20
SMALLEST_BLOCK = 1 << 20
_HASHING_BYTES = 12 << 20
"""What hashing takes in each thread beside the batch."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How inputs are read inside the memory limit."""

    workers: int
    block_bytes: int
    max_record_bytes: int


def plan_reading(
    source: Source, workers: int, memory_bytes: int, max_record_bytes: int, decoding_factor: float
) -> ReadingPlan:
    """Return the plan of reading a source: large blocks first, then many workers.

    Parameters
    ----------
    decoding_factor
        Memory of decoding a batch, as a multiple of the batch.

    Raises
    ------
    MemoryLimitError
        When not even one worker with the smallest blocks fits.
    """
    share, needed = 0.6 * memory_bytes, 0
    for count in range(workers, 0, -1):
        block = LARGEST_BLOCK
        while block >= SMALLEST_BLOCK:
            one = source.reading_bytes(block) + int(block * (1 + decoding_factor)) + _HASHING_BYTES
            needed = count * one
            if needed <= share or (count == 1 and block == SMALLEST_BLOCK and needed <= memory_bytes):
                longest = max(block, (memory_bytes - needed) // 12)
                return ReadingPlan(count, block, min(max_record_bytes, longest))
            block //= 2
    raise MemoryLimitError(
        f"reading needs at least {format_size(needed)} of memory, and the limit is "
        f"{format_size(memory_bytes)}; raise --memory"
    )


@dataclass(slots=True)
class _Lane:
    """One input being read: its fragments are taken one by one, by any thread."""

    input_index: int
    fragments: Iterator[Fragment]
    ledger: RowLedger = field(default_factory=RowLedger)
    taken: int = 0
    left: int = 1
    """Fragments taken and not yet read, batches handed over, and one for the iterator as long as it has more."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[int, Fragment] | None:
        """Return the next fragment and its number; None when there is none left."""
        with self.lock:
            fragment = next(self.fragments, None)
            if fragment is None:
                return None
            self.taken += 1
            self.left += 1
            return self.taken - 1, fragment

    def hold(self) -> None:
        """Hear that something more is left to do."""
        with self.lock:
            self.left += 1

    def release(self) -> bool:
        """Hear that one of what was left is done; return whether it was the last."""
        with self.lock:
            self.left -= 1
            return not self.left


class _Handover:
    """Where threads that still read give batches to those that have nothing left to read.

    Without it, the last fragment of all would keep one thread busy, which may be the only one there is.

    Parameters
    ----------
    readers
        Threads that read.
    """

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self._idle = 0
        self._offered: deque[tuple[_Lane, int, pa.RecordBatch]] = deque()
        self._changed = threading.Condition()
        self._stopped = False

    def offer(self, lane: _Lane, row: int, batch: pa.RecordBatch) -> bool:
        """Give a batch to an idle thread; return whether there is one."""
        with self._changed:
            if len(self._offered) >= self._idle:
                return False
            lane.hold()
            self._offered.append((lane, row, batch))
            self._changed.notify()
            return True

    def leave(self) -> None:
        """Hear that a thread reads no more."""
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def take(self) -> tuple[_Lane, int, pa.RecordBatch] | None:
        """Return a batch, waiting for it; None when nobody will give one any more.

        Raises
        ------
        Stopped
            When `stop` was called.
        """
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._offered or not self._readers or self._stopped)
            self._idle -= 1
            if self._stopped:
                raise Stopped
            return self._offered.popleft() if self._offered else None

    def stop(self) -> None:
        """Wake everybody who waits, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Reading:
    """Reads inputs of a source, every batch once.

    Parameters
    ----------
    inputs
        Indexes of the inputs to read.
    visit
        Gets every batch.
    finish
        Hears of each input that all its batches have been visited; called in many threads.
    """

    def __init__(
        self,
        source: Source,
        plan: ReadingPlan,
        inputs: Sequence[int],
        visit: Visit,
        finish: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._visit = visit
        self._finish = finish
        self._waiting = deque(inputs)
        self._lanes: dict[int, _Lane] = {}
        self._open: list[_Lane] = []
        self._handover = _Handover(plan.workers)
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
        return 0 if lane is None else lane.ledger.rows

    def _stop(self) -> None:
        with self._lock:
            self._stopped.set()
            for lane in self._lanes.values():
                lane.ledger.stop()
        self._handover.stop()

    def _work(self) -> None:
        """Read until nothing is left to read, then help those who still do."""
        try:
            self._read_lanes()
        finally:
            self._handover.leave()
        while (given := self._handover.take()) is not None:
            lane, row, batch = given
            self._visit(batch, lane.input_index, row)
            self._release(lane)

    def _read_lanes(self) -> None:
        """Read fragments of an own input, then of inputs that others have opened, until none is left."""
        while (lane := self._choose_lane()) is not None:
            while (taken := lane.take()) is not None:
                self._read(lane, *taken)
                self._release(lane)
            if self._close(lane):
                self._release(lane)

    def _choose_lane(self) -> _Lane | None:
        with self._lock:
            if self._stopped.is_set():
                raise Stopped
            if self._waiting:
                index, plan = self._waiting.popleft(), self._plan
                fragments = self._source.fragments(index, plan.block_bytes, plan.max_record_bytes)
                self._lanes[index] = lane = _Lane(index, iter(fragments))
                self._open.append(lane)
                return lane
            return self._open[0] if self._open else None

    def _close(self, lane: _Lane) -> bool:
        """Take a lane whose fragments are all taken out of the open ones; return whether nobody else did."""
        with self._lock:
            is_open = lane in self._open
            if is_open:
                self._open.remove(lane)
            return is_open

    def _release(self, lane: _Lane) -> None:
        """Note that something of a lane is done."""
        if lane.release() and self._finish is not None:
            self._finish(lane.input_index)

    def _read(self, lane: _Lane, number: int, fragment: Fragment) -> None:
        count = fragment.record_count
        numbered = self._number_uncounted if count is None else self._number_counted
        for row, batch in numbered(lane.ledger, number, fragment):
            if self._stopped.is_set():
                raise Stopped
            if not self._handover.offer(lane, row, batch):
                self._visit(batch, lane.input_index, row)

    @staticmethod
    def _number_counted(
        ledger: RowLedger, number: int, fragment: Fragment
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
        ledger: RowLedger, number: int, fragment: Fragment
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
