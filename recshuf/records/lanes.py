"""Batches on their way from who reads them to who visits them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recshuf.errors import Stopped
from recshuf.records.batch import concat_batches
from recshuf.records.byte_sizes import count_bytes
from recshuf.records.rows import RowCounter, RowRange, join_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.interfaces import Fragment


@dataclass(slots=True)
class Lane:
    """One input being read, or several at once: its fragments are taken one by one, by any thread."""

    inputs: Sequence[int]
    fragments: Iterator[Fragment]
    ledger: RowCounter = field(default_factory=RowCounter)
    taken: int = 0
    left: int = 1
    """Fragments taken and not yet read, batches not yet visited, and one for the iterator as long as it has more."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held while a fragment is made, which may take as long as to unpack it."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of `left`."""

    def take(self) -> tuple[int, Fragment] | None:
        """Return the next fragment and its number; None when there is none left."""
        with self.turn:
            fragment = next(self.fragments, None)
            if fragment is None:
                return None
            self.hold()
            self.taken += 1
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


class Load:
    """Batches that directly follow each other, to be visited together.

    Parameters
    ----------
    lanes
        Those that are held until the batches have been visited, once for each time they are given.
    batches, ranges
        The batches, and where their rows are from.
    """

    def __init__(
        self, lanes: Sequence[Lane], batches: list[pa.RecordBatch], ranges: Sequence[RowRange]
    ) -> None:
        self.lanes = lanes
        self._batches = batches
        self._spans = ranges

    def take(self) -> tuple[pa.RecordBatch, list[RowRange]]:
        """Return the batches as one, with a one for each input, and forget them."""
        batch = concat_batches(self._batches)
        self._batches.clear()
        return batch, join_ranges(self._spans)


class Loader:
    """Makes loads of batches that come in one after the other: a small one waits for the next.

    Parameters
    ----------
    hand_on
        Gets every load.
    most_bytes
        What a load of several batches holds at most.
    """

    def __init__(self, hand_on: Callable[[Load], None], most_bytes: int) -> None:
        self._hand_on = hand_on
        self._most_bytes = most_bytes
        self._lanes: list[Lane] = []
        self._batches: list[pa.RecordBatch] = []
        self._spans: list[RowRange] = []
        self._bytes = 0

    def add(self, lane: Lane, one: RowRange, batch: pa.RecordBatch) -> None:
        """Take a batch that directly follows the one before it."""
        size = count_bytes(batch)
        if self._bytes + size > self._most_bytes:
            self.flush()
        lane.hold()
        self._lanes.append(lane)
        self._spans.append(one)
        self._batches.append(batch)
        self._bytes += size
        del batch
        if self._bytes + size > self._most_bytes:
            self.flush()

    def flush(self) -> None:
        """Hand on what waits."""
        if self._batches:
            load = Load(self._lanes, self._batches, self._spans)
            self._lanes, self._batches, self._spans, self._bytes = [], [], [], 0
            self._hand_on(load)


class Handover:
    """Where threads that still read give loads to those that have nothing left to read.

    Without it, the last fragment of all would keep one thread busy, which may be the only one there is.

    Parameters
    ----------
    readers
        Threads that read.
    """

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self._idle = 0
        self._offered: deque[Load] = deque()
        self._changed = threading.Condition()
        self._stopped = False

    def offer(self, load: Load) -> bool:
        """Give a load to an idle thread; return whether there is one."""
        with self._changed:
            if len(self._offered) >= self._idle:
                return False
            self._offered.append(load)
            self._changed.notify()
            return True

    def leave(self) -> None:
        """Hear that a thread reads no more."""
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def take(self) -> Load | None:
        """Return a load, waiting for it; None when nobody will give one any more.

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
