r"""The schedule of an epoch: which records of which groups each rank takes at each step.

Lane l is the groups l, l + L, l + 2 L ... back to back. A global batch takes as many rows from each lane, in the order
of the lanes; each rank owns as many consecutive lanes. With one lane, each rank takes its part of every global batch.

    lanes=1   | rank 0 | rank 1 | rank 0 | rank 1 | ...                       step t: rows tB to (t+1)B
    lanes=4   lane 0  | step 0 | step 1 | ... | rest    \
              lane 1  | step 0 | step 1 | ... | rest     } rank 0             step t: rows t B/4 to (t+1) B/4
              lane 2  | step 0 | step 1 | ... | rest    \                             of each lane
              lane 3  | step 0 | step 1 | ... | rest     } rank 1

The steps end with the shortest lane. The rests of all lanes form the tail: it is dropped, or cut into global batches as
if it were one lane. The last of these may be shorter. It is padded with the first records of the tail, so that every
rank gets as many rows. A limit ends the epoch earlier: the tail is then what is left of the limit after whole global
batches, the first records of the next one.

Everything here is a function of the number of records of each group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.errors import UsageError
from recshuf.system.units import check_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


MOST_STEPS = 2**53 - 1


class Piece(NamedTuple):
    """Consecutive records of one group."""

    group: int
    start: int
    stop: int
    is_next: bool
    """Whether it lies in another span than the piece before it, of the same track."""


class Spans(NamedTuple):
    """Ranges of records of groups, back to back: span k is records ``starts[k]:starts[k] + sizes[k]`` of a group."""

    groups: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def join(cls, parts: list[Spans]) -> Spans:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def num_rows(self) -> int:
        return int(self.sizes.sum())

    def cut(self, start: int, stop: int) -> Spans:
        """Return records ``start:stop``."""
        ends = np.cumsum(self.sizes)
        begins = ends - self.sizes
        first = np.clip(start - begins, 0, self.sizes)
        last = np.clip(stop - begins, 0, self.sizes)
        kept = first < last
        return Spans(self.groups[kept], (self.starts + first)[kept], (last - first)[kept])

    def repeat(self, count: int) -> Spans:
        """Return the first `count` records, over and over if there are fewer."""
        rounds = max(1, -(-count // self.num_rows))
        return Spans.join([self] * rounds).cut(0, count)


@dataclass(frozen=True, slots=True)
class Track:
    """The rows of one sequence of spans that a rank takes: ``width`` rows from ``t * stride + offset`` at step t."""

    spans: Spans
    stride: int
    offset: int
    width: int

    def find_spans(self, first_step: int, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the groups of the spans that steps ``first_step:steps`` visit, and the first step of each."""
        ends = np.cumsum(self.spans.sizes)
        begins = ends - self.spans.sizes
        visits = np.maximum(first_step, -((self.offset + self.width - 1 - begins) // self.stride))
        visited = (visits * self.stride + self.offset < ends) & (visits < steps) & (self.spans.sizes > 0)
        return self.spans.groups[visited], visits[visited]

    def walk(self, first_step: int, steps: int) -> Iterator[list[Piece]]:
        """Yield the pieces of each of the steps ``first_step:steps``."""
        spans = zip(
            np.cumsum(self.spans.sizes).tolist(),
            self.spans.sizes.tolist(),
            self.spans.groups.tolist(),
            self.spans.starts.tolist(),
            strict=True,
        )
        end, is_next, group, shift = 0, True, 0, 0
        for first in range(first_step * self.stride + self.offset, steps * self.stride, self.stride):
            start, stop = first, first + self.width
            pieces = []
            while start < stop:
                while end <= start:
                    end, size, group, inner = next(spans)
                    shift, is_next = inner - end + size, True
                cut = min(stop, end)
                pieces.append(Piece(group, start + shift, cut + shift, is_next))
                start, is_next = cut, False
            yield pieces


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps that take their rows from the same tracks, in this order."""

    steps: int
    tracks: tuple[Track, ...]
    has_repeats: bool = False
    """Whether records may come again, so that batches must not be views of what they are read from."""

    def find_groups(self, first_step: int) -> list[int]:
        """Return the groups to load for all steps from `first_step` on, in the order in which `walk` reaches them."""
        spans = [track.find_spans(first_step, self.steps) for track in self.tracks]
        groups = np.concatenate([groups for groups, _ in spans])
        visits = np.concatenate([visits for _, visits in spans])
        return [int(group) for group in groups[np.argsort(visits, kind="stable")]]

    def walk(self, first_step: int) -> Iterator[tuple[list[Piece], ...]]:
        """Yield the pieces of each track, for each step from `first_step` on."""
        return zip(*(track.walk(first_step, self.steps) for track in self.tracks), strict=True)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How global batches are divided among ranks and lanes."""

    batch_size: int
    """Records of each rank in a batch."""
    rank: int = 0
    world_size: int = 1
    lanes: int = 1
    drop_last: bool = True
    limit: int | None = None
    """Most records of an epoch, of all ranks."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "lanes"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), MOST_STEPS, least=1))
        object.__setattr__(self, "rank", check_number("rank", self.rank, self.world_size - 1))
        if not isinstance(self.drop_last, bool | np.bool_):
            raise UsageError(f"drop_last={self.drop_last!r}: give True or False")
        object.__setattr__(self, "drop_last", bool(self.drop_last))
        if self.limit is not None:
            object.__setattr__(self, "limit", check_number("limit", self.limit, MOST_STEPS, least=1))
            if self.drop_last and self.limit < self.batch:
                raise UsageError(
                    f"limit={self.limit}: is less than a global batch of {self.batch} (batch_size x world_size); give more, "
                    "or drop_last=False"
                )
        if self.lanes > 1 and self.lanes % self.world_size:
            raise UsageError(
                f"lanes={self.lanes} with world_size={self.world_size}: give lanes that world_size divides, or lanes=1"
            )
        if self.batch % self.lanes:
            raise UsageError(
                f"lanes={self.lanes} with a global batch of {self.batch} (batch_size x world_size): give lanes that "
                "divide the global batch"
            )

    @property
    def batch(self) -> int:
        """Records of a global batch."""
        return self.batch_size * self.world_size

    @property
    def own_lanes(self) -> range:
        """The lanes that this rank reads."""
        owned = max(1, self.lanes // self.world_size)
        return range(self.rank * owned, (self.rank + 1) * owned) if self.lanes > 1 else range(1)

    @property
    def own_rows(self) -> slice:
        """The rows that this rank takes of what a lane has in a global batch: all of its own lanes."""
        first = self.rank * self.batch_size if self.lanes == 1 else 0
        return slice(first, first + self.batch_size // len(self.own_lanes))


class Schedule:
    """The steps of one rank in one epoch.

    Parameters
    ----------
    group_sizes
        Number of records of each group, shape ``(G,)``.
    """

    def __init__(self, group_sizes: NDArray[np.int64], sharding: Sharding) -> None:
        self._sizes = np.asarray(group_sizes, np.int64)
        self._sharding = sharding
        lanes = np.arange(len(self._sizes)) % sharding.lanes
        lane_sizes = np.bincount(lanes, self._sizes, minlength=sharding.lanes).astype(np.int64)
        self._lane_rows = sharding.batch // sharding.lanes
        self._main_steps = int(lane_sizes.min()) // self._lane_rows
        most_steps, count = MOST_STEPS, int(lane_sizes.sum())
        if sharding.limit is not None:
            most_steps, count = sharding.limit // sharding.batch, min(count, sharding.limit)
        # What follows a last step that the limit chose is cut from the next one, not from the rests of the lanes.
        self._is_cut = most_steps < self._main_steps
        self._main_steps = min(self._main_steps, most_steps)
        self._rest = 0 if sharding.drop_last else count - self._main_steps * sharding.batch
        self._tail_steps, self._last_rows = divmod(self._rest, sharding.batch)
        if not self.steps and lane_sizes.sum() >= sharding.batch:
            raise UsageError(
                f"lanes={sharding.lanes}: no batch takes {self._lane_rows:,} records from each lane, since one has "
                f"{lane_sizes.min():,}; the store has {len(self._sizes):,} groups; give fewer lanes, or drop_last=False"
            )

    @property
    def left_out(self) -> int:
        """Number of records that no batch takes since the steps end with the shortest lane, those of whole global batches."""
        sharding = self._sharding
        if sharding.lanes == 1 or not sharding.drop_last or sharding.limit is not None:
            return 0
        return int(self._sizes.sum()) // sharding.batch * sharding.batch - self._main_steps * sharding.batch

    @property
    def steps(self) -> int:
        """Number of batches, the same for every rank."""
        return self._main_steps + self._tail_steps + (self._last_rows > 0)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The steps of the lanes, those of the tail, and the last shorter one."""
        phases = [Phase(self._main_steps, self._main_tracks())]
        if self._tail_steps or self._last_rows:
            tail, batch = self._tail(), self._sharding.batch
            last = tail.cut(self._tail_steps * batch, tail.num_rows)
            # With lanes, the last batch has one size for every number of ranks.
            missing = -self._last_rows % max(self._sharding.lanes, self._sharding.world_size)
            padded, has_repeats = Spans.join([last, tail.repeat(missing)]), missing > 0
            phases += [Phase(self._tail_steps, (self._share(tail, batch),), has_repeats)]
            phases += [Phase(int(self._last_rows > 0), (self._share(padded, padded.num_rows),), has_repeats)]
        return tuple(phase for phase in phases if phase.steps)

    def starting_at(self, step: int) -> list[tuple[Phase, int]]:
        """Return the phases from a step on, each with the first of its own steps to take."""
        ends = np.cumsum([0, *(phase.steps for phase in self.phases)]).tolist()
        return [
            (phase, max(0, step - begin))
            for phase, (begin, end) in zip(self.phases, pairwise(ends), strict=True)
            if step < end
        ]

    def _share(self, spans: Spans, stride: int) -> Track:
        """Return this rank's part of every `stride` rows."""
        width = stride // self._sharding.world_size
        return Track(spans, stride, self._sharding.rank * width, width)

    def _lane(self, lane: int) -> Spans:
        groups = np.arange(lane, len(self._sizes), self._sharding.lanes)
        return Spans(groups, np.zeros_like(groups), self._sizes[groups])

    def _main_tracks(self) -> tuple[Track, ...]:
        sharding = self._sharding
        if sharding.lanes == 1:
            return (self._share(self._lane(0), sharding.batch),)
        rows = self._lane_rows
        return tuple(Track(self._lane(lane), rows, 0, rows) for lane in sharding.own_lanes)

    def _tail(self) -> Spans:
        taken = self._main_steps * self._lane_rows
        stop = taken + self._lane_rows if self._is_cut else MOST_STEPS
        lanes = [self._lane(lane).cut(taken, stop) for lane in range(self._sharding.lanes)]
        return Spans.join(lanes).cut(0, self._rest)
