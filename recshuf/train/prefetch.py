"""Values computed ahead in threads, while the consumer does something else."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from recshuf.errors import UsageError
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future


LEAST_AWAY = 0.5
"""Part of the CPU time that a value takes for which the consumer must be away, so that computing ahead pays.

Two threads of Python take turns. In a loop that does nothing else, that takes more than what they do at once saves.
"""
Item = TypeVar("Item")
Value = TypeVar("Value")
_unfinished: WeakSet[Generator[Any]] = WeakSet()


@dataclass(slots=True)
class Absence:
    """What the consumer has done since the latest value."""

    seconds: float = 0.0
    """How long it was doing something else."""
    is_relieved: bool = False
    """Whether another thread computes the next values, so that what this one holds to do so can go. The consumer may reset it."""


def compute_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], ahead: int, absence: Absence | None = None
) -> Generator[Value]:
    """Yield a function's value for each item in turn; threads compute up to `ahead` of the next ones meanwhile.

    The threads end with the iterator: when it is exhausted, closed or dropped, or after an error of the function,
    which is raised in place of the value.

    Parameters
    ----------
    absence
        Kept by the consumer. While it is short, the thread that iterates computes the values. Default: it is long.
    """
    process = os.getpid()
    waiting = iter(items)
    computed: deque[Future[Value]] = deque()
    seconds = 0.0  # CPU time of the latest call

    def compute(item: Item) -> Value:
        nonlocal seconds
        begin = time.thread_time()
        value = function(item)
        seconds = time.thread_time() - begin
        return value

    with Pool(max(1, min(ahead, os.cpu_count() or 1)), "load") as pool:
        try:
            while True:
                if os.getpid() != process:
                    raise UsageError(
                        "this iterator belongs to another process: call iter(loader) in this one"
                    )
                if computed:
                    value = computed.popleft().result()
                else:
                    following = list(islice(waiting, 1))
                    if not following:
                        return
                    value = compute(following[0])
                if absence is None or absence.seconds >= LEAST_AWAY * seconds:
                    for item in islice(waiting, ahead - len(computed)):
                        computed.append(pool.submit(compute, item))
                if absence is not None:
                    absence.seconds, absence.is_relieved = 0.0, bool(computed)
                yield value
                del value  # to be freed before the next one is there
        finally:
            for future in computed:
                future.cancel()


def close_at_exit(values: Generator[Value]) -> Generator[Value]:
    """Return a generator, which is closed before the interpreter takes modules apart, so that it can still clean up."""
    _unfinished.add(values)
    return values


@atexit.register
def _close_unfinished() -> None:
    for values in list(_unfinished):
        with suppress(ValueError):  # another thread is in it
            values.close()
