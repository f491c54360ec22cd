"""Groups of small batches, and the queue that passes them from readers to idle threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from recshuf.errors import Stopped
from recshuf.records.arrays.byte_sizes import count_bytes
from recshuf.records.batch import concat_batches
from recshuf.records.rows import RowRange, join_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from recshuf.records.reading.input_tasks import InputTask


class BatchGroup:
    """Consecutive batches, to be visited together.

    Parameters
    ----------
    tasks
        The task of each batch, to release after the visit.
    batches, ranges
        The batches, and their row ranges.
    """

    def __init__(
        self, tasks: Sequence[InputTask], batches: list[pa.RecordBatch], ranges: Sequence[RowRange]
    ) -> None:
        self.tasks = tasks
        self._batches = batches
        self._ranges = ranges

    def take(self) -> tuple[pa.RecordBatch, list[RowRange]]:
        """Return the batches as one, with a range for each input, and drop them here."""
        batch = concat_batches(self._batches)
        self._batches.clear()
        return batch, join_ranges(self._ranges)


class Coalescer:
    """Joins small consecutive batches into groups.

    Parameters
    ----------
    emit
        Called with every group.
    most_bytes
        Size limit of a group of several batches.
    """

    def __init__(self, emit: Callable[[BatchGroup], None], most_bytes: int) -> None:
        self._emit = emit
        self._most_bytes = most_bytes
        self._tasks: list[InputTask] = []
        self._batches: list[pa.RecordBatch] = []
        self._ranges: list[RowRange] = []
        self._bytes = 0

    def add(self, task: InputTask, rows: RowRange, batch: pa.RecordBatch) -> None:
        """Add a batch that directly follows the last one."""
        size = count_bytes(batch)
        if self._bytes + size > self._most_bytes:
            self.flush()
        task.hold()
        self._tasks.append(task)
        self._ranges.append(rows)
        self._batches.append(batch)
        self._bytes += size
        del batch
        if self._bytes + size > self._most_bytes:
            self.flush()

    def flush(self) -> None:
        """Emit the waiting batches."""
        if self._batches:
            group = BatchGroup(self._tasks, self._batches, self._ranges)
            self._tasks, self._batches, self._ranges, self._bytes = [], [], [], 0
            self._emit(group)


class WorkQueue:
    """Passes groups of batches from threads that still read to threads that have nothing left to read.

    Without it, one thread alone would process the last fragment, which may be the only one.

    Parameters
    ----------
    readers
        Number of threads that read.
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
        """Remove a reader."""
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def take(self) -> BatchGroup | None:
        """Wait for a group and return it; None when no reader is left.

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
        """Make all waiting threads raise `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
