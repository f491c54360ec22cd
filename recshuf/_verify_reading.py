"""Reading all inputs of a source in many threads, each batch with its place."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recshuf.errors import MemoryLimitError, Stopped
from recshuf.memory import format_size
from recshuf.scatter import RowLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

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


def read_all(source: Source, plan: ReadingPlan, visit: Visit) -> None:
    """Give every batch of every input to `visit`.

    Raises
    ------
    Exception
        The first error of any thread, after all threads have ended.
    """
    reading = _Reading(source, plan, visit)
    with ThreadPoolExecutor(plan.workers, thread_name_prefix="verify") as pool:
        futures = [pool.submit(reading.work) for _ in range(plan.workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # Also when this thread is interrupted.
            if any(not future.done() or future.exception() for future in futures):
                reading.stop()
    _raise_first(futures)


def _raise_first(futures: Sequence[Future[None]]) -> None:
    errors = [error for future in futures if (error := future.exception()) is not None]
    errors.sort(key=lambda error: isinstance(error, Stopped))
    if errors:
        raise errors[0]


@dataclass(slots=True)
class _Lane:
    """One input being read: its fragments are taken one by one, by any thread."""

    input_index: int
    fragments: Iterator[Fragment]
    ledger: RowLedger = field(default_factory=RowLedger)
    taken: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[int, Fragment] | None:
        """Return the next fragment and its number; None when there is none left."""
        with self.lock:
            fragment = next(self.fragments, None)
            if fragment is None:
                return None
            self.taken += 1
            return self.taken - 1, fragment


class _Reading:
    """All inputs of a source being read."""

    def __init__(self, source: Source, plan: ReadingPlan, visit: Visit) -> None:
        self._source = source
        self._plan = plan
        self._visit = visit
        self._waiting = deque(range(len(source.inputs)))
        self._open: list[_Lane] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let all threads end with `Stopped`."""
        with self._lock:
            self._stopped.set()
            for lane in self._open:
                lane.ledger.stop()

    def work(self) -> None:
        """Read fragments of an own input, then of inputs that others have opened, until none is left."""
        while (lane := self._choose_lane()) is not None:
            while (taken := lane.take()) is not None:
                self._read(lane, *taken)
            with self._lock:
                if lane in self._open:
                    self._open.remove(lane)

    def _choose_lane(self) -> _Lane | None:
        with self._lock:
            if self._stopped.is_set():
                raise Stopped
            if self._waiting:
                index, plan = self._waiting.popleft(), self._plan
                fragments = self._source.fragments(index, plan.block_bytes, plan.max_record_bytes)
                self._open.append(_Lane(index, iter(fragments)))
                return self._open[-1]
            return self._open[0] if self._open else None

    def _read(self, lane: _Lane, number: int, fragment: Fragment) -> None:
        if fragment.record_count is None:
            # It holds no more than a block, and the next one waits to know its rows.
            held = list(fragment.batches())
            batches = iter(held)
            row = lane.ledger.claim(number, sum(batch.num_rows for batch in held))
        else:
            batches = fragment.batches()
            row = lane.ledger.claim(number, fragment.record_count)
        lane.ledger.finish(number)
        for batch in batches:
            if self._stopped.is_set():
                raise Stopped
            self._visit(batch, lane.input_index, row)
            row += batch.num_rows
