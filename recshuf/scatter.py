"""Pass 1: reads every fragment and throws its records onto piles by their keys."""

from __future__ import annotations

import threading
from collections import Counter, deque
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from recshuf.digests import Digest, digest_records, sum_digests
from recshuf.errors import CheckError, Stopped
from recshuf.order import draw_keys, find_piles, sort_by_pile
from recshuf.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from recshuf.interfaces import BadRecords, Decoder, Fragment, Source
    from recshuf.plans import Plan
    from recshuf.progress import Progress
    from recshuf.store import PileStore


@dataclass(frozen=True, slots=True)
class InputCount:
    """What was read of one input."""

    byte_count: int
    """Bytes of the records themselves, without keys and offsets where they are lines or fixed rows."""
    digest: Digest

    @property
    def records(self) -> int:
        """Number of records."""
        return self.digest.records


class RowLedger:
    """Hands out row numbers of one input: fragments claim theirs in order, whoever reads them first.

    A fragment of unknown size must have been read before the next one can know its rows; so a claim waits
    until the fragments before it are `finish`ed.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._rows = 0
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def rows(self) -> int:
        """Rows claimed so far."""
        return self._rows

    def claim(self, fragment_index: int, count: int) -> int:
        """Return the first row of the next `count` records of a fragment, once it is that fragment's turn.

        Raises
        ------
        Stopped
            When `stop` was called.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turn == fragment_index or self._stopped)
            if self._stopped:
                raise Stopped
            first_row = self._rows
            self._rows += count
            return first_row

    def finish(self, fragment_index: int) -> None:
        """Pass the turn to the next fragment: this one has claimed all its rows."""
        self.claim(fragment_index, 0)
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake everybody who waits, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


@dataclass(slots=True)
class _Lane:
    """One input being read: its fragments are taken one by one, by any thread."""

    input_index: int
    fragments: Iterator[Fragment]
    ledger: RowLedger
    taken: int = 0
    left: int = 1
    """Fragments taken and not yet scattered, and one for the iterator as long as it has more."""
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

    def release(self) -> bool:
        """Hear that one of what was left is done; return whether it was the last."""
        with self.lock:
            self.left -= 1
            return not self.left


