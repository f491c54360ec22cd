"""The schedule: every rank takes what the oracle cuts for it, wherever it starts."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.train.schedule import Schedule, Sharding
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import cut_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@st.composite
def shardings(draw: st.DrawFn) -> list[Sharding]:
    """Return the sharding of every rank."""
    lanes = draw(st.sampled_from([1, 1, 2, 4, 6]))
    worlds = [1, 2, 3, 5] if lanes == 1 else [world for world in (1, 2, 3, 4, 6) if lanes % world == 0]
    world = draw(st.sampled_from(worlds))
    per_rank = lanes // world if lanes > 1 else 1
    batch_size = per_rank * draw(st.integers(1, 7))
    drop_last = draw(st.booleans())
    least = batch_size * world if drop_last else 1
    limit = draw(st.none() | st.integers(least, least + 200))
    return [Sharding(batch_size, rank, world, lanes, drop_last, limit) for rank in range(world)]


def leaves_no_batch(sizes: Sequence[int], sharding: Sharding) -> bool:
    """Return whether the records would fill a batch, but not all of its lanes."""
    lane_sizes = [sum(sizes[lane :: sharding.lanes]) for lane in range(sharding.lanes)]
    is_short = min(lane_sizes) < sharding.batch // sharding.lanes
    return sharding.drop_last and is_short and sum(sizes) >= sharding.batch


def number_groups(sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
    return [[(group, row) for row in range(size)] for group, size in enumerate(sizes)]


def take_rows(schedule: Schedule, first_step: int = 0) -> list[list[tuple[int, int]]]:
    """Return the records of each batch, and insist that groups are loaded in the order in which they are reached."""
    batches, wanted, reached = [], [], []
    for phase, first in schedule.starting_at(first_step):
        wanted += phase.find_groups(first)
        for tracks in phase.walk(first):
            pieces = [piece for track in tracks for piece in track]
            assert all(piece.start < piece.stop for piece in pieces)
            reached += [piece.group for piece in pieces if piece.is_next]
            batches.append([(piece.group, row) for piece in pieces for row in range(piece.start, piece.stop)])
    assert reached == wanted
    return batches


@settings(max_examples=examples(100))
@given(SIZES, shardings(), st.data())
def test_ranks_take_what_the_oracle_cuts(
    sizes: list[int], ranks: list[Sharding], data: st.DataObject
) -> None:
    one = ranks[0]
    assume(not leaves_no_batch(sizes, one))
    expected = cut_batches(
        number_groups(sizes), one.batch_size, one.world_size, one.lanes, one.drop_last, one.limit
    )
    for sharding in ranks:
        schedule = Schedule(np.array(sizes), sharding)
        assert schedule.steps == len(expected)
        assert take_rows(schedule) == [step[sharding.rank] for step in expected]
        first = data.draw(st.integers(0, len(expected)))
        assert take_rows(schedule, first) == [step[sharding.rank] for step in expected[first:]]


@settings(max_examples=examples(100))
@given(SIZES, shardings())
def test_lanes_that_leave_no_batch_of_enough_records_are_named(
    sizes: list[int], ranks: list[Sharding]
) -> None:
    is_refused = leaves_no_batch(sizes, ranks[0])
    for one in ranks:
        named = f"^lanes={one.lanes}: .*{len(sizes)} groups.*; give fewer lanes"
        with pytest.raises(UsageError, match=named) if is_refused else nullcontext():
            assert Schedule(np.array(sizes), one).steps or sum(sizes) < one.batch


def test_a_rank_loads_no_group_that_lies_in_the_parts_of_other_ranks() -> None:
    schedule = Schedule(np.full(100, 5), Sharding(50, 1, 2))
    (phase,) = schedule.phases
    assert phase.find_groups(0) == [
        *range(10, 20),
        *range(30, 40),
        *range(50, 60),
        *range(70, 80),
        *range(90, 100),
    ]


def test_numbers_that_do_not_fit_are_named() -> None:
    for arguments, named in [
        ({"world_size": 3, "lanes": 4}, ["lanes=4", "world_size=3"]),
        ({"batch_size": 3, "world_size": 2, "lanes": 4}, ["lanes=4", "global batch of 6"]),
        ({"rank": 2, "world_size": 2}, ["rank=2", "from 0 to 1"]),
        ({"rank": -1}, ["rank=-1"]),
        ({"batch_size": 0}, ["batch_size=0"]),
        ({"batch_size": 2.0}, ["batch_size=2.0"]),
        ({"world_size": 0}, ["world_size=0"]),
        ({"lanes": 0}, ["lanes=0"]),
        ({"limit": 0}, ["limit=0"]),
        ({"limit": 7, "world_size": 2}, ["limit=7", "global batch of 8", "drop_last=False"]),
    ]:
        with pytest.raises(UsageError) as caught:
            Sharding(**{"batch_size": 4} | arguments)
        for words in named:
            assert re.search(rf"{re.escape(words)}\b", str(caught.value))
