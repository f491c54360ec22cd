"""How a run is divided into tasks for several machines. Pure: integers in, integers out.

Tasks are numbered: first those that count the rows of parts of inputs, then those that scatter a pile set each, those that
gather some shards each, and last the commit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from recshuf.dataclass import dataclass
from recshuf.job.sizing import assign_sets, choose_set_bytes
from recshuf.piles.layout import PileLayout
from recshuf.records.reader import InputPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recshuf.job.plan import Plan


STAGES = ("count", "scatter", "gather", "commit")
MOST_SETS = 512
"""Each task of the gather opens all sets."""
_MOST_GATHER_TASKS = 1024
LEAST_RUNS = 8
"""Fewest regions of a task of the gather: two tasks read the region between them."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The tasks of a run."""

    piles: PileLayout
    """`set_of_input` is the set of an input's first part."""
    block_bytes: int
    """How inputs are cut into fragments."""
    sets: tuple[tuple[InputPart, ...], ...]
    """Parts of inputs in each pile set, at most one of each input. A `first_row` of -1 must be counted."""
    counted: tuple[InputPart, ...]
    gather_count: int

    @property
    def scatter(self) -> range:
        return range(len(self.counted), len(self.counted) + len(self.sets))

    @property
    def gather(self) -> range:
        return range(self.scatter.stop, self.scatter.stop + self.gather_count)

    @property
    def commit(self) -> int:
        return self.gather.stop

    def choose_shards(self, number: int, shard_count: int) -> range:
        """Return the shards that a task of the gather writes.

        >>> plan = TaskPlan(PileLayout(1, ()), 1, (), (), 3)
        >>> [plan.choose_shards(number, 5) for number in plan.gather]
        [range(0, 1), range(1, 3), range(3, 5)]
        """
        index, count = number - self.gather.start, self.gather_count
        return range(shard_count * index // count, shard_count * (index + 1) // count)

    def count_parts(self, input_index: int) -> int:
        return sum(part.input_index == input_index for parts in self.sets for part in parts)

    def fit(self, plan: Plan) -> Plan:
        last = {part.input_index: number for number, parts in enumerate(self.sets) for part in parts}
        return replace(plan, set_of_input=tuple(last[index] for index in sorted(last)))

    def to_json(self) -> dict[str, Any]:
        return {
            "pile_count": self.piles.pile_count,
            "set_of_input": self.piles.set_of_input,
            "block_bytes": self.block_bytes,
            "sets": self.sets,
            "counted": self.counted,
            "gather_count": self.gather_count,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TaskPlan:
        return cls(
            PileLayout(values["pile_count"], tuple(values["set_of_input"])),
            values["block_bytes"],
            tuple(tuple(InputPart(*part) for part in parts) for parts in values["sets"]),
            tuple(InputPart(*part) for part in values["counted"]),
            values["gather_count"],
        )


def size_sets(plan: Plan, byte_count: int) -> int:
    """Return the least bytes of the pile set of a task, given those of all records."""
    return choose_set_bytes(byte_count, plan.pile_count, MOST_SETS, are_objects=bool(plan.spilled_to))


def find_large_inputs(plan: Plan, byte_counts: Sequence[int]) -> list[int]:
    """Return the inputs that would fill several pile sets each."""
    most = 2 * size_sets(plan, sum(byte_counts))
    return [index for index, byte_count in enumerate(byte_counts) if byte_count >= most]


def divide(plan: Plan, byte_counts: Sequence[int], fragments: Mapping[int, Sequence[int | None]]) -> TaskPlan:
    """Return the tasks of a run, given the bytes of the records of each input.

    `fragments` has the number of records of each fragment, None if unknown, of the inputs that are read in parts.
    """
    set_bytes = size_sets(plan, sum(byte_counts))
    pieces: list[InputPart] = []
    piece_bytes: list[int] = []
    for index, byte_count in enumerate(byte_counts):
        parts = [InputPart(index)]
        if index in fragments:
            parts = _cut(index, fragments[index], max(1, byte_count // set_bytes))
        pieces += parts
        piece_bytes += [byte_count // len(parts)] * len(parts)
    # A part that is not a whole input fills a set, so that the next is in another.
    numbers = assign_sets(piece_bytes, set_bytes, MOST_SETS)
    sets: list[list[InputPart]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    first_sets: dict[int, int] = {}
    for part, number in zip(pieces, numbers, strict=True):
        sets[number].append(part)
        first_sets.setdefault(part.input_index, number)
    # The rows of a part must be known to number those of the next one.
    unknown = {(part.input_index, part.start) for part in pieces if part.first_row < 0}
    most = min(_MOST_GATHER_TASKS, max(1, plan.pile_count // LEAST_RUNS))
    return TaskPlan(
        PileLayout(plan.pile_count, tuple(first_sets.values())),
        plan.block_bytes,
        tuple(map(tuple, sets)),
        tuple(part for part in pieces if (part.input_index, part.stop) in unknown),
        most if plan.shard_count is None else min(most, plan.shard_count),
    )


def _cut(index: int, records: Sequence[int | None], count: int) -> list[InputPart]:
    """Return parts of an input with about the same number of fragments; rows are known as long as those before are."""
    first_rows = [
        *accumulate(records, lambda row, more: -1 if more is None or row < 0 else row + more, initial=0)
    ]
    count = max(1, min(count, len(records)))
    edges = [len(records) * part // count for part in range(count + 1)]
    parts = [InputPart(index, start, stop, first_rows[start]) for start, stop in pairwise(edges)]
    parts[-1] = parts[-1]._replace(stop=None)
    return parts
