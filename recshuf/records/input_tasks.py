"""Inputs being read: their fragments, and the schedule by which threads take them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recshuf.errors import Stopped
from recshuf.records.rows import RowCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from recshuf.interfaces import Fragment, Source


@dataclass(slots=True)
class InputTask:
    """One input being read, or several joined; any thread may take its next fragment."""

    inputs: Sequence[int]
    fragments: Iterator[Fragment]
    counter: RowCounter = field(default_factory=RowCounter)
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
            fragment = next(self.fragments, None)
            if fragment is None:
                return None
            self.hold()
            self.taken += 1
            return self.taken - 1, fragment

    def hold(self) -> None:
        """Increment `left`."""
        with self.lock:
            self.left += 1

    def release(self) -> bool:
        """Decrement `left`; return whether it is 0."""
        with self.lock:
            self.left -= 1
            return not self.left


class InputSchedule:
    """The order in which threads read inputs: first runs, each by one thread, then open inputs, shared by idle threads.

    Parameters
    ----------
    runs
        Consecutive inputs for one thread each.
    """

    def __init__(self, runs: Iterable[list[int]]) -> None:
        self._waiting = deque(runs)
        self._tasks: dict[int, InputTask] = {}
        self._open: list[InputTask] = []
        self._joined_rows: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def next_run(self) -> list[int] | None:
        """Return an unread run; None if there is none."""
        with self._lock:
            self.check()
            return self._waiting.popleft() if self._waiting else None

    def next_open(self) -> InputTask | None:
        """Return an input with fragments left; None if there is none."""
        with self._lock:
            return self._open[0] if self._open else None

    def begin(self, index: int, fragments: Iterable[Fragment], *, is_shared: bool) -> InputTask:
        """Return the task of an input, whose fragments other threads may take if `is_shared`."""
        task = InputTask([index], iter(fragments))
        with self._lock:
            self.check()
            self._tasks[index] = task
            if is_shared:
                self._open.append(task)
        return task

    def close(self, task: InputTask) -> bool:
        """Remove an input without fragments left; return False if another thread has removed it."""
        with self._lock:
            is_open = task in self._open
            if is_open:
                self._open.remove(task)
            return is_open

    def note_joined(self, rows: Mapping[int, int]) -> None:
        """Record the row counts of inputs that were read joined."""
        with self._lock:
            self.check()
            self._joined_rows.update(rows)

    def rows_of(self, index: int) -> int:
        """Return how many rows of an input have been read so far."""
        task = self._tasks.get(index)
        return self._joined_rows.get(index, 0) if task is None else task.counter.rows

    def stop(self) -> None:
        """Make all further calls raise `Stopped`."""
        with self._lock:
            self._stopped = True
            for task in self._tasks.values():
                task.counter.stop()

    def check(self) -> None:
        """Raise `Stopped` after `stop`."""
        if self._stopped:
            raise Stopped


def group_inputs(source: Source, inputs: Sequence[int], most_bytes: int, workers: int) -> Iterator[list[int]]:
    """Yield runs of consecutive inputs for one thread each; small inputs are grouped.

    A run of several inputs holds at most `most_bytes`, and at most an eighth of a worker's share, to balance the load.
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
