"""Finds the least memory limit for which there is a plan, when the given one is too small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from recshuf.errors import MemoryLimitError
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.job.plan import Limits

T = TypeVar("T")


class TooLittle(Exception):  # noqa: N818 - becomes an error of a user
    """A step, named by the argument, does not fit the memory limit."""


def fit(plan: Callable[[Limits], T], limits: Limits) -> T:
    """Return a plan; if it raises `TooLittle`, raise an error with the least memory for which it does not."""
    try:
        return plan(limits)
    except TooLittle as error:
        what = str(error)

    def fits(memory_bytes: int) -> bool:
        nonlocal what
        try:
            plan(replace(limits, memory_bytes=memory_bytes))
        except TooLittle as error:
            what = str(error)
            return False
        return True

    raise MemoryLimitError(
        f"{what} needs at least {format_size(_find_least(fits, limits.memory_bytes))} of memory, and the limit is "
        f"{format_size(limits.memory_bytes)}; raise --memory"
    )


def _find_least(fits: Callable[[int], bool], too_little: int) -> int:
    """Return the least size that fits, of those that `format_size` shows as they are.

    Not by bisection: at some sizes more is reserved, and what fitted just below does not.

    >>> _find_least(lambda size: size >= 123_456_789, 1_000_000)
    124000000
    """
    enough = too_little
    while not fits(enough):
        too_little, enough = enough, round_up(enough + enough // 64)
    least = round_up(too_little + 1)
    while not fits(least):
        least = round_up(least + 1)
    return least
