"""Engines for tests: a few processes that are spawned once, and the same with every task run twice at the same time."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from functools import cache
from typing import TYPE_CHECKING, Any

from recshuf.run.engines import OneByOne

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

PROCESSES = 2


@cache
def spawn_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))


class ProcessEngine(OneByOne):
    """An `Engine` of processes that know nothing but the task."""

    copies = 1

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], workers: int
    ) -> Generator[Any, None, None]:
        groups = [[spawn_pool().submit(function, task) for _ in range(self.copies)] for task in tasks]
        everything = [one for group in groups for one in group]
        try:
            for future in as_completed(everything):
                future.result()
            for group in groups:
                first, *others = (one.result() for one in group)
                assert all(other == first for other in others)
                yield first
        finally:
            for future in everything:
                future.cancel()
            wait(everything)


class TwinEngine(ProcessEngine):
    """Runs every task twice, mostly at the same time."""

    copies = 2
