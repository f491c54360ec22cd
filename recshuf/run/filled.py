"""A filled store in the order of its keys, and what it tells of the values that give them: how many, and whether they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import MemoryLimitError, UsageError
from recshuf.job.features import find_fields
from recshuf.job.planner import ORDERING
from recshuf.job.sizing import count_whole, find_least
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.regions import FilledRegions
from recshuf.run.features import find_duplicates
from recshuf.run.resolve import Run, plan_again
from recshuf.run.scatter_pass import spill
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from recshuf.piles.store import Store
    from recshuf.records.key_makers import ValueSize


_FULL = 0.9
"""Share of the largest pile that is ordered alone which the records of a value may fill; they share a pile with others."""


def count_missing(store: Store, field_count: int) -> list[int]:
    """Return how many records of a store have no value of all fields that give keys, and of each."""
    counts = store.missing.values()
    return list(map(sum, zip(*counts, strict=True))) if counts else [0] * (1 + field_count)


def check_fields(run: Run, record_count: int) -> None:
    """Refuse to tell records apart by a field that none of them has, which nothing but the records tells."""
    named = find_fields(run.job.feature)
    if named is None or run.values is None or not record_count:
        return
    flag, fields = named
    _, *missing = count_missing(run.store, len(fields))
    empty = [name for name, count in zip(fields, missing, strict=True) if count == record_count]
    for name in empty:
        problem = f"{flag}: no record has a value of {name!r}"
        if not run.values.knows_fields:
            raise UsageError(f"{problem}; name a field that some have")
        run.progress.warn(problem)


def open_filled(run: Run, store: Store) -> Groups:
    """Return the records of a filled store of a run by their keys, without the further words of these."""
    word_count = run.job.key_words
    column_count = None if word_count == 1 else len(run.loaded_schema)
    return Groups(
        FilledRegions(store),
        StoredOrder(word_count, of_values=run.job.keeps_keys_together),
        column_count,
        find_duplicates(run),
    )


def find_largest_pile(run: Run) -> int:
    """Return the size above which a pile of a run is split. Records of one value are not, so that theirs may be larger."""
    if not run.job.keeps_keys_together:
        return run.plan.pile_bytes
    held_bytes = run.store.held_bytes if run.results is None else 0  # tasks hold no piles
    return max(run.plan.pile_bytes, run.plan.value_bytes - int(held_bytes / ORDERING))


def check_sizes(run: Run) -> None:
    """Check that the records of each value can be ordered in memory; piles are moved to disk if that helps, and kept if not."""
    if not run.job.keeps_keys_together:
        return
    store = run.store
    if _find_too_large(run, store) is None:
        return
    spill(run)
    if (found := _find_too_large(run, store)) is not None:
        can_resume = store.keeps_sets or run.results is not None
        raise _explain(run, found, "continue with --resume and" if can_resume else "run again and")


def check_own_sizes(run: Run, store: Store, first: int, stop: int) -> None:
    """Do what `check_sizes` does in a task, for records ``first`` to ``stop`` of the order."""
    if run.job.keeps_keys_together and (found := _find_too_large(run, store, first, stop)) is not None:
        remedy = "make the plan again and" if run.header.is_plan else "continue with --resume and"
        raise _explain(run, found, remedy)


class _Need(NamedTuple):
    """The largest value, and the size of a pile that takes as much memory."""

    pile_bytes: int
    size: ValueSize

    def fits(self, most_bytes: int) -> bool:
        """Tell whether the value can be ordered with others of its pile, which may be so large."""
        return self.pile_bytes <= _FULL * most_bytes


def _find_too_large(run: Run, store: Store, first: int = 0, stop: int | None = None) -> _Need | None:
    """Return the largest value that cannot be ordered; None if all can."""
    groups, most_bytes = open_filled(run, store), find_largest_pile(run)
    wanted = groups.list_larger(most_bytes, first, int(groups.sizes.sum()) if stop is None else stop)
    sizes = map(groups.find_largest, wanted)
    needs = (_Need(size.byte_count + groups.sorting_bytes * size.records, size) for size in sizes)
    largest = max(needs, default=None)
    return None if largest is None or largest.fits(most_bytes) else largest


def _explain(run: Run, need: _Need, remedy: str) -> MemoryLimitError:
    """Return the error for a value whose records do not fit, with a limit under which they do."""
    least = find_least(lambda tried: need.fits(plan_again(run, tried).value_bytes), run.job.memory_bytes)
    size = need.size
    needed, given = (
        format_size(count_whole(limit, run.job.processes)) for limit in (least, run.job.memory_bytes)
    )
    return MemoryLimitError(
        f"a group of {size.records:,} records ({format_size(size.byte_count)}) needs {needed} of memory, and the limit is "
        f"{given}; {remedy} give --memory {needed.replace(' ', '')}, or group by more fields"
    )
