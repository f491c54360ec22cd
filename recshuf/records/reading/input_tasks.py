"""Inputs being read: their fragments, and the schedule by which threads take them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import Stopped
from recshuf.records.rows import RowCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from recshuf.interfaces import Fragment, Source


class InputPart(NamedTuple):
    """Consecutive fragments of one input."""

    input_index: int
    start: int = 0
    """Number of the first fragment."""
    stop: int | None = None
    """Number behind that of the last fragment; None for all."""
    first_row: int = 0
    """Number of the first row."""

    @property
    def is_whole(self) -> bool:
        """Tell whether these are all fragments of the input."""
        return not self.start and self.stop is None

    def choose(self, fragments: Iterable[Fragment]) -> Iterator[Fragment]:
        """Yield these of all fragments of the input."""
        return islice(fragments, self.start, self.stop)


def whole_inputs(source: Source) -> list[InputPart]:
    """Return all inputs of a source."""
    return [InputPart(index) for index in range(len(source.inputs))]


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

    def __init__(self, runs: Iterable[list[InputPart]]) -> None:
        self._waiting = deque(runs)
        self._tasks: dict[int, InputTask] = {}
        self._open: list[InputTask] = []
        self._joined_rows: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def next_run(self) -> list[InputPart] | None:
        """Return an unread run; None if there is none."""
        with self._lock:
            self.check()
            return self._waiting.popleft() if self._waiting else None

    def next_open(self) -> InputTask | None:
        """Return an input with fragments left; None if there is none."""
        with self._lock:
            return self._open[0] if self._open else None

    def begin(self, part: InputPart, fragments: Iterator[Fragment], *, is_shared: bool) -> InputTask:
        """Return the task of a part of an input, whose fragments other threads may take if `is_shared`."""
        task = InputTask([part.input_index], fragments, RowCounter(part.first_row))
        with self._lock:
            self.check()
            self._tasks[part.input_index] = task
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
