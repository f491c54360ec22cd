"""Values computed ahead: by which thread, how many, and in which order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from recshuf.train.prefetch import Absence, compute_ahead

if TYPE_CHECKING:
    from collections.abc import Generator

HOURS = 10_000.0


class Computer:
    """Computes squares, and notes in which thread."""

    def __init__(self) -> None:
        self.threads: dict[int, str] = {}
        self.done = threading.Semaphore(0)

    def __call__(self, number: int) -> int:
        self.threads[number] = threading.current_thread().name
        self.done.release()
        return number * number

    def is_ahead(self, number: int) -> bool:
        return self.threads[number] != threading.current_thread().name


def take(values: Generator[int], absence: Absence, seconds: float, count: int) -> list[int]:
    """Return the next values of a consumer that is away for so long after each."""
    taken = []
    for _ in range(count):
        taken.append(next(values))
        absence.seconds = seconds
    return taken


def test_a_consumer_that_stays_computes_by_itself() -> None:
    computer, absence = Computer(), Absence()
    take(compute_ahead(computer, range(10), 3, absence), absence, 0.0, 10)
    assert not any(map(computer.is_ahead, range(10)))


def test_threads_compute_for_a_consumer_that_is_away() -> None:
    computer, absence = Computer(), Absence()
    take(compute_ahead(computer, range(10), 3, absence), absence, HOURS, 10)
    # How long the consumer is away is known from the second value on.
    assert [computer.is_ahead(number) for number in range(10)] == [False] * 2 + [True] * 8


@pytest.mark.parametrize("ahead", [1, 4])
def test_no_more_are_computed_ahead_than_asked_for(ahead: int) -> None:
    computer = Computer()
    values = compute_ahead(computer, range(20), ahead)
    next(values)
    for _ in range(1 + ahead):
        assert computer.done.acquire(timeout=60)
    values.close()
    assert len(computer.threads) == 1 + ahead