class Scatter:
    """Reads all inputs of a source into a pile store.

    Parameters
    ----------
    finished
        What was read of inputs whose pile sets the store has taken over from an earlier run. They are not read,
        unless the decoder has to see every record.
    set_aside
        Gets the records that have no table form: input, first row of the batch, which ones, and the batch. None
        where the decoder raises an error instead.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        seed: int,
        store: PileStore,
        decoder: Decoder | None,
        progress: Progress,
        finished: Mapping[int, InputCount] | None = None,
        set_aside: Callable[[int, int, BadRecords, pa.RecordBatch], None] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._seed = seed
        self._store = store
        self._decoder = decoder
        self._progress = progress
        self._finished = finished or {}
        self._set_aside = set_aside
        self._aside = [0] * len(source.inputs)
        must_see = decoder is not None and (decoder.schema is None or set_aside is not None)
        inputs = range(len(source.inputs))
        self._waiting = deque(index for index in inputs if must_see or index not in self._finished)
        self._open: list[_Lane] = []
        self._ledgers = [RowLedger() for _ in source.inputs]
        self._counts = [self._finished.get(index, InputCount(0, Digest())) for index in inputs]
        self._inputs_left = Counter(
            plan.set_of_input[index] for index in inputs if index not in self._finished
        )
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self) -> list[InputCount]:
        """Read everything and return what was read of each input.

        Raises
        ------
        CheckError
            When not all that was read was passed on.
        RecshufError
            The first error of any thread, after all threads have ended.
        """
        with ThreadPoolExecutor(self._plan.scatter_workers, thread_name_prefix="scatter") as pool:
            futures = [pool.submit(self._work) for _ in range(self._plan.scatter_workers)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop_unless_done(
                    [future for future in futures if not future.done() or future.exception()]
                )
        errors = [error for future in futures if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, Stopped))
        if errors:
            raise errors[0]
        self._check_rows()
        return self._counts

    def _check_rows(self) -> None:
        """Make sure that every row that was claimed was thrown on a pile or set aside."""
        for index, ledger in enumerate(self._ledgers):
            done = self._counts[index].records + self._aside[index]
            if done != ledger.rows and (index not in self._finished or ledger.rows):
                raise CheckError(
                    f"scatter: {self._source.inputs[index].name}: {done:,} records passed on, {ledger.rows:,} read; "
                    "run again, and report this as a fault"
                )

    def count_of(self, input_index: int) -> InputCount:
        """Return what has been read of an input so far."""
        return self._counts[input_index]

    def _stop_unless_done(self, failed: list[object]) -> None:
        if failed:
            self._stopped.set()
            for ledger in self._ledgers:
                ledger.stop()

    def _work(self) -> None:
        """Read fragments of an own input, then of inputs that others have opened, until none is left."""
        while (lane := self._choose_lane()) is not None:
            while (taken := lane.take()) is not None:
                if self._stopped.is_set():
                    raise Stopped
                self._scatter_fragment(lane, *taken)
                self._release(lane)
            if self._close(lane):
                self._release(lane)

    def _choose_lane(self) -> _Lane | None:
        with self._lock:
            if self._waiting:
                index = self._waiting.popleft()
                plan = self._plan
                fragments = self._source.fragments(index, plan.block_bytes, plan.max_record_bytes)
                self._open.append(_Lane(index, iter(fragments), self._ledgers[index]))
                return self._open[-1]
            return self._open[0] if self._open else None

    def _close(self, lane: _Lane) -> bool:
        """Take a lane whose fragments are all taken out of the open ones; return whether nobody else did."""
        with self._lock:
            is_open = lane in self._open
            if is_open:
                self._open.remove(lane)
            return is_open

    def _release(self, lane: _Lane) -> None:
        """Note that something of a lane is done, and tell the store when a pile set is complete."""
        if not lane.release() or lane.input_index in self._finished:
            return
        set_index = self._plan.set_of_input[lane.input_index]
        with self._lock:
            self._inputs_left[set_index] -= 1
            if self._inputs_left[set_index]:
                return
        inputs = [i for i, one in enumerate(self._plan.set_of_input) if one == set_index]
        self._store.complete(set_index, sum_digests(self._counts[i].digest for i in inputs))

    def _scatter_fragment(self, lane: _Lane, number: int, fragment: Fragment) -> None:
        if fragment.record_count is None:
            self._scatter_uncounted(lane, number, fragment)
            return
        row = lane.ledger.claim(number, fragment.record_count)
        lane.ledger.finish(number)
        end = row + fragment.record_count
        for batch in fragment.batches():
            row += self._scatter_batch(lane.input_index, row, batch)
        if row != end:
            raise RuntimeError(
                f"a fragment of {fragment.record_count} records yielded {row - end:+d} of them"
            )

    def _scatter_uncounted(self, lane: _Lane, number: int, fragment: Fragment) -> None:
        """Scatter a fragment whose size is known only when it has been read.

        Each batch waits until the next one has been read, so that the turn passes on before the last batch,
        mostly the only one, is scattered.
        """
        waiting: tuple[int, pa.RecordBatch] | None = None
        for batch in fragment.batches():
            if waiting is not None:
                self._scatter_batch(lane.input_index, *waiting)
            waiting = lane.ledger.claim(number, batch.num_rows), batch
        lane.ledger.finish(number)
        if waiting is not None:
            self._scatter_batch(lane.input_index, *waiting)

    def _scatter_batch(self, input_index: int, first_row: int, batch: pa.RecordBatch) -> int:
        """Put one batch onto the piles and return its number of records."""
        count = int(batch.num_rows)
        if not count:
            return 0
        bad = None if self._decoder is None else self._decoder.observe(batch, input_index, first_row)
        if bad is not None:
            if self._set_aside is None:
                raise RuntimeError("a decoder has set records aside unasked")
            self._set_aside(input_index, first_row, bad, batch)
            with self._lock:
                self._aside[input_index] += len(bad.index)
        if input_index not in self._finished:
            self._throw(input_index, first_row, batch, bad)
        self._progress.advance(count, self._store.codec.count_bytes(batch))
        return count

    def _throw(self, input_index: int, first_row: int, batch: pa.RecordBatch, bad: BadRecords | None) -> None:
        """Throw the records of a batch onto the piles, without the bad ones; those had keys, too."""
        store = self._store
        records = Records(draw_keys(self._seed, input_index, first_row, batch.num_rows), batch)
        if bad is not None:
            records = records.take(np.delete(np.arange(batch.num_rows), bad.index))
            batch = records.batch
            if not len(records):
                return
        digest = digest_records(records)
        piles = find_piles(records.keys, store.pile_count, store.key_range)
        index, bounds = sort_by_pile(piles, store.pile_count)
        set_index = self._plan.set_of_input[input_index]
        store.add(set_index, input_index, first_row, records.take(index), bounds)
        with self._lock:
            count = self._counts[input_index]
            byte_count = count.byte_count + store.codec.count_bytes(batch)
            self._counts[input_index] = InputCount(byte_count, count.digest + digest)
