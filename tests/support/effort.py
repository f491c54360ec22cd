"""How much the tests try: a part of the examples and places each time, or all of them with RECSHUF_TESTS=all."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest

TRIES_ALL = os.environ.get("RECSHUF_TESTS") == "all"

T = TypeVar("T")


def examples(count: int) -> int:
    """Return how many examples of Hypothesis to try, of a number that is enough to find what is rare."""
    return count if TRIES_ALL else max(10, count // 12)


def some(items: Iterable[T], every: int = 4) -> Iterator[T]:
    """Return an iterator over one of `every` items, the first among them, or over all."""
    return (item for number, item in enumerate(items) if TRIES_ALL or number % every == 0)


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """Return parameters of a test, which is slow with all but some of them; a tuple is several parameters."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in fast else pytest.mark.slow
        )
        for case in cases
    ]


def flipped(content: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """Return an iterator over copies of bytes with one bit flipped: each bit of each place, or a part of all bits alike."""
    # 13 has no factor in common with the 8 bits.
    for place, bit in some(((place, bit) for place in places for bit in range(8)), 13):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        yield bytes(changed)
