"""Values computed ahead: by which thread, how many, and in which order."""

import threading
from collections.abc import Generator

import pytest

from recshuf.train.loading import Absence, compute_ahead

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


@pytest.mark.parametrize(("seconds", "by_itself"), [(0.0, 10), (HOURS, 2)])
def test_threads_compute_for_a_consumer_that_is_away(seconds: float, by_itself: int) -> None:
    """How long it is away is known from the second value on."""
    computer, absence = Computer(), Absence()
    take(compute_ahead(computer, range(10), 3, absence), absence, seconds, 10)
    assert [number for number in range(10) if computer.is_ahead(number)] == [*range(by_itself, 10)]


@pytest.mark.parametrize("ahead", [1, 4])
def test_no_more_are_computed_ahead_than_asked_for(ahead: int) -> None:
    computer, numbers = Computer(), iter(range(20))
    values = compute_ahead(computer, numbers, ahead)
    assert [next(values) for _ in range(3)] == [0, 1, 4]
    for _ in range(3 + ahead):
        assert computer.done.acquire(timeout=60)
    assert next(numbers) == 3 + ahead
    values.close()
    assert len(computer.threads) == 3 + ahead
