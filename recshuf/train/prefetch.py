"""Values computed ahead in threads."""

from __future__ import annotations

import atexit
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from recshuf.errors import UsageError
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

Item = TypeVar("Item")
Value = TypeVar("Value")

_unfinished: WeakSet[Generator[Any]] = WeakSet()


def compute_ahead(function: Callable[[Item], Value], items: Iterable[Item], ahead: int) -> Generator[Value]:
    """Yield a function's value for each item in turn, computing up to `ahead` of the next ones meanwhile.

    The threads end with the iterator: when it is exhausted, closed or dropped, or after an error of the function,
    which is raised in place of the value.

    Raises
    ------
    UsageError
        In a process that took the iterator over by a fork, but not its threads.
    """
    process = os.getpid()
    waiting = iter(items)
    computed: deque[Future[Value]] = deque()
    with Pool(max(1, min(ahead, os.cpu_count() or 1)), "load") as pool:
        try:
            while True:
                if os.getpid() != process:
                    raise UsageError(
                        "this iterator belongs to another process: call iter(loader) in this one"
                    )
                for item in waiting:
                    computed.append(pool.submit(function, item))
                    if len(computed) > ahead:
                        break
                if not computed:
                    return
                yield computed.popleft().result()
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
